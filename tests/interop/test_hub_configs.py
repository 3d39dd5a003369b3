"""config.json in all its forms has the meaning that it has to transformers."""

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fidgpt import configs
from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError, bind, build, diff, diff_text, fingerprint
from fidgpt.graph.hints import hints_of
from fidgpt.interop import from_hf
from fidgpt.interop.hugging_face.settings import FAMILIES, family_of, read_config, settings_of
from fidgpt.model import LanguageModel, LatentAttention, RoPE

TRANSFORMERS = pytest.mark.xdist_group("transformers")  # whose import takes seconds
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.model_type)
LLAMA = {
    **{"model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336},
    **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
}
SCALING = {
    **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
    "original_max_position_embeddings": 8192,
}
SLIDING, FULL = "sliding_attention", "full_attention"
CLASSES = {"kimi_k2": "deepseek_v3"}  # of families that have transformers' class of another
UNEVEN = {"glm4_moe": {"hidden_size": 96 * 42}}  # transformers rounds the size of a head down


def blocks_of(directory: Path) -> Any:
    return from_hf(str(directory)).model.blocks


def defaults_of(family: Family) -> dict[str, Any]:
    """Return what transformers takes where a config.json is silent; 1 where it has no number."""
    from transformers import AutoConfig

    defaults = AutoConfig.for_model(CLASSES.get(family.model_type, family.model_type)).to_dict()
    defaults["model_type"] = family.model_type
    hints = hints_of(family.config)
    sizes = [key for name, key in family.settings.items() if hints[name] is int]
    empty = [key for key in sizes if key in defaults and defaults[key] is None]
    even = UNEVEN.get(family.model_type, {})
    return defaults | {key: 1 for key in empty if key not in family.defaults} | even


@TRANSFORMERS
@EACH_FAMILY
def test_defaults_are_those_of_transformers(family: Family, hub):
    """Those of all keys together, but for whole numbers, and that of each key alone."""
    path = hub(**defaults_of(family))
    whole, known = from_hf(str(path)), read_config(path)
    arguments = arguments_of(path)
    hints = hints_of(family.config)
    sizes = [key for name, key in family.settings.items() if hints[name] is int]
    sparse = {key: known[key] for key in ["model_type", *sizes] if key in known}
    rest = [sparse, *({one: known[one] for one in known if one != key} for key in known)]
    for missing, content in zip([None, *known], rest, strict=True):
        hub(**content)
        try:
            if missing == "model_type" or arguments_of(path) == arguments:
                continue
            found = from_hf(str(path))
        except ConfigError as error:
            assert missing not in (None, family.settings.get("seq_len")), error
            assert missing in str(error), error
        else:
            differences = diff_text(diff(found, whole))
            assert fingerprint(found) == fingerprint(whole), (missing, differences)


@TRANSFORMERS
@EACH_FAMILY
def test_the_longest_sequence_is_that_of_transformers_where_none_is_named(family: Family, hub):
    from transformers import AutoConfig

    keys = defaults_of(family)
    key = family.settings["seq_len"]
    config = AutoConfig.for_model(CLASSES.get(family.model_type, family.model_type))
    expected = getattr(config, key, 2048)  # of Bloom and Mamba 2, whose classes have no length
    assert hasattr(config, key) or family.model_type in ("bloom", "mamba2")
    found = read_config(hub(**{one: keys[one] for one in keys if one != key}))
    assert key not in found
    assert settings_of(family, found)["seq_len"] == expected


@TRANSFORMERS
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
def test_a_scaling_without_any_length_starts_at_that_of_transformers(model_type: str, hub):
    from transformers import AutoConfig

    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}
    keys = LLAMA | {"model_type": model_type, "rope_parameters": scaling}
    del keys["max_position_embeddings"]
    theirs = AutoConfig.for_model(**keys)
    expected = theirs.rope_parameters["original_max_position_embeddings"]
    assert expected == theirs.max_position_embeddings
    settings = settings_of(family_of(model_type), read_config(hub(**keys)))
    assert settings["scaling"].original_seq_len == expected


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the arguments of the family's config, with its defaults."""
    found = read_config(path)
    family = family_of(found["model_type"])
    bound = inspect.signature(family.config).bind(**settings_of(family, found))
    bound.apply_defaults()
    return bound.arguments


@TRANSFORMERS
def test_the_mapping_of_published_kimi_linear_files_is_read(hub):
    from transformers import AutoConfig

    sizes = {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 2}
    mapping = sizes | {"full_attn_layers": [2, 5], "kda_layers": [1, 3, 4]}
    theirs = AutoConfig.for_model(
        "kimi_linear", num_hidden_layers=5, first_k_dense_replace=2, linear_attn_config=mapping
    ).to_dict()
    whole = from_hf(str(hub(**theirs)))
    for key in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads"):
        del theirs[key]
    del theirs["linear_conv_kernel_dim"]
    found = from_hf(str(hub(**theirs)))
    assert fingerprint(found) == fingerprint(whole), diff_text(diff(found, whole))


