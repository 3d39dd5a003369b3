"""Families of models: published sizes and parameters, layers, files, and variants of configs."""

from collections import Counter
from functools import partial
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs, fiddlers, graph, train
from fidgpt.configs import gemma3
from fidgpt.configs.decoder import decoder
from fidgpt.configs.deepseek2 import v2
from fidgpt.configs.qwen3_moe import qwen3_moe
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import shortest_period, windows_of
from fidgpt.cost import count_parameters
from fidgpt.model import LinearScaling, MoE, RoPE


def layers(cfg: fdl.Config) -> Any:
    """The blocks of the model that a config makes, without memory."""
    with torch.device("meta"):
        model: Any = fdl.build(graph.bind(cfg).model)
    return model.blocks


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral_7b", [4096] * 32),
        ("mistral_7b_v0_3", [None] * 32),
        ("gemma2_2b", [4096, None] * 13),
        ("gemma3_1b", ([512] * 5 + [None]) * 4 + [512] * 2),
        ("gemma3_4b", ([1024] * 5 + [None]) * 5 + [1024] * 4),
        ("qwen2_5_7b", [None] * 28),
        ("gpt_oss_20b", [128, None] * 12),
    ],
)
def test_which_layers_have_windows(name: str, windows: list[int | None]) -> None:
    assert [block.attention.window for block in layers(getattr(configs, name)())] == windows


@pytest.mark.slow
def test_which_layers_are_mixtures_or_have_no_positions() -> None:
    has = [block.attention.rope is not None for block in layers(configs.smollm3_3b())]
    assert has == [True, True, True, False] * 9
    sizes: dict[str, Any] = {"hidden_dim": 64, "num_heads": 4, "expert_ffn_dim": 24}
    sparse = qwen3_moe(**sizes, num_layers=7, every=3, dense_layers=[2])
    for cfg, is_mixed in [
        (configs.mixtral_8x7b(), [True] * 32),
        (configs.deepseek_v2_lite(), [False] + [True] * 26),
        (configs.deepseek_v3(), [False] * 3 + [True] * 58),
        (sparse, [False] * 5 + [True, False]),
    ]:
        assert [isinstance(block.mlp, MoE) for block in layers(cfg)] == is_mixed
    assert len({id(block.attention.rope) for block in layers(sparse)}) == 1


@pytest.mark.parametrize(
    ("cfg", "scaled"), [(configs.gemma3_270m(), False), (configs.gemma3_4b(), True)]
)
def test_the_ropes_of_gemma3(cfg: fdl.Config, scaled: bool) -> None:
    blocks = layers(cfg)
    ropes: list[RoPE] = [block.attention.rope for block in blocks]
    assert len({id(rope) for rope in ropes}) == 2
    assert [rope.theta for rope in ropes[:6]] == [1e4] * 5 + [1e6]
    assert ropes[0].scaling is None
    assert isinstance(ropes[5].scaling, LinearScaling) == scaled


@pytest.mark.slow
def test_gemma_scales_its_tokens_by_a_width_that_is_set_later_and_scores_as_published() -> None:
    cfg = configs.gemma3_270m()
    for hidden_dim in (640, 1024):
        cfg.model.hidden_dim = hidden_dim
        with torch.device("meta"):
            model: Any = fdl.build(graph.bind(cfg).model)
        assert model.embedding.scale == hidden_dim**0.5
    for cfg, size in [(configs.gemma2_27b(), 144), (configs.gemma3_27b(), 168)]:
        assert layers(cfg)[0].attention.scale == size**-0.5


def test_the_norms_across_heads_follow_width_and_heads() -> None:
    cfg = configs.olmo2_1b()
    fiddlers.use_gqa(cfg, num_kv_heads=2)
    fiddlers.make_small(cfg)
    attention = layers(cfg)[0].attention
    assert attention.query_norm.norm.weight.shape == (768,)
    assert attention.key_norm.norm.weight.shape == (2 * 128,)


@pytest.mark.slow
def test_a_mixture_keeps_its_groups_where_they_fit_other_experts() -> None:
    for num_experts, groups in [(64, 8), (4, None)]:
        cfg = configs.deepseek_v3()
        fiddlers.use_moe(cfg, num_experts=num_experts)
        limit = layers(cfg)[0].mlp.router.groups
        assert (limit and limit.num_groups) == groups


@pytest.mark.slow
def test_the_scores_of_deepseek_are_sharpened_by_their_scale() -> None:
    cfg = configs.deepseek_v2_lite()
    attention = layers(cfg)[0].attention
    assert attention.scale == pytest.approx(1.589626 * 192**-0.5, rel=1e-6)
    assert attention.rope.scaling.amplitude == 1.0
    assert layers(configs.deepseek_v3())[60].attention.scale == pytest.approx(1.873854 * 192**-0.5)
    eps = [attention.kv_norm.eps, layers(configs.deepseek_v3())[0].attention.query_norm.eps]
    assert eps == [1e-6, 1e-6]


