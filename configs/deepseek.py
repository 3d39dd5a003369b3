"""What DeepSeek V2 and V3 have in common: latent attention, and a few experts for every token."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.configs import hub
from fidgpt.configs.decoder import decoder
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_mla, use_moe, use_shared_expert
from fidgpt.graph import find
from fidgpt.model import LatentAttention, RMSNorm, Router, yarn_scale
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer


@variant_of(
    decoder,
    hidden_dim=7168,
    num_layers=61,
    num_heads=128,
    head_dim=128,
    ffn_dim=18_432,
    vocab_size=129_280,
    seq_len=163_840,
    eps=1e-6,
)
def deepseek(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    num_kv_heads: int | None,
    rope_head_dim: int = 64,
    value_head_dim: int = 128,
    kv_rank: int = 512,
    query_rank: int | None = 1536,
    expert_ffn_dim: int = 2048,
    num_experts: int = 256,
    num_shared: int = 1,
    top_k: int = 8,
    first_dense: int = 3,
    normalize: bool = False,
    route_scale: float = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> None:
    """A decoder with latent attention, and mixtures in all layers but the first ones.

    Raises:
      ValueError: key heads are not as many as heads.
    """
    if num_kv_heads not in (None, num_heads):
        raise ValueError(f"{num_kv_heads=}, but latent attention has a key for all {num_heads=}.")
    use_mla(cfg, kv_rank, query_rank, rope_head_dim, value_head_dim)
    for attention in find(cfg.model, LatentAttention):
        attention.norm = fdl.Partial(RMSNorm, eps=1e-6)  # whatever that of the other norms is
        if attention.rope.scaling is not None:
            _sharpen(attention, mscale or 0.0, mscale_all_dim or 0.0)
    use_moe(cfg, num_experts, top_k, first_dense=first_dense, ffn_dim=expert_ffn_dim)
    use_shared_expert(cfg, ffn_dim=num_shared * expert_ffn_dim)
    for router in find(cfg.model, Router):
        router.normalize, router.scale = normalize, route_scale


def _sharpen(attention: Any, mscale: float, mscale_all_dim: float) -> None:
    """Scores grow as YaRN has it: by the amplitude of RoPE, or by the scale of whole heads."""
    rope, scaling = attention.rope, attention.rope.scaling
    attention.scale = fdl.Config(
        yarn_scale,
        head_dim=HeadDim.new(),
        rope_head_dim=rope.head_dim,
        factor=scaling.factor,
        mscale_all_dim=mscale_all_dim,
    )
    if mscale and mscale_all_dim and scaling.amplitude is None:
        growth = 0.1 * math.log(scaling.factor)
        scaling.amplitude = (growth * mscale + 1) / (growth * mscale_all_dim + 1)


def tensors(settings: Mapping[str, Any]) -> hub.Tensors:
    """The names of the hub; of what turns, the files pair neighbouring rows."""
    still, turning, rank = (settings[name] for name in ("head_dim", "rope_head_dim", "kv_rank"))
    query = "q_proj" if settings["query_rank"] is None else "q_b_proj"
    attention, mlp = "model.layers.*.self_attn", "model.layers.*.mlp"
    return {
        **hub.TENSORS,
        **hub.EXPERTS,
        "blocks.*.attention.query": hub.Paired(f"{attention}.{query}", still, turning),
        "blocks.*.attention.query_down": f"{attention}.q_a_proj",
        "blocks.*.attention.query_norm": f"{attention}.q_a_layernorm",
        "blocks.*.attention.kv_down": hub.Paired(f"{attention}.kv_a_proj_with_mqa", rank, turning),
        "blocks.*.attention.kv_norm": f"{attention}.kv_a_layernorm",
        "blocks.*.attention.kv_up": f"{attention}.kv_b_proj",
        "blocks.*.mlp.router.selection_bias.bias": f"{mlp}.gate.e_score_correction_bias",
        "blocks.*.mlp.shared.gate": f"{mlp}.shared_experts.gate_proj",
        "blocks.*.mlp.shared.up": f"{mlp}.shared_experts.up_proj",
        "blocks.*.mlp.shared.down": f"{mlp}.shared_experts.down_proj",
    }


SETTINGS: Mapping[str, str] = {
    **hub.SETTINGS,
    "head_dim": "qk_nope_head_dim",
    "rope_head_dim": "qk_rope_head_dim",
    "value_head_dim": "v_head_dim",
    "kv_rank": "kv_lora_rank",
    "query_rank": "q_lora_rank",
    "expert_ffn_dim": "moe_intermediate_size",
    "num_experts": "n_routed_experts",
    "num_shared": "n_shared_experts",
    "top_k": "num_experts_per_tok",
    "first_dense": "first_k_dense_replace",
    "num_groups": "n_group",
    "top_groups": "topk_group",
    "route_scale": "routed_scaling_factor",
    "mscale": "rope_scaling.mscale",
    "mscale_all_dim": "rope_scaling.mscale_all_dim",
}
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "moe_layer_freq": (1,),
}


def _mscale(model: Any) -> float | None:
    """What the scale was made with; the amplitude too, in all that is published."""
    attention = model.blocks[0].attention
    growth = 0.0 if attention.rope.scaling is None else math.log(attention.rope.scaling.factor)
    dims = attention.head_dim + attention.rope_head_dim
    sharpness = math.sqrt(attention.scale * math.sqrt(dims))
    return round((sharpness - 1) / (0.1 * growth), 12) if growth else None


READINGS: Mapping[str, Callable[[Any], Any]] = {
    "num_kv_heads": lambda model: model.blocks[0].attention.num_heads,
    "mscale": _mscale,
    "mscale_all_dim": _mscale,
}