@TRANSFORMERS
@EACH_FAMILY
def test_uneven_heads_are_refused_where_transformers_refuses_them(family: Family):
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    uneven = {family.settings["hidden_dim"]: 50, family.settings["num_heads"]: 4}
    if "head_dim" in family.settings:
        uneven["head_dim"] = 8
    if "expand" in family.settings:  # by heads of Mamba, which have to fill a multiple of the width
        uneven["mamba_n_heads"] = 50
    try:
        AutoConfig.for_model(CLASSES.get(family.model_type, family.model_type), **uneven)
    except StrictDataclassError as error:
        assert family.whole_heads, error
    else:
        assert not family.whole_heads


@TRANSFORMERS
@pytest.mark.parametrize(
    "name",
    [
        *("open_llama_3b", "deepseek_coder_6_7b", "llama3_2_3b_of_transformers_5"),
        *("qwen2_5_coder_32b_stretched", "qwen2_5_0_5b_with_a_window", "qwen3_coder_480b"),
        *("gemma3_270m", "gemma3_1b", "deepseek_v2", "moonlight_16b", "minimax_m2"),
    ],
)
def test_published_sizes_windows_and_waves_are_those_of_transformers(name: str, published, hub):
    from transformers import AutoConfig, AutoModelForCausalLM

    path = hub(**published[name])
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        theirs: Any = AutoModelForCausalLM.from_config(config)
        ours: Any = build(bind(from_hf(str(path))).model)
    assert count(ours) == count(theirs)
    layers = [layer.self_attn for layer in theirs.model.layers]
    attentions = [block.attention for block in ours.blocks]
    assert [one.scale for one in attentions] == pytest.approx([one.scaling for one in layers])
    windows = [None if isinstance(one, LatentAttention) else one.window for one in attentions]
    assert windows == [getattr(one, "sliding_window", None) for one in layers]
    rotary = type(theirs.model.rotary_emb)(config)
    kinds = getattr(config, "layer_types", None) or [None] * len(attentions)
    for kind, attention in dict(zip(kinds, attentions, strict=True)).items():
        start = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
        found, amplitude = waves(attention.rope)
        expected = getattr(rotary, f"{start}inv_freq")
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
        assert amplitude == pytest.approx(getattr(rotary, f"{start}attention_scaling", 1.0))


