"""Families of attention and Mamba 2: what they share, and Bamba (IBM, 2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import BIASES, SETTINGS, SILU, TENSORS, Family, Form, joined, without
from fidgpt.configs.hybrids import LINEAR, READINGS, by_layer, kinds_of, of_mixer, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL
from fidgpt.model import Mamba2
from fidgpt.train import Trainer


def use_mamba_layers(
    cfg: fdl.Config[Trainer],
    kinds: Sequence[str],
    *,
    eps: float,
    expand: int,
    mamba_heads: int,
    mamba_head_dim: int,
    mamba_groups: int,
    state_dim: int,
    filter_size: int,
    mamba_bias: bool,
    filter_bias: bool,
) -> None:
    """Use Mamba 2 in all layers whose kind is not attention.

    Raises:
      ValueError: the heads do not fill `expand` times the width.
    """
    width = cfg.model.hidden_dim
    if mamba_heads * mamba_head_dim != expand * width:
        raise ValueError(
            f"{mamba_heads=} of {mamba_head_dim=} must be {expand=} times hidden_dim={width} wide."
        )
    use_mixers(
        cfg,
        kinds,
        Mamba2,
        num_heads=mamba_heads,
        head_dim=mamba_head_dim,
        num_groups=mamba_groups,
        state_dim=state_dim,
        filter_size=filter_size,
        bias=mamba_bias or None,
        filter_bias=filter_bias,
        eps=eps,
    )


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
KNOWN = ("mamba_chunk_size", "time_step_limit", "layers_block_type")
MAMBA_READINGS: Mapping[str, Any] = {
    **READINGS,
    "expand": of_mixer(Mamba2, lambda mixer: mixer.out.in_features // mixer.out.out_features),
    "mamba_heads": of_mixer(Mamba2, lambda mixer: mixer.num_heads),
    "mamba_head_dim": of_mixer(Mamba2, lambda mixer: mixer.head_dim),
    "mamba_groups": of_mixer(Mamba2, lambda mixer: mixer.num_groups),
    "state_dim": of_mixer(Mamba2, lambda mixer: mixer.state_dim),
    "filter_size": of_mixer(Mamba2, lambda mixer: mixer.key_filter.kernel_size[0]),
    "mamba_bias": of_mixer(Mamba2, lambda mixer: mixer.out.bias is not None),
    "filter_bias": of_mixer(Mamba2, lambda mixer: mixer.key_filter.bias is not None),
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


@variant_of(decoder, rotary_share=0.5)
def bamba(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    eps: float,
    attention_layers: Sequence[int] | None = None,
    expand: int = 2,
    mamba_heads: int = 128,
    mamba_head_dim: int = 64,
    mamba_groups: int = 1,
    state_dim: int = 256,
    filter_size: int = 4,
    mamba_bias: bool = False,
    filter_bias: bool = True,
) -> None:
    """A decoder of Mamba 2, with attention in some layers."""
    use_mamba_layers(
        cfg,
        _kinds(attention_layers, num_layers),
        eps=eps,
        expand=expand,
        mamba_heads=mamba_heads,
        mamba_head_dim=mamba_head_dim,
        mamba_groups=mamba_groups,
        state_dim=state_dim,
        filter_size=filter_size,
        mamba_bias=mamba_bias,
        filter_bias=filter_bias,
    )


def _bamba_tensors(settings: Mapping[str, Any]) -> dict[str, str | Form]:
    layer, mlp = "model.layers.*", ("gate", "up", "down")
    return {
        **TENSORS,
        **{f"blocks.*.mlp.{name}": f"{layer}.feed_forward.{name}_proj" for name in mlp},
        "blocks.*.mlp_norm": f"{layer}.pre_ff_layernorm",
        "norm": "model.final_layernorm",
        **mamba_tensors(settings, _kinds(settings["attention_layers"], settings["num_layers"])),
    }


BAMBA = Family(
    model_type="bamba",
    architecture="BambaForCausalLM",
    config=bamba,
    settings={**SETTINGS, **BIASES, **MAMBA, "attention_layers": "attn_layer_indices"},
    tensors=_bamba_tensors,
    fixed={**SILU, "partial_rotary_factor": (0.5, None)},
    defaults={"num_key_value_heads": 8},
    readings={
        **without(MAMBA_READINGS, "mixers"),
        "attention_layers": lambda model: [
            i for i, kind in enumerate(kinds_of(model)) if kind == FULL
        ],
    },
    known=(*KNOWN, "num_logits_to_keep", "z_loss_coefficient"),
)
