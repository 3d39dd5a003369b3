"""MiniMax-01 (2025, arXiv:2501.08313): seven layers of lightning attention per attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs import mixtral
from fidgpt.configs.hub import Tensors, joined
from fidgpt.configs.hybrids import by_layer, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR
from fidgpt.graph import swap_all
from fidgpt.model import Attention, Block, LightningAttention, NormalizedResidualBlock, RMSNorm
from fidgpt.train import Trainer

_SEVEN_TO_ONE = (*[LINEAR] * 7, FULL)


@variant_of(mixtral.mixtral, num_kv_heads=8)
def minimax(
    cfg: fdl.Config[Trainer],
    *,
    mixers: Sequence[str] = _SEVEN_TO_ONE,
    full_attn_alpha_factor: float = 1.0,
    linear_attn_alpha_factor: float = 1.0,
    mlp_alpha_factor: float = 1.0,
) -> None:
    """A mixture whose residual stream is what norms return, with attention in some layers.

    What is added to each branch is multiplied with a factor.
    """
    swap_all(cfg.model, Block, by=NormalizedResidualBlock)
    norm = fdl.Partial(RMSNorm, eps=1e-6)
    use_mixers(cfg, mixers, LightningAttention, norm=norm)
    for block in cfg.model.blocks:
        is_linear = fdl.get_callable(block.attention) is LightningAttention
        alpha = linear_attn_alpha_factor if is_linear else full_attn_alpha_factor
        block.attention_residual, block.mlp_residual = alpha, mlp_alpha_factor


_LAYER = "model.layers.*.self_attn"


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    heads = settings["num_heads"]
    linear = {
        **joined(("query", "key", "value"), f"{_LAYER}.qkv_proj", of=3, groups=heads),
        "gate": f"{_LAYER}.output_gate",
        "norm.norm": f"{_LAYER}.norm",
        "out": f"{_LAYER}.out_proj",
    }
    kinds = {LINEAR: linear, FULL: {}}
    return by_layer(settings["mixers"], settings["num_layers"], kinds)


def _residual(kind: type) -> Any:
    """Return a reading of the factor of the residual of attention, in layers of a kind."""

    def read(model: Any) -> float:
        return next(b.attention_residual for b in model.blocks if isinstance(b.attention, kind))

    return read


_BETAS = ("full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor")
HUB = mixtral.HUB.near(
    "minimax",
    minimax,
    "mixers full_attn_alpha_factor linear_attn_alpha_factor mlp_alpha_factor",
    architecture="MiniMaxForCausalLM",
    tensors=_tensors,
    # transformers rotates whole heads, whatever the key says.
    fixed={**dict.fromkeys(_BETAS, (1,)), "partial_rotary_factor": (None, 1.0)},
    defaults={"layer_types": [FULL, LINEAR]},
    readings={"full_attn_alpha_factor": _residual(Attention)}
    | {"linear_attn_alpha_factor": _residual(LightningAttention)}
    | {"mlp_alpha_factor": "blocks.0.mlp_residual"},
    known=("block_size",),
    ignored=tuple(f"*.self_attn.{name}" for name in ("slope_rate", "*_decay")),
)


def minimax_01() -> fdl.Config[Trainer]:
    """456 billion parameters, 48 billion per token."""
    sizes = {"hidden_dim": 6144, "num_layers": 80, "num_heads": 64, "head_dim": 128}
    names = ("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor")
    factors = dict.fromkeys(names, 3.5565588200778455)
    others = {"ffn_dim": 9216, "vocab_size": 200_064, "seq_len": 10_240_000, "num_experts": 32}
    return minimax(**sizes, **others, **factors, theta=1e7, rotary_share=0.5)
