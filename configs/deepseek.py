"""The common parts of DeepSeek V2 and V3: latent attention and mixtures of experts."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from fidgpt.configs import hub
from fidgpt.configs.decoder import decoder
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_mla, use_moe, use_shared_expert
from fidgpt.graph import find
from fidgpt.model import LatentAttention, RMSNorm, Router
from fidgpt.train import Trainer


@variant_of(decoder, head_dim=128, seq_len=163_840, eps=1e-6)
def deepseek(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    num_kv_heads: int | None,
    expert_ffn_dim: int,
    num_experts: int,
    num_shared: int,
    top_k: int,
    first_dense: int,
    kv_rank: int = 512,
    query_rank: int | None = 1536,
    rope_head_dim: int = 64,
    value_head_dim: int = 128,
    normalize: bool = False,
    route_scale: float = 1.0,
) -> None:
    """A decoder with latent attention, and mixtures of experts in all layers but the first ones.

    Raises:
      ValueError: num_kv_heads differs from num_heads.
    """
    if num_kv_heads not in (None, num_heads):
        raise ValueError(f"{num_kv_heads=}, but latent attention has a key for all {num_heads=}.")
    use_mla(cfg, kv_rank, query_rank, rope_head_dim, value_head_dim)
    for attention in find(cfg.model, LatentAttention):
        attention.norm = fdl.Partial(RMSNorm, eps=1e-6)  # independent of the other norms
    use_moe(cfg, num_experts, top_k, first_dense=first_dense, ffn_dim=expert_ffn_dim)
    use_shared_expert(cfg, ffn_dim=num_shared * expert_ffn_dim)
    for router in find(cfg.model, Router):
        router.normalize, router.scale = normalize, route_scale


SETTINGS: Mapping[str, str] = {
    **hub.SETTINGS,
    "attention_bias": "attention_bias",
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
}
KNOWN = ("head_dim", "qk_head_dim")  # sums and names of other sizes
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "moe_layer_freq": (1,),
}


def tensors(settings: Mapping[str, Any]) -> hub.Tensors:
    """Return the tensors in hub files, where adjacent rotary rows are paired."""
    still, turning, rank = (settings[name] for name in ("head_dim", "rope_head_dim", "kv_rank"))
    attention, mlp = "model.layers.*.self_attn", "model.layers.*.mlp"
    query = f"{attention}.{'q_proj' if settings['query_rank'] is None else 'q_b_proj'}"
    return {
        **hub.TENSORS,
        **hub.EXPERTS,
        "blocks.*.attention.query": hub.Paired(query, still, turning),
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