def test_deepseek_has_no_keys_shared_by_heads_and_no_other_selections() -> None:
    layers = {"hidden_dim": 64, "num_layers": 2, "num_heads": 4, "ffn_dim": 96, "vocab_size": 97}
    experts = {"num_experts": 4, "num_shared": 1, "top_k": 2, "expert_ffn_dim": 8}
    tiny = partial(v2, **layers, **experts, first_dense=1)
    with pytest.raises(ValueError, match="num_kv_heads=8, .* num_heads=4"):
        tiny(num_kv_heads=8)
    with pytest.raises(ValueError, match="selection='best'.* greedy, or group_limited_greedy"):
        tiny(selection="best")
    with pytest.raises(ValueError, match="num_groups=None: .* group_limited_greedy with groups"):
        tiny(selection="group_limited_greedy")


def test_windows_of_layers_repeat_and_have_known_names() -> None:
    assert windows_of(["full_attention", "sliding_attention"], 5) == [None, 5]
    with pytest.raises(ValueError, match="layer_types has chunked_attention; use sliding_"):
        windows_of(["full_attention", "chunked_attention"], 5)
    for pattern, period in [([1, 2, 1, 2, 1], [1, 2]), ([1, 1, 1], [1]), ([1, 1, 2], [1, 1, 2])]:
        assert shortest_period(pattern) == period


SIZES: dict[str, Any] = {
    "hidden_dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "ffn_dim": 96,
    "vocab_size": 300,
    "seq_len": 32,
}


@variant_of(decoder, eps=1e-3, theta=5.0)
def capped(cfg: fdl.Config[train.Trainer], *, eps: float, cap: float | None = 2.0) -> None:
    """A decoder with a cap."""
    cfg.optimizer.eps, cfg.model.unembedding.softcap = eps, cap


@variant_of(capped, cap=None, theta=7.0)
def uncapped(cfg: fdl.Config[train.Trainer]) -> None:
    """The same without."""


def values(cfg: fdl.Config) -> list[Any]:
    model = cfg.model
    theta = model.blocks[0].attention.rope.theta
    return [model.norm.eps, cfg.optimizer.eps, theta, model.unembedding.softcap]


def test_what_both_inherit_is_one_argument_and_a_variant_has_variants() -> None:
    assert values(capped(**SIZES)) == [1e-3, 1e-3, 5.0, 2.0]
    assert values(capped(**SIZES, eps=0.1, theta=9.0, cap=4.0)) == [0.1, 0.1, 9.0, 4.0]
    assert values(uncapped(**SIZES)) == [1e-3, 1e-3, 7.0, None]
    assert values(uncapped(**SIZES, cap=1.0)) == [1e-3, 1e-3, 7.0, 1.0]


def test_an_argument_that_is_missing_or_unknown_is_named() -> None:
    for wrong, message in [
        (SIZES | {"num_head": 4}, "uncapped: got an unexpected keyword argument 'num_head'"),
        ({"num_heads": 4}, "uncapped: missing a required argument: 'hidden_dim'"),
    ]:
        with pytest.raises(TypeError, match=message):
            uncapped(**wrong)
    with pytest.raises(TypeError, match="decoder has no argument espilon"):
        variant_of(decoder, espilon=1e-3)