def count(model: LanguageModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def waves(rope: RoPE) -> tuple[Tensor, float]:
    """Return how fast each pair turns, in radians a position, and the factor of cosine and sine."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    frequencies = rope.theta**-exponents
    if rope.scaling is None:
        return frequencies, 1.0
    return rope.scaling(frequencies, theta=rope.theta), rope.scaling.amplitude


@pytest.mark.parametrize(
    "name",
    [
        *("mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v2_lite", "deepseek_v3", "gpt_oss_20b"),
        "gpt2_124m",
    ],
)
def test_published_files_give_the_named_config(name: str, published, hub):
    different = diff(from_hf(str(hub(**published[name]))), without_recipe(name))
    assert not different, diff_text(different)


def without_recipe(name: str) -> Any:
    """Return a named config with the longest sequence of the model, and the rest of `base`."""
    return inspect.unwrap(getattr(configs, name))()


def test_a_text_config_is_read(hub):
    """As of Gemma 3 12B with images, whose file sets few keys."""
    text = {
        **{"model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15_360},
        **{"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8},
        **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    }
    found = from_hf(str(hub(model_type="gemma3", text_config=text, vision_config={})))
    assert not diff(found, without_recipe("gemma3_12b"))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": SCALING},
        {"rope_parameters": SCALING | {"rope_theta": 500_000}},
        {"rope_theta": 5e5, "rope_scaling": SCALING, "rope_parameters": {"rope_theta": 1.0}},
    ],
    ids=["hub", "transformers 5", "both"],
)
def test_rope_is_read_in_its_old_and_its_new_form(rope: dict[str, Any], hub):
    assert not diff(from_hf(str(hub(**LLAMA, **rope))), without_recipe("llama3_1_8b"))


QWEN2, GEMMA2 = {"model_type": "qwen2"}, {"model_type": "gemma2"}
GEMMA3, SMOLLM3 = {"model_type": "gemma3_text"}, {"model_type": "smollm3"}
GPT_OSS = {"model_type": "gpt_oss", "num_experts": 4}
GEMMAS = {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 2}}
OLD_LENGTH = {"original_max_position_embeddings": 64}
THIRD = [512, 512, None] * 2


@pytest.mark.parametrize(
    ("changed", "path", "values"),
    [
        *(
            (
                OLD_LENGTH | {"rope_scaling": SCALING | changed},
                "rope.scaling.original_seq_len",
                [64],
            )
            for changed in (
                {"rope_type": "yarn", "beta_fast": None},
                {"rope_type": "llama3", "beta_fast": None},
            )
        ),
        (GPT_OSS | {"rope_scaling": None, "rope_theta": 1e5}, "rope.scaling.factor", [32.0]),
        (GPT_OSS | {"rope_theta": 1e5}, "rope.scaling.factor", [32.0]),
        (GPT_OSS | {"rope_scaling": {"rope_type": "default"}}, "rope.scaling", [None]),
        (GPT_OSS | {"rope_parameters": {}}, "rope.scaling", [None]),
        *(
            (GEMMAS | {"rope_parameters": ropes}, "rope.theta", [local] * 5 + [theta])
            for ropes, local, theta in [
                ({SLIDING: {"rope_theta": 5.0}}, 5.0, 1e6),
                ({FULL: {"rope_theta": 7.0}, SLIDING: None}, 1e4, 7.0),
            ]
        ),
        (GEMMA2 | {"sliding_window_pattern": 3, "layer_types": None}, "window", [4096, None] * 16),
        *(
            ({"model_type": "gemma3_text", "sliding_window": 512, key: 3}, "window", THIRD)
            for key in ("sliding_window_pattern", "_sliding_window_pattern")
        ),
        ({"head_dim": None, "num_key_value_heads": None}, "num_kv_heads", [32]),
        ({"model_type": "cwm", "layer_types": None}, "window", [None, 8192, 8192, 8192] * 8),
        (QWEN2 | {"num_attention_heads": 64, "num_key_value_heads": ...}, "num_kv_heads", [32]),
    ],
)
def test_keys_of_rope_windows_and_heads_are_read(changed, path, values, hub):
    sizes = {key: value for key, value in (LLAMA | changed).items() if value is not ...}
    found = [attrgetter(path)(block.attention) for block in blocks_of(hub(**sizes))]
    assert [found[i % len(found)] for i in range(len(values))] == values


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "lama"}, "'lama' is not supported. docs/models.md shows"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and fidgpt's llama computes 'silu'"),
        ({"hidden_size": 50}, "hidden_size=50 must be a multiple of num_attention_heads=32"),
        ({"rope_scaling": {"type": "static", "factor": 2.0}}, "rope_scaling is of type 'static'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "lacks 'low_freq_factor'"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "mscale_all_dim": 1}}, "only YaRN has"),
        *(({"rope_scaling": one}, "must be") for one in ("linear", {"type": ["linear"]})),
        ({"model_type": "phimoe", "num_experts_per_tok": 1}, "num_experts_per_tok is 1, and"),
        ({"model_type": "xglm", "pad_token_id": 2}, "pad_token_id is 2, and fidgpt's xglm"),
        ({"model_type": "granite", "logits_scaling": 0}, "granite: a number is 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be bool"),
        (GEMMA2 | {"layer_types": [FULL] * 2}, "layer_types has 2 layers, not 32"),
        (GEMMA3 | {"rope_parameters": {"rope_theta": 5.0}}, "has neither full_attention nor slid"),
        ({"model_type": "olmo3", "rope_parameters": {"rope_theta": 5.0}}, "has neither full_atten"),
        (GEMMA3 | {"rope_scaling": {"type": "linear"}}, "rope_scaling has type, which has no eff"),
        ({"model_type": "modernbert-decoder", "rope_scaling": {"type": "linear"}}, "is not read"),
        ({"model_type": "laguna", "rope_parameters": {FULL: {"rope_theta": 5.0}}}, "lacks partial"),
        (QWEN2 | {"use_sliding_window": "yes"}, "'yes', and fidgpt's qwen2 computes False or True"),
        (
            SMOLLM3 | {"sliding_window": 8, "layer_types": [SLIDING] * 32},
            "but sliding_window is unset, or use_sliding_window",
        ),
    ],
)
def test_what_fidgpt_does_not_compute_is_refused(changed: dict[str, Any], message: str, hub):
    with pytest.raises(ConfigError, match=message):
        from_hf(str(hub(**LLAMA | changed)))


def test_all_errors_are_listed(hub):
    sizes = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    with pytest.raises(ConfigError) as error:
        from_hf(str(hub(**sizes | {"hidden_act": "gelu", "num_hidden_layers": "3"})))
    assert str(error.value).splitlines()[1:] == [
        "  hidden_act is 'gelu', and fidgpt's llama computes 'silu'",
        "  num_hidden_layers='3' must be int",
        "  vocab_size is missing, and has no default; `defaults` of the family may have one",
    ]
