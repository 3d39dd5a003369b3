"""Falcon-H1 (TII, 2025, arXiv:2507.22448): Mamba 2 beside attention in each layer."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, Tensors, linears
from fidgpt.configs.mamba import FEED_FORWARD, MAMBA, NO_LIMIT, mamba, mixer_tensors
from fidgpt.configs.readings import of_attention, of_mixer
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers.recurrent import put_mixer
from fidgpt.graph import clone_part, swap_all
from fidgpt.model import GatedMLP, Mamba2, MixerPair, ScaledSiLU, SwiGLU
from fidgpt.train import Trainer

_PARTS = ("gate", "value", "key", "query", "timestep")  # in the order of their factors


@variant_of(decoder, mamba, num_kv_heads=8, mamba_head_dim=8)
def falcon_h1(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    num_heads: int,
    head_dim: int | None,
    eps: float,
    mamba: Mapping[str, Any],
    mamba_d_ssm: int | None = 1024,
    mamba_rms_norm: bool = False,
    mamba_norm_before_gate: bool = True,
    embedding_multiplier: float = 1.0,
    lm_head_multiplier: float = 1.0,
    mlp_multipliers: Sequence[float] = (1.0, 1.0),
    key_multiplier: float = 1.0,
    attention_in_multiplier: float = 1.0,
    attention_out_multiplier: float = 1.0,
    ssm_in_multiplier: float = 1.0,
    ssm_multipliers: Sequence[float] = (1.0,) * 5,
    ssm_out_multiplier: float = 1.0,
) -> None:
    """A decoder of Mamba 2 and attention side by side, with a factor at each projection.

    Raises:
      ValueError: the gate comes after a norm, or the heads of Mamba 2 do not fill their width.
    """
    if mamba_rms_norm and mamba_norm_before_gate:
        raise ValueError(f"{mamba_norm_before_gate=}: only a norm behind the gate is known.")
    heads, size = mamba["num_heads"], mamba["head_dim"]
    if mamba_d_ssm not in (None, heads * size):
        raise ValueError(f"{mamba_d_ssm=} must be mamba_heads={heads} of mamba_head_dim={size}.")
    cfg.model.embedding.scale = embedding_multiplier
    cfg.model.unembedding.scale = lm_head_multiplier
    gate_scale, branch_scale = mlp_multipliers
    for mlp in swap_all(cfg.model, SwiGLU, by=GatedMLP):
        mlp.activation = fdl.Config(ScaledSiLU, factor=gate_scale)
    (block,) = cfg.model.blocks
    block.branch_scale = branch_scale
    attention = clone_part(block.attention)
    head_dim = hidden_dim // num_heads if head_dim is None else head_dim
    # Without biases, a factor of the input scales scores by its square, and the output by itself.
    attention.scale = head_dim**-0.5 * key_multiplier * attention_in_multiplier**2
    put_mixer(block, Mamba2, **mamba)
    block.attention.eps = eps if mamba_rms_norm else None
    factors = zip(_PARTS, ssm_multipliers, strict=True)
    block.attention.factors = {name: factor * ssm_in_multiplier for name, factor in factors}
    block.attention = fdl.ArgFactory(
        MixerPair,
        first=block.attention,
        second=attention,
        first_scale=ssm_out_multiplier / branch_scale,
        second_scale=attention_in_multiplier * attention_out_multiplier / branch_scale,
    )


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    mamba = mixer_tensors(settings, f"{LAYER}.mamba")
    attention = linears(f"{LAYER}.self_attn")
    return {
        **{f"blocks.*.attention.first.{path}": form for path, form in mamba.items()},
        **{f"blocks.*.attention.second.{path}": name for path, name in attention.items()},
        **FEED_FORWARD,
    }


def _of_branch(name: str) -> Callable[[Any], float]:
    pair = attrgetter("blocks.0.attention")
    return lambda model: getattr(pair(model), name) * model.blocks[0].branch_scale


# All factors of inputs are among the others'.
_READINGS = {
    "mamba_d_ssm": of_mixer(lambda mixer: mixer.out.in_features),
    "mamba_rms_norm": of_mixer(lambda mixer: hasattr(mixer.norm, "eps")),
    "mamba_norm_before_gate": lambda _: False,
    "embedding_multiplier": "embedding.scale",
    "lm_head_multiplier": "unembedding.scale",
    "mlp_multipliers": lambda model: [
        model.blocks[0].mlp.activation.factor,
        model.blocks[0].branch_scale,
    ],
    "key_multiplier": of_attention(lambda attention: attention.scale * attention.head_dim**0.5),
    "attention_out_multiplier": _of_branch("second_scale"),
    "ssm_multipliers": of_mixer(lambda mixer: [mixer.factors.get(name, 1.0) for name in _PARTS]),
    "ssm_out_multiplier": _of_branch("first_scale"),
}
_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
FALCON_H1 = family(
    "falcon_h1",
    falcon_h1,
    "mamba_d_ssm mamba_rms_norm mamba_norm_before_gate mlp_multipliers key_multiplier "
    "embedding_multiplier attention_in_multiplier attention_out_multiplier ssm_in_multiplier "
    "ssm_multipliers ssm_out_multiplier lm_head_multiplier",
    architecture="FalconH1ForCausalLM",
    settings={**MAMBA, "expand": ..., "mamba_bias": ...},
    tensors=_tensors,
    fixed={**dict.fromkeys(_BIASES, (False,)), **NO_LIMIT},
    readings=_READINGS,
    known="layers_block_type mamba_chunk_size mamba_expand mamba_use_mlp mlp_expansion_factor",
)
