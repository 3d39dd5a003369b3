"""Families of attention and Mamba 2: what they share, and Bamba (IBM, 2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, Form, Tensors, joined, mlp_as
from fidgpt.configs.hybrids import by_layer, use_mixers
from fidgpt.configs.readings import kinds_of
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR
from fidgpt.model import Mamba2
from fidgpt.train import Trainer


def use_mamba_layers(
    cfg: fdl.Config[Trainer], kinds: Sequence[str], expand: int, mamba: Mapping[str, Any]
) -> None:
    """Use Mamba 2 in all layers whose kind is not attention.

    Args:
      cfg: the graph to change.
      kinds: of layers, a pattern that repeats over the depth.
      expand: width of the heads, in widths of the stream.
      mamba: arguments of `Mamba2`.

    Raises:
      ValueError: the heads do not fill `expand` times the width.
    """
    heads, size, width = mamba["num_heads"], mamba["head_dim"], cfg.model.hidden_dim
    if heads * size != expand * width:
        raise ValueError(
            f"mamba_heads={heads} of mamba_head_dim={size} must be {expand=} times "
            f"hidden_dim={width} wide."
        )
    use_mixers(cfg, kinds, Mamba2, **mamba)


def mamba(
    *,
    eps: float,
    mamba_heads: int = 128,
    mamba_head_dim: int = 64,
    mamba_groups: int = 1,
    state_dim: int = 256,
    filter_size: int = 4,
    mamba_bias: bool = False,
    filter_bias: bool = True,
) -> dict[str, Any]:
    """Return the arguments of `Mamba2` by the settings of families that have it."""
    sizes = {"num_heads": mamba_heads, "head_dim": mamba_head_dim, "num_groups": mamba_groups}
    biases = {"bias": mamba_bias or None, "filter_bias": filter_bias}
    return {**sizes, **biases, "state_dim": state_dim, "filter_size": filter_size, "eps": eps}


# Settings of Mamba 2, with the keys of Bamba and Granite.
MAMBA: Mapping[str, str] = {
    "expand": "mamba_expand",
    "mamba_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "mamba_groups": "mamba_n_groups",
    "state_dim": "mamba_d_state",
    "filter_size": "mamba_d_conv",
    "mamba_bias": "mamba_proj_bias",
    "filter_bias": "mamba_conv_bias",
}
# Of timesteps: ways to write the same in JSON.
NO_LIMIT = {"time_step_limit": ([0.0, {"__float__": "Infinity"}], [0.0, float("inf")], None)}
KNOWN = ("mamba_chunk_size", "layers_block_type")
# Tensors of MLPs and norms in Bamba and Falcon-H1.
FEED_FORWARD: Mapping[str, str] = {
    **mlp_as("feed_forward"),
    "blocks.*.mlp_norm": f"{LAYER}.pre_ff_layernorm",
    "norm": "model.final_layernorm",
}


def mamba_tensors(
    settings: Mapping[str, Any],
    kinds: Sequence[str],
    name: str = "mamba",
    layers: str = "model.layers",
) -> dict[str, str | Form]:
    """Return the forms of the tensors of mixers, with the names of the hub for Mamba 2."""
    linear = mixer_tensors(settings, f"{layers}.*.{name}")
    return by_layer(kinds, settings["num_layers"], {LINEAR: linear, FULL: {}})


def mixer_tensors(settings: Mapping[str, Any], layer: str) -> dict[str, str | Form]:
    """Return the forms of the tensors of one Mamba 2, by paths inside of it."""
    values = settings["mamba_heads"] * settings["mamba_head_dim"]
    keys = settings["mamba_groups"] * settings["state_dim"]
    sizes = (values, values, keys, keys, settings["mamba_heads"])
    inputs = ("gate", "value", "key", "query", "timestep")
    filters = ("value_filter", "key_filter", "query_filter")
    return {
        **joined(inputs, f"{layer}.in_proj", of=sizes),
        **joined(filters, f"{layer}.conv1d", of=sizes[1:4]),
        "decay.log_rate": f"{layer}.A_log",
        "decay.bias": f"{layer}.dt_bias",
        "skip": f"{layer}.D",
        "norm": f"{layer}.norm",
        "out": f"{layer}.out_proj",
    }


def _kinds(attention_layers: Sequence[int] | None, num_layers: int) -> list[str]:
    return [FULL if i in (attention_layers or ()) else LINEAR for i in range(num_layers)]


@variant_of(decoder, mamba, rotary_share=0.5, num_kv_heads=8)
def bamba(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    mamba: Mapping[str, Any],
    attn_layer_indices: Sequence[int] | None = None,
    expand: int = 2,
) -> None:
    """A decoder of Mamba 2, with attention in some layers."""
    use_mamba_layers(cfg, _kinds(attn_layer_indices, num_layers), expand, mamba)


def _bamba_tensors(settings: Mapping[str, Any]) -> Tensors:
    kinds = _kinds(settings["attn_layer_indices"], settings["num_layers"])
    return {**FEED_FORWARD, **mamba_tensors(settings, kinds)}


def _attention_layers(model: Any) -> list[int]:
    return [i for i, kind in enumerate(kinds_of(model)) if kind == FULL]


BAMBA = family(
    "bamba",
    bamba,
    "attention_bias mlp_bias attn_layer_indices",
    settings=MAMBA,
    tensors=_bamba_tensors,
    fixed={"partial_rotary_factor": (0.5, None), **NO_LIMIT},
    readings={"attn_layer_indices": _attention_layers},
    known=KNOWN,
)
