"""Keys of config.json: each is read, has no effect, is refused, or is named in a warning."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.graph import ConfigError
from fidgpt.interop import from_hf
from fidgpt.interop.hugging_face.keys import UNKNOWN, other_values, reason_of, unknown_keys
from fidgpt.interop.hugging_face.settings import FAMILIES, families, family_of, read_config
from fidgpt.interop.hugging_face.trial import describe_hf

Hub = Callable[..., Path]
LLAMA = {
    **{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 97},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64},
}


@pytest.mark.slow
@pytest.mark.xdist_group("transformers")
def test_no_key_of_any_class_of_transformers_is_passed_over():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys: set[str] = set()
    for kind in CONFIG_MAPPING:
        config: Any = CONFIG_MAPPING[kind]
        keys |= {field.name for field in dataclasses.fields(config)}
        keys |= {*config.attribute_map}
    assert len(keys) > 1000
    for family in FAMILIES[::25]:
        for key in keys:
            found = {key: "another value"}
            is_refused = any(other_values(family, found))
            is_warned = unknown_keys(family, found) == [key]
            assert is_refused or is_warned or reason_of(family, key) != UNKNOWN


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_attention_in_both_directions_is_refused_in_every_family(family: Any):
    (error,) = other_values(family, {"is_causal": False})
    assert error.startswith("is_causal is False, and fidgpt's")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_causal", False),
        ("per_layer_config", {"1": {"num_attention_heads": 2}}),
        ("rope_parameters", {"full_attention": {}, "sliding_attention": {"rope_theta": 7.0}}),
    ],
)
def test_what_can_change_numbers_is_refused(hub: Hub, key: str, value: Any):
    with pytest.raises(ConfigError, match="cannot be used"):
        from_hf(str(hub(**LLAMA, **{key: value})))


def test_an_unknown_key_is_named_in_a_warning(hub: Hub, capsys: pytest.CaptureFixture[str]):
    from_hf(str(hub(**LLAMA, residual_factor=0.5, initializer_range=0.1, unset=None)))
    assert "has residual_factor, which fidgpt's llama does not know" in capsys.readouterr().err


def test_mistral_with_layer_types_is_ministral(hub: Hub):
    """As in transformers' AutoConfig, whose Mistral gives every layer the window."""
    kinds = ["sliding_attention", "full_attention"]
    keys = LLAMA | {"model_type": "mistral", "sliding_window": 5, "layer_types": kinds}
    assert read_config(hub(**keys))["model_type"] == "ministral"
    blocks = from_hf(str(hub(**keys))).model.blocks
    assert [block.attention.window is None for block in blocks] == [False, True]


def test_a_mixture_keeps_the_kinds_of_its_layers(hub: Hub):
    sizes = {"moe_intermediate_size": 8, "num_experts": 4, "mlp_only_layers": [0]}
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
    keys = LLAMA | sizes | kinds | {"model_type": "qwen2_moe", "use_sliding_window": True}
    blocks = from_hf(str(hub(**keys, shared_expert_intermediate_size=8))).model.blocks
    assert [block.attention.window is None for block in blocks] == [False, True]


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [("rwkv", "no recurrence of RWKV"), ("jetmoe", "no mixture of attentions")],
)
def test_a_missing_component_is_named(model_type: str, expected: str):
    with pytest.raises(ConfigError, match=expected) as error:
        family_of(model_type)
    assert "docs/components.md" in str(error.value)
    assert "Did you mean" not in str(error.value)


def test_a_checkpoint_is_described_and_tried(hub: Hub):
    keys = LLAMA | {"model_type": "mistral", "num_key_value_heads": 2}
    first, *_, last = describe_hf(str(hub(**keys)))
    assert first == "mistral: MistralForCausalLM, fidgpt.configs decoder"
    assert last == "logits of 16 tokens: finite"


@pytest.mark.slow
def test_the_nearest_family_is_that_whose_keys_are_known(hub: Hub):
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 97}
    keys = {"model_type": "dbrx", **sizes, "attn_config": {"clip_qkv": 8.0}, "ffn_config": {}}
    lines = [*describe_hf(str(hub(**keys)))]
    assert lines[1].endswith("older import MPT")
    assert "# fidgpt has no clipping of queries, keys and values (DBRX)" in lines
