"""What config.json may say in several ways, or not at all, is what transformers takes it for."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.configs import gemma3, llama
from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError, diff, diff_text, fingerprint
from fidgpt.graph.hints import hints_of
from fidgpt.interop import from_hf
from fidgpt.interop.hugging_face.settings import FAMILIES, read_config

TRANSFORMERS = pytest.mark.xdist_group("transformers")  # whose import takes seconds
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
}
_WITHOUT = {"num_experts_per_tok"}  # what transformers has no number for
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def said(directory: Path, **settings: Any) -> str:
    """A directory with nothing but a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings))
    return str(directory)


def by_name(family: Family) -> str:
    return family.model_type


@TRANSFORMERS
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
def test_silence_means_what_it_means_to_transformers(family: Family, tmp_path: Path):
    """Whole numbers aside, which every file says."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(family.model_type).to_dict()
    hints = hints_of(family.config)
    sizes = [key for name, key in family.settings.items() if hints[name] is int]
    usual |= {key: 1 for key in sizes if key in usual and usual[key] is None}
    whole = said(tmp_path / "whole", **usual)
    known = read_config(tmp_path / "whole")
    sparse = said(tmp_path / "few", **{key: known[key] for key in ["model_type", *sizes]})
    whole, sparse = from_hf(whole), from_hf(sparse)
    assert fingerprint(sparse) == fingerprint(whole), diff_text(diff(sparse, whole))


@TRANSFORMERS
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
def test_a_width_of_no_whole_heads_is_refused_where_transformers_refuses_it(family: Family):
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    uneven = {family.settings["hidden_dim"]: 40, family.settings["num_heads"]: 3, "head_dim": 8}
    try:
        AutoConfig.for_model(family.model_type, **uneven)
    except StrictDataclassError as error:
        assert family.whole_heads, error
    else:
        assert not family.whole_heads


@TRANSFORMERS
@pytest.mark.parametrize("family", FAMILIES, ids=by_name)
def test_silence_about_one_thing_is_refused_or_means_the_same(family: Family, tmp_path: Path):
    from transformers import AutoConfig

    usual = AutoConfig.for_model(family.model_type).to_dict()
    usual |= {key: 1 for key in family.settings.values() if key in _WITHOUT and usual[key] is None}
    said(tmp_path, **usual)
    whole, known = from_hf(str(tmp_path)), read_config(tmp_path)
    for key in known.keys() & family.settings.values():
        said(tmp_path, **{one: value for one, value in known.items() if one != key})
        try:
            found = from_hf(str(tmp_path))
        except ConfigError as error:
            assert key in str(error), key
        else:
            assert fingerprint(found) == fingerprint(whole), key


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_silent_key_heads_of_qwen_are_32(family: str, tmp_path: Path):
    sizes = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    sizes |= {"model_type": family, "num_attention_heads": 64}
    attention = from_hf(said(tmp_path, **sizes)).model.blocks[0].attention
    assert attention.num_kv_heads == 32


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": SCALING},
        {"rope_parameters": SCALING | {"rope_theta": 500_000}},
        {"rope_theta": 5e5, "rope_scaling": SCALING, "rope_parameters": {"rope_theta": 1.0}},
    ],
    ids=["hub", "transformers 5", "both"],
)
def test_rope_is_read_in_its_old_and_its_new_form(rope: dict[str, Any], tmp_path: Path):
    found = from_hf(said(tmp_path, **LLAMA, **rope))
    assert not diff(found, llama.llama3_1_8b())


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_the_old_length_may_stand_beside_the_scaling_and_is_then_meant(kind: str, tmp_path: Path):
    scaling = SCALING | {"rope_type": kind, "beta_fast": None}
    length = {"original_max_position_embeddings": 64}
    found = from_hf(said(tmp_path, **LLAMA, rope_scaling=scaling, **length))
    assert found.model.blocks[0].attention.rope.scaling.original_seq_len == 64


@pytest.mark.parametrize(
    ("rope", "factor"),
    [
        ({"rope_scaling": None, "rope_theta": 1e5}, 32.0),
        ({"rope_theta": 1e5}, 32.0),
        ({"rope_scaling": {"rope_type": "default"}}, None),
        ({"rope_parameters": {}}, None),
    ],
)
def test_gpt_oss_is_stretched_unless_something_else_is_said(
    rope: dict[str, Any], factor: float | None, tmp_path: Path
):
    found = from_hf(said(tmp_path, **LLAMA | {"model_type": "gpt_oss", "num_experts": 4}, **rope))
    scaling = found.model.blocks[0].attention.rope.scaling
    assert (scaling and scaling.factor) == factor


@pytest.mark.parametrize(
    ("rope", "thetas"),
    [
        ({"sliding_attention": {"rope_theta": 5.0}}, (5.0, 1e6)),
        ({"full_attention": {"rope_theta": 7.0}, "sliding_attention": None}, (1e4, 7.0)),
    ],
)
def test_each_of_two_ropes_may_be_said_alone(
    rope: dict[str, Any], thetas: tuple[float, float], tmp_path: Path
):
    sizes = LLAMA | {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 2}}
    blocks = from_hf(said(tmp_path, **sizes, rope_parameters=rope)).model.blocks
    assert (blocks[0].attention.rope.theta, blocks[5].attention.rope.theta) == thetas
    assert blocks[5].attention.rope.scaling.factor == 2.0


def test_a_pattern_of_windows_is_gemma_3s_alone_and_null_means_silence(tmp_path: Path):
    sizes = LLAMA | {"model_type": "gemma2", "sliding_window_pattern": 3, "layer_types": None}
    blocks = from_hf(said(tmp_path, **sizes)).model.blocks
    assert [block.attention.window for block in blocks] == [4096, None]


def test_a_text_config_is_read_and_may_be_silent(tmp_path: Path):
    """As of Gemma 3 with eyes: 12B, whose heads the file says, and what no file says."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15_360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    found = from_hf(said(tmp_path, model_type="gemma3", text_config=text, vision_config={}))
    assert not diff(found, gemma3.gemma3_12b())


