"""What config.json may say in several ways, or not at all, is what transformers takes it for."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.configs import gemma3, llama
from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError, diff, diff_text, fingerprint
from fidgpt.graph.signatures.annotations import hints_of
from fidgpt.interop import from_hf
from fidgpt.interop.hugging_face.families import FAMILIES
from fidgpt.interop.hugging_face.said import read_said

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
    known = read_said(tmp_path / "whole")
    sparse = said(tmp_path / "few", **{key: known[key] for key in ["model_type", *sizes]})
    whole, sparse = from_hf(whole), from_hf(sparse)
    assert fingerprint(sparse) == fingerprint(whole), diff_text(diff(sparse, whole))


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
    assert [block.attention.window for block in blocks] == [512, 512, None]


def test_null_means_as_large_as_fits(tmp_path: Path):
    sizes = LLAMA | {"head_dim": None, "num_key_value_heads": None}
    attention = from_hf(said(tmp_path, **sizes)).model.blocks[0].attention
    assert (attention.head_dim, attention.num_kv_heads) == (128, 32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and fidgpt's llama computes 'silu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is of type 'dynamic'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "does not say 'low_freq_factor'"),
        ({"rope_scaling": "linear"}, "its RoPE is 'linear', and no mapping"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', and has to be of type bool"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None, and has to be of type float"),
        ({"model_type": "lama"}, "'lama' is none that fidgpt knows. Did you mean llama"),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        from_hf(said(tmp_path, **LLAMA | changed))


def test_all_that_does_not_fit_is_listed(tmp_path: Path):
    sizes = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    with pytest.raises(ConfigError) as error:
        from_hf(said(tmp_path, **sizes | {"mlp_bias": True, "num_hidden_layers": 0}))
    assert str(error.value).splitlines()[1:] == [
        "  mlp_bias is True, and fidgpt's llama computes False",
        "  num_hidden_layers is 0, and has to be a whole number above 0",
        "  vocab_size is not said, and has no usual value",
    ]
