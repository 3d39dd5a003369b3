"""Every published size has exactly the published parameters, and those that transformers builds."""

from collections import Counter
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs, graph
from fidgpt.cost import count_parameters

pytestmark = pytest.mark.slow

# Parameters of the files on the hub, a tied table counted once.
PUBLISHED = {
    "gpt2_124m": 124_439_808,
    "gpt2_355m": 354_823_168,
    "gpt2_774m": 774_030_080,
    "gpt2_1558m": 1_557_611_200,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_1_8b": 8_030_261_248,
    "llama3_1_70b": 70_553_706_496,
    "llama3_1_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "mistral_7b_v0_3": 7_248_023_552,
    "mistral_nemo_12b": 12_247_782_400,
    "mistral_small_24b": 23_572_403_200,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 3_880_263_168,
    "gemma3_12b": 11_766_034_176,
    "gemma3_27b": 27_009_346_304,
    "olmo2_1b": 1_484_916_736,
    "olmo2_7b": 7_298_617_344,
    "olmo2_13b": 13_716_198_400,
    "olmo2_32b": 32_234_279_936,
    "smollm_135m": 134_515_008,
    "smollm_360m": 361_821_120,
    "smollm_1_7b": 1_711_376_384,
    "smollm2_135m": 134_515_008,
    "smollm2_360m": 361_821_120,
    "smollm2_1_7b": 1_711_376_384,
    "smollm3_3b": 3_075_098_624,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_630_071_296,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_404_352,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
}

# Of mixtures, the parameters that one token is computed with, both tables among them.
ACTIVE = {
    "mixtral_8x7b": 12_879_925_248,
    "mixtral_8x22b": 39_161_468_928,
    "qwen3_30b_a3b": 3_353_032_704,
    "qwen3_235b_a22b": 22_190_763_520,
    "deepseek_v2_lite": 2_661_150_208,
    "deepseek_v3": 37_552_282_624,
    "gpt_oss_20b": 4_187_440_704,
    "gpt_oss_120b": 5_711_982_912,
}


KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
KEYS += ("intermediate_size", "vocab_size")
TIED = {"tie_word_embeddings": True}
# The model_type and the config.json on the hub, as far as it decides on parameters: values of KEYS,
# which all families after GPT-2 have, and others.
TRANSFORMERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "gpt2_124m": ("gpt2", [], {}),
    "llama2_7b": ("llama", [4096, 32, 32, 32, 11_008, 32_000], {}),
    "llama3_2_1b": ("llama", [2048, 16, 32, 8, 8192, 128_256], {"head_dim": 64, **TIED}),
    "mistral_7b": ("mistral", [4096, 32, 32, 8, 14_336, 32_000], {}),
    "mistral_nemo_12b": ("mistral", [5120, 40, 32, 8, 14_336, 131_072], {"head_dim": 128}),
    "qwen2_5_0_5b": ("qwen2", [896, 24, 14, 2, 4864, 151_936], TIED),
    "qwen2_5_7b": ("qwen2", [3584, 28, 28, 4, 18_944, 152_064], {}),
    "qwen3_0_6b": ("qwen3", [1024, 28, 16, 8, 3072, 151_936], {"head_dim": 128, **TIED}),
    "qwen3_8b": ("qwen3", [4096, 36, 32, 8, 12_288, 151_936], {"head_dim": 128}),
    "gemma2_2b": ("gemma2", [2304, 26, 8, 4, 9216, 256_000], {"head_dim": 256}),
    "gemma2_27b": ("gemma2", [4608, 46, 32, 16, 36_864, 256_000], {"head_dim": 128}),
    "gemma3_270m": ("gemma3_text", [640, 18, 4, 1, 2048, 262_144], {"head_dim": 256}),
    "gemma3_27b": ("gemma3_text", [5376, 62, 32, 16, 21_504, 262_208], {"head_dim": 128}),
    "olmo2_1b": ("olmo2", [2048, 16, 16, 16, 8192, 100_352], {}),
    "olmo2_32b": ("olmo2", [5120, 64, 40, 8, 27_648, 100_352], {}),
    "smollm_135m": ("llama", [576, 30, 9, 3, 1536, 49_152], TIED),
    "smollm3_3b": ("smollm3", [2048, 36, 16, 4, 11_008, 128_256], {}),
    "mixtral_8x22b": ("mixtral", [6144, 56, 48, 8, 16_384, 32_768], {}),
    "qwen3_235b_a22b": (
        "qwen3_moe",
        [4096, 94, 64, 4, 12_288, 151_936],
        {"head_dim": 128, "moe_intermediate_size": 1536},
    ),
    "deepseek_v2_lite": (
        "deepseek_v2",
        [2048, 27, 16, 16, 10_944, 102_400],
        {"q_lora_rank": None, "moe_intermediate_size": 1408, "num_experts_per_tok": 6}
        | {"first_k_dense_replace": 1},
    ),
    "deepseek_v3": ("deepseek_v3", [], {}),
    "gpt_oss_20b": ("gpt_oss", [], {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt_oss_120b": ("gpt_oss", [], {}),
}

# Where transformers holds several of our parameters in one.
JOINED = {"gpt2", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"}


def built(name: str) -> nn.Module:
    with torch.device("meta"):
        model: Any = fdl.build(graph.bind(getattr(configs, name)()).model)
    return model


def shapes(model: nn.Module) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in model.parameters())


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_a_config_has_exactly_the_published_parameters(name: str, count: int) -> None:
    model = built(name)
    assert size(model) == count
    assert count_parameters(model).active == ACTIVE.get(name, count)


def test_the_size_of_every_published_config_is_known() -> None:
    assert {*PUBLISHED, "base", "debug"} == set(configs.__all__)
    families = {name.partition("_")[0] for name in PUBLISHED} - {"llama3", "smollm2"}
    assert families <= {name.partition("_")[0] for name in TRANSFORMERS}


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize(("name", "reference"), TRANSFORMERS.items())
def test_a_config_has_the_parameters_that_transformers_builds(
    name: str, reference: tuple[str, list[int], dict[str, Any]]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, values, others = reference
    keys = dict(zip(KEYS, values, strict=False)) | others
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **keys))
    ours = built(name)
    assert size(ours) == size(theirs)
    if model_type not in JOINED:
        assert shapes(ours) == shapes(theirs)