@pytest.mark.parametrize("key", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_every_so_many_th_layer_looks_back_without_end(key: str, tmp_path: Path):
    sizes = LLAMA | {"model_type": "gemma3_text", "sliding_window": 512, key: 3}
    blocks = from_hf(said(tmp_path, **sizes)).model.blocks
    windows = [block.attention.window for block in blocks]
    assert [windows[i % len(windows)] for i in range(32)] == ([512, 512, None] * 11)[:32]


def test_null_means_as_large_as_fits(tmp_path: Path):
    sizes = LLAMA | {"head_dim": None, "num_key_value_heads": None}
    attention = from_hf(said(tmp_path, **sizes)).model.blocks[0].attention
    assert (attention.head_dim, attention.num_kv_heads) == (128, 32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and fidgpt's llama computes 'silu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is of type 'dynamic'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "lacks 'low_freq_factor'"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "mscale_all_dim": 1}}, "only YaRN has"),
        ({"rope_scaling": "linear"}, "its RoPE is 'linear', but must be a mapping"),
        (
            {"rope_scaling": {"type": "linear", "factor": "two"}},
            "rope_scaling.factor='two' must be float",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 0}},
            "rope_scaling.factor=0.0 must be finite and above 0",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "truncate": "no"}},
            "rope_scaling.truncate='no' must be bool",
        ),
        ({"rope_scaling": SCALING | {"low_freq_factor": 4}}, "of rope_scaling are the same"),
        ({"rope_theta": float("nan")}, "rope_theta=nan must be finite and above 0"),
        ({"rope_theta": -1e4}, "rope_theta=-10000.0 must be finite and above 0"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta=0.0 must be finite"),
        (
            {"model_type": "gemma3_text", "rope_local_base_freq": 0},
            "rope_local_base_freq=0.0 must be finite",
        ),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps=-1e-05 must be finite and at least 0"),
        (
            {"model_type": "gemma2", "attn_logit_softcapping": 0},
            "attn_logit_softcapping=0.0 must be finite",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 0},
            "sliding_window=0 must be finite and above 0",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": "yes"},
            "use_sliding_window is 'yes', and fidgpt's qwen2 computes False or True",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention", 7] * 16},
            "layer_types=.*7.* must be Sequence",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}},
            "rope_parameters has neither full_attention nor sliding",
        ),
        (
            {"model_type": "gemma2", "layer_types": ["full_attention"] * 2},
            "layer_types has 2 layers, not 32",
        ),
        (
            {
                "model_type": "smollm3",
                "sliding_window": 8,
                "layer_types": ["sliding_attention"] * 32,
            },
            "but sliding_window is unset, or use_sliding_window",
        ),
        (
            {
                "model_type": "gemma2",
                "sliding_window": None,
                "layer_types": ["sliding_attention"] * 32,
            },
            "but sliding_window is unset$",
        ),
        ({"model_type": "smollm3", "no_rope_layers": 1}, "no_rope_layers=1 must be Sequence"),
        (
            {"model_type": "qwen3_moe", "moe_intermediate_size": 8, "decoder_sparse_step": 0},
            "decoder_sparse_step=0 must be",
        ),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be bool"),
        ({"rms_norm_eps": None}, "rms_norm_eps=None must be float"),
        ({"model_type": "lama"}, "'lama' is not supported. Did you mean llama"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        from_hf(said(tmp_path, **LLAMA | changed))


def test_all_that_does_not_fit_is_listed(tmp_path: Path):
    sizes = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    with pytest.raises(ConfigError) as error:
        from_hf(said(tmp_path, **sizes | {"hidden_act": "gelu", "num_hidden_layers": 0}))
    assert str(error.value).splitlines()[1:] == [
        "  hidden_act is 'gelu', and fidgpt's llama computes 'silu'",
        "  num_hidden_layers=0 must be finite and above 0",
        "  vocab_size is missing, and has no default",
    ]
