"""Falcon-H1 (TII, 2025, arXiv:2507.22448): Mamba 2 beside attention in each layer."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, Tensors, in_layers, linears
from fidgpt.configs.mamba import MAMBA, NO_LIMIT, mixer_tensors
from fidgpt.configs.readings import of_attention, of_mixer
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers.recurrent import put_mixer
from fidgpt.graph import clone_part, swap_all
from fidgpt.model import GatedMLP, Mamba2, MixerPair, ScaledSiLU, SwiGLU
from fidgpt.train import Trainer

_PARTS = ("gate", "value", "key", "query", "timestep")  # in the order of their factors


@variant_of(decoder, num_kv_heads=8)
def falcon_h1(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    num_heads: int,
    head_dim: int | None,
    eps: float,
    mamba_width: int | None = 1024,
    mamba_heads: int = 128,
    mamba_head_dim: int = 8,
    mamba_groups: int = 1,
    state_dim: int = 256,
    filter_size: int = 4,
    filter_bias: bool = True,
    mamba_norm: bool = False,
    norm_first: bool = True,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    mlp_scales: Sequence[float] = (1.0, 1.0),
    key_scale: float = 1.0,
    attention_scale: float = 1.0,
    attention_out_scale: float = 1.0,
    mamba_scale: float = 1.0,
    mamba_scales: Sequence[float] = (1.0,) * 5,
    mamba_out_scale: float = 1.0,
) -> None:
    """A decoder of Mamba 2 and attention side by side, with a factor at each projection.

    Raises:
      ValueError: the gate comes after a norm, or the heads of Mamba 2 do not fill their width.
    """
    if mamba_norm and norm_first:
        raise ValueError(f"{mamba_norm=} and {norm_first=}: only a norm behind the gate is known.")
    if mamba_width not in (None, mamba_heads * mamba_head_dim):
        raise ValueError(f"{mamba_width=} must be {mamba_heads=} times {mamba_head_dim=}.")
    cfg.model.embedding.scale, cfg.model.unembedding.scale = embedding_scale, logit_scale
    for mlp in swap_all(cfg.model, SwiGLU, by=GatedMLP):
        mlp.activation = fdl.Config(ScaledSiLU, factor=mlp_scales[0])
    sizes = {"num_heads": mamba_heads, "head_dim": mamba_head_dim, "num_groups": mamba_groups}
    sizes |= {"state_dim": state_dim, "filter_size": filter_size, "filter_bias": filter_bias}
    (block,) = cfg.model.blocks
    block.branch_scale = mlp_scales[1]
    attention = clone_part(block.attention)
    head_dim = hidden_dim // num_heads if head_dim is None else head_dim
    # Without biases, a factor of the input scales scores by its square, and the output by itself.
    attention.scale = head_dim**-0.5 * key_scale * attention_scale**2
    put_mixer(block, Mamba2, **sizes)
    block.attention.eps = eps if mamba_norm else None
    factors = zip(_PARTS, mamba_scales, strict=True)
    block.attention.factors = {name: factor * mamba_scale for name, factor in factors}
    block.attention = fdl.ArgFactory(
        MixerPair,
        first=block.attention,
        second=attention,
        first_scale=mamba_out_scale / mlp_scales[1],
        second_scale=attention_scale * attention_out_scale / mlp_scales[1],
    )


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    mamba = mixer_tensors(settings, f"{LAYER}.mamba")
    attention = linears(f"{LAYER}.self_attn")
    mlp = {f"mlp.{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")}
    return {
        **{f"blocks.*.attention.first.{path}": form for path, form in mamba.items()},
        **{f"blocks.*.attention.second.{path}": name for path, name in attention.items()},
        **in_layers(LAYER, mlp | {"mlp_norm": "pre_ff_layernorm"}),
        "norm": "model.final_layernorm",
    }


def _of_branch(name: str) -> Callable[[Any], float]:
    pair = attrgetter("blocks.0.attention")
    return lambda model: getattr(pair(model), name) * model.blocks[0].branch_scale


_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
FALCON_H1 = family(
    "falcon_h1",
    falcon_h1,
    "embedding_scale",
    architecture="FalconH1ForCausalLM",
    settings={**MAMBA, "expand": ..., "mamba_bias": ..., "mamba_width": "mamba_d_ssm"}
    | {"mamba_norm": "mamba_rms_norm", "norm_first": "mamba_norm_before_gate"}
    | {"mlp_scales": "mlp_multipliers", "key_scale": "key_multiplier"}
    | {"attention_scale": "attention_in_multiplier", "mamba_scales": "ssm_multipliers"}
    | {"attention_out_scale": "attention_out_multiplier", "mamba_scale": "ssm_in_multiplier"}
    | {"mamba_out_scale": "ssm_out_multiplier", "logit_scale": "lm_head_multiplier"},
    tensors=_tensors,
    fixed={**dict.fromkeys(_BIASES, (False,)), **NO_LIMIT},
    readings={
        "mamba_width": of_mixer(lambda mixer: mixer.out.in_features),
        "mamba_norm": of_mixer(lambda mixer: hasattr(mixer.norm, "eps")),
        "norm_first": lambda _: False,
        "mlp_scales": lambda model: [
            model.blocks[0].mlp.activation.factor,
            model.blocks[0].branch_scale,
        ],
        "key_scale": of_attention(lambda attention: attention.scale * attention.head_dim**0.5),
        "attention_scale": lambda _: 1.0,
        "attention_out_scale": _of_branch("second_scale"),
        "mamba_scale": lambda _: 1.0,
        "mamba_scales": of_mixer(lambda mixer: [mixer.factors.get(name, 1.0) for name in _PARTS]),
        "mamba_out_scale": _of_branch("first_scale"),
    },
    known=(
        "layers_block_type",
        "mlp_expansion_factor",
        "mamba_chunk_size",
        "mamba_expand",
        "mamba_use_mlp",
    ),
)