def test_sizes_of_a_family_share_no_node() -> None:
    for make in (configs.gemma3_4b, configs.deepseek_v2_lite, configs.gpt_oss_20b):
        make().model.blocks[-1].attention.rope.scaling.factor = 99.0
        assert make().model.blocks[-1].attention.rope.scaling.factor != 99.0
    assert gemma3.gemma3().model.num_layers == 26


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
    "phi3_3_8b": 3_821_079_552,
    "phi3_14b": 13_960_238_080,
    "phi4_14b": 14_659_507_200,
    "gpt_neox_20b": 20_554_567_680,
    "pythia_14m": 14_067_712,
    "pythia_31m": 30_494_720,
    "pythia_70m": 70_426_624,
    "pythia_160m": 162_322_944,
    "pythia_410m": 405_334_016,
    "pythia_1b": 1_011_781_632,
    "pythia_1_4b": 1_414_647_808,
    "pythia_2_8b": 2_775_208_960,
    "pythia_6_9b": 6_857_302_016,
    "pythia_12b": 11_846_072_320,
    "granite3_2b": 2_533_531_648,
    "granite3_8b": 8_170_848_256,
    "olmoe_1b_7b": 6_919_161_856,
    "command_r": 34_980_831_232,
    "command_r_08_2024": 32_296_476_672,
    "falcon_7b": 6_921_720_704,
    "falcon_40b": 41_303_293_952,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "granite4_h_micro": 3_191_396_096,
    "granite4_h_tiny": 6_939_037_248,
    "granite4_h_small": 32_207_337_984,
    "lfm2_350m": 354_483_968,
    "lfm2_700m": 742_489_344,
    "lfm2_1_2b": 1_170_340_608,
    "kimi_linear_48b_a3b": 49_122_681_728 - 26 * 256,  # whose selection biases are buffers here
    "minimax_01": 456_089_655_296,
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
    "olmoe_1b_7b": 1_282_017_280,
    "qwen3_next_80b_a3b": 3_874_929_408,
    "granite4_h_tiny": 1_465_470_528,
    "granite4_h_small": 8_803_121_664,
    "kimi_linear_48b_a3b": 3_484_453_248,
    "minimax_01": 48_403_306_496,
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
    "qwen3_next_80b_a3b": (
        "qwen3_next",
        [2048, 48, 16, 2, 5120, 151_936],
        {"head_dim": 256, "num_experts": 512},
    ),
    "granite4_h_micro": (
        "granitemoehybrid",
        [2048, 40, 32, 8, 8192, 100_352],
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 8192,
            "mamba_n_heads": 64,
            "mamba_d_state": 128,
            "layer_types": [("linear_attention", "full_attention")[i % 10 == 5] for i in range(40)],
            **TIED,
        },
    ),
    "lfm2_1_2b": (
        "lfm2",
        [2048, 16, 32, 8, 12_288, 65_536],
        {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    ),
    "kimi_linear_48b_a3b": (
        "kimi_linear",
        [2304, 27, 32, 32, 9216, 163_840],
        {
            "layer_types": [
                "full_attention" if i % 4 == 3 or i == 26 else "linear_attention" for i in range(27)
            ],
        },
    ),
    "minimax_01": (
        "minimax",
        [6144, 80, 64, 8, 9216, 200_064],
        {
            "head_dim": 128,
            "num_local_experts": 32,
            "layer_types": [("linear_attention", "full_attention")[i % 8 == 7] for i in range(80)],
        },
    ),
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
    "phi3_3_8b": ("phi3", [3072, 32, 32, 32, 8192, 32_064], {}),
    "phi4_14b": ("phi3", [5120, 40, 40, 10, 17_920, 100_352], {}),
    "gpt_neox_20b": ("gpt_neox", [], {"hidden_act": "gelu_fast"}),
    "pythia_12b": (
        "gpt_neox",
        [],
        {"hidden_size": 5120, "num_hidden_layers": 36, "num_attention_heads": 40}
        | {"intermediate_size": 20_480, "vocab_size": 50_688},
    ),
    "granite3_2b": ("granite", [2048, 40, 32, 8, 8192, 49_155], TIED),
    "granite3_8b": ("granite", [4096, 40, 32, 8, 12_800, 49_155], TIED),
    "olmoe_1b_7b": ("olmoe", [2048, 16, 16, 16, 1024, 50_304], {}),
    "command_r": ("cohere", [], {}),
    "command_r_08_2024": ("cohere", [8192, 40, 64, 8, 24_576, 256_000], {}),
    "falcon_7b": ("falcon", [], {}),
    "falcon_40b": (
        "falcon",
        [8192, 60, 128],
        {"num_kv_heads": 8, "new_decoder_architecture": True},
    ),
}

# Where transformers holds several of our parameters in one.
JOINED = {"gpt2", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"}
JOINED |= {"phi3", "gpt_neox", "olmoe", "falcon"}
JOINED |= {"qwen3_next", "granitemoehybrid", "lfm2", "kimi_linear", "minimax"}


def built(name: str) -> nn.Module:
    with torch.device("meta"):
        model: Any = fdl.build(graph.bind(getattr(configs, name)()).model)
    return model


def shapes(model: nn.Module) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in model.parameters())


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_a_config_has_exactly_the_published_parameters(name: str, count: int) -> None:
    model = built(name)
    assert size(model) == count
    assert count_parameters(model).active == ACTIVE.get(name, count)


@pytest.mark.slow
def test_the_size_of_every_published_config_is_known() -> None:
    own = {"base", "debug", "nanochat"}  # test_nanochat.py has the sizes of the last one
    assert {*PUBLISHED, *own} == set(configs.__all__)
    families = {name.partition("_")[0] for name in PUBLISHED} - {"llama3", "smollm2"}
    assert families <= {name.partition("_")[0] for name in TRANSFORMERS}


@pytest.mark.slow
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
