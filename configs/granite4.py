"""Granite 4 hybrids (IBM, 2025): nine layers of Mamba 2 per attention, without positions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs import granite, mixtures
from fidgpt.configs.hub import Tensors, joined
from fidgpt.configs.mamba import KNOWN, MAMBA, NO_LIMIT, mamba, mamba_tensors, use_mamba_layers
from fidgpt.configs.readings import of_attention
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR
from fidgpt.fiddlers import use_moe, use_no_positions, use_shared_expert
from fidgpt.train import Trainer

_NINE_TO_ONE = (*[LINEAR] * 5, FULL, *[LINEAR] * 4)
_ROPE = "rope"


@variant_of(granite.granite, mamba)
def granite4(
    cfg: fdl.Config[Trainer],
    *,
    mamba: Mapping[str, Any],
    shared_ffn_dim: int,
    num_experts: int = 8,
    top_k: int = 2,
    position_embedding_type: str | None = None,
    mixers: Sequence[str] = _NINE_TO_ONE,
    expand: int = 2,
) -> None:
    """Granite of Mamba 2 and attention; without experts, the shared one is the MLP."""
    if position_embedding_type != _ROPE:
        use_no_positions(cfg)
    if num_experts:
        use_moe(cfg, num_experts=num_experts, top_k=top_k)
        use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
    else:
        cfg.model.blocks[0].mlp.ffn_dim = shared_ffn_dim
    use_mamba_layers(cfg, mixers, expand, mamba)


_MLP = "model.layers.*.shared_mlp"


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    dense = ("blocks.*.mlp.gate", "blocks.*.mlp.up")
    tensors = dict(mamba_tensors(settings, settings["mixers"]))
    if not settings["num_experts"]:
        tensors |= joined(dense, f"{_MLP}.input_linear", of=2)
        tensors["blocks.*.mlp.down"] = f"{_MLP}.output_linear"
    return tensors


def _positions(attention: Any) -> str | None:
    return None if attention.rope is None else _ROPE


def _shared_width(model: Any) -> int:
    mlp = model.blocks[0].mlp
    return getattr(mlp, "shared", mlp).up.out_features


HUB = mixtures.GRANITEMOESHARED.near(
    "granitemoehybrid",
    granite4,
    "mixers position_embedding_type",
    architecture="GraniteMoeHybridForCausalLM",
    settings=MAMBA,
    tensors=_tensors,
    fixed=NO_LIMIT,
    defaults={"layer_types": lambda hub: [LINEAR] * hub["num_hidden_layers"]},
    readings={"position_embedding_type": of_attention(_positions), "shared_ffn_dim": _shared_width}
    | {"num_experts": lambda model: getattr(model.blocks[0].mlp, "num_experts", 0)},
    known=(*KNOWN, "normalization_function"),
)

_granite4 = partial(
    granite4,
    num_layers=40,
    vocab_size=100_352,
    seq_len=131_072,
    eps=1e-5,
    tied=True,
    embedding_scale=12.0,
    branch_scale=0.22,
    state_dim=128,
)


def granite4_h_micro() -> fdl.Config[Trainer]:
    """3.2 billion parameters, without experts."""
    heads = {"num_heads": 32, "num_kv_heads": 8, "mamba_heads": 64}
    scales = {"score_scale": 1 / 64, "logit_divisor": 8.0}
    sizes = {"hidden_dim": 2048, "ffn_dim": 8192, "shared_ffn_dim": 8192, "num_experts": 0}
    return _granite4(**sizes, **heads, **scales)


def granite4_h_tiny() -> fdl.Config[Trainer]:
    """6.9 billion parameters, 1.5 billion per token."""
    heads = {"num_heads": 12, "num_kv_heads": 4, "mamba_heads": 48}
    scales = {"score_scale": 1 / 128, "logit_divisor": 6.0}
    sizes = {"hidden_dim": 1536, "ffn_dim": 512, "shared_ffn_dim": 1024}
    return _granite4(**sizes, **heads, **scales, num_experts=64, top_k=6)


def granite4_h_small() -> fdl.Config[Trainer]:
    """32 billion parameters, 9 billion per token."""
    heads = {"num_heads": 32, "num_kv_heads": 8, "mamba_heads": 128}
    scales = {"score_scale": 1 / 128, "logit_divisor": 16.0}
    sizes = {"hidden_dim": 4096, "ffn_dim": 768, "shared_ffn_dim": 1536}
    return _granite4(**sizes, **heads, **scales, num_experts=72, top_k=10)
