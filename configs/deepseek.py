"""The common parts of DeepSeek V2 and V3: latent attention and mixtures of experts."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt import fiddlers
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import EXPERTS, LAYER, SELECTION_BIAS, Paired, Tensors, keys, shared_as
from fidgpt.configs.readings import DENSE, SPARSE
from fidgpt.configs.variant import variant_of
from fidgpt.graph import find
from fidgpt.model import LatentAttention, RMSNorm, Router
from fidgpt.train import Trainer


@variant_of(decoder, head_dim=128, seq_len=163_840, eps=1e-6)
def latent(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    num_kv_heads: int | None,
    kv_rank: int = 512,
    query_rank: int | None = 1536,
    rope_head_dim: int = 64,
    value_head_dim: int = 128,
) -> None:
    """A decoder with latent attention.

    Raises:
      ValueError: num_kv_heads differs from num_heads.
    """
    if num_kv_heads not in (None, num_heads):
        raise ValueError(f"{num_kv_heads=}, but latent attention has a key for all {num_heads=}.")
    fiddlers.use_mla(cfg, kv_rank, query_rank, rope_head_dim, value_head_dim)
    for attention in find(cfg.model, LatentAttention):
        attention.norm = fdl.Partial(RMSNorm, eps=1e-6)  # independent of the other norms


def experts(
    *,
    expert_ffn_dim: int,
    num_experts: int,
    num_shared: int,
    top_k: int,
    first_dense: int,
    mlp_types: Sequence[str] | None = None,
    normalize: bool = False,
    route_scale: float = 1.0,
) -> Sequence[Any]:
    """Return the arguments of `mix`; `mlp_types`, if given, takes precedence over `first_dense`."""
    first_dense = first_dense if mlp_types is None else first_dense_of(mlp_types)
    sizes = (num_experts, top_k, first_dense, expert_ffn_dim, num_shared)
    return (*sizes, normalize, route_scale)


@variant_of(latent, experts)
def deepseek(cfg: fdl.Config[Trainer], *, experts: Sequence[Any]) -> None:
    """A decoder with latent attention, and mixtures of experts in all layers but the first ones."""
    mix(cfg, *experts)


def mix(
    cfg: fdl.Config[Trainer],
    num_experts: int,
    top_k: int,
    first_dense: int,
    expert_ffn_dim: int,
    num_shared: int,
    normalize: bool,
    route_scale: float,
) -> None:
    """Use mixtures of experts in all layers but the first ones, with experts for all tokens."""
    fiddlers.use_moe(cfg, num_experts, top_k, first_dense=first_dense, ffn_dim=expert_ffn_dim)
    if num_shared:
        fiddlers.use_shared_expert(cfg, ffn_dim=num_shared * expert_ffn_dim)
    for router in find(cfg.model, Router):
        router.normalize, router.scale = normalize, route_scale


def use_sigmoids(cfg: fdl.Config[Trainer], num_groups: int = 1, top_groups: int = 1) -> None:
    """Use the routers of V3, with groups of experts ranked by their two best ones."""
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_loss_free_balancing(cfg)
    if num_groups > 1:
        fiddlers.use_expert_groups(cfg, num_groups, top_groups, best=2)
    fiddlers.use_sequence_balancing(cfg, weight=0.0001)


def first_dense_of(mlp_types: Sequence[str]) -> int:
    """Return how many first layers are `dense`; all others must be `sparse`.

    Raises:
      ValueError: they are in another order, or of another type.
    """
    first = [*mlp_types, SPARSE].index(SPARSE)
    if [*mlp_types] != [DENSE] * first + [SPARSE] * (len(mlp_types) - first):
        raise ValueError(f"{mlp_types=} must be {DENSE} in the first layers, then {SPARSE}.")
    return first


def dense_first(hub: Mapping[str, Any], first: int = 1) -> list[str]:
    """Return the types of MLPs of a config.json whose first layers are dense."""
    return [DENSE if i < first else SPARSE for i in range(hub["num_hidden_layers"])]


def listed_dense_first(hub: Mapping[str, Any]) -> list[str]:
    """Return the types of MLPs of a config.json that has the number of dense ones, or 1."""
    return dense_first(hub, hub.get("first_k_dense_replace", 1))


LATENT: Mapping[str, str] = keys("attention_bias") | {
    "head_dim": "qk_nope_head_dim",
    "rope_head_dim": "qk_rope_head_dim",
    "value_head_dim": "v_head_dim",
    "kv_rank": "kv_lora_rank",
    "query_rank": "q_lora_rank",
}
# Settings of mixtures with the names of DeepSeek.
MIXTURE: Mapping[str, str] = keys(
    "expert_ffn_dim top_k num_groups top_groups route_scale",
    num_experts="n_routed_experts",
    num_shared="n_shared_experts",
)


SHARED: Mapping[str, str] = shared_as("mlp.shared_experts")
SIGMOID_ROUTER: Mapping[str, str] = {SELECTION_BIAS: f"{LAYER}.mlp.gate.e_score_correction_bias"}


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors in hub files, where adjacent rotary rows are paired."""
    still, turning, rank = (settings[name] for name in ("head_dim", "rope_head_dim", "kv_rank"))
    attention = f"{LAYER}.self_attn"
    query = f"{attention}.{'q_proj' if settings['query_rank'] is None else 'q_b_proj'}"
    return {
        "blocks.*.attention.query": Paired(query, still, turning),
        "blocks.*.attention.query_down": f"{attention}.q_a_proj",
        "blocks.*.attention.query_norm": f"{attention}.q_a_layernorm",
        "blocks.*.attention.kv_down": Paired(f"{attention}.kv_a_proj_with_mqa", rank, turning),
        "blocks.*.attention.kv_norm": f"{attention}.kv_a_layernorm",
        "blocks.*.attention.kv_up": f"{attention}.kv_b_proj",
    }


# Makes a family near the decoder with latent attention, and near one with mixtures too.
near_latent = family(
    "latent",
    latent,
    settings=LATENT,
    tensors=_tensors,
    known=("head_dim", "qk_head_dim"),  # sums and names of other sizes
).near
near_deepseek = near_latent(
    "deepseek",
    deepseek,
    "first_dense",
    settings=MIXTURE,
    tensors={**EXPERTS, **SIGMOID_ROUTER, **SHARED},
    fixed={"moe_layer_freq": (1,)},
).near
