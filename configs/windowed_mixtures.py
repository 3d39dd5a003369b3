"""Families with mixtures of experts and windows, beside norms or gates of their own."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl
from torch.nn import functional as F

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import mixtral
from fidgpt.configs.cohere import COHERE2, cohere2
from fidgpt.configs.decoder import family
from fidgpt.configs.deepseek import dense_first, first_dense_of
from fidgpt.configs.hub import EXPERTS, LAYER, QK_NORMS, in_layers, shared_as
from fidgpt.configs.mixtures import sigmoid_mixture
from fidgpt.configs.readings import each_attention, mixture_of
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, rotate_in_windows_by
from fidgpt.graph import find, swap_all
from fidgpt.train import Trainer


@variant_of(mixtral.mixtral, theta=1e6, num_experts=16)
def phimoe(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    router_jitter_noise: float = 0.01,
    lm_head_bias: bool = False,
) -> None:
    """Mixtral with LayerNorm and the routers of SparseMixer; `lm_head_bias` adds one to logits."""
    fiddlers.use_layer_norm(cfg, eps=eps)
    for router in swap_all(cfg.model, lm.SoftmaxRouter, by=lm.SparseMixerRouter):
        router.tolerance = 2 * router_jitter_noise
    if lm_head_bias:
        swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)


PHIMOE = mixtral.HUB.near(
    "phimoe",
    phimoe,
    "attention_bias router_jitter_noise lm_head_bias",
    settings={"top_k": ...},
    fixed={"num_experts_per_tok": (2,)},  # of its class, whatever the key says
    readings={"router_jitter_noise": lambda model: model.blocks[0].mlp.router.tolerance / 2}
    | {"lm_head_bias": lambda model: isinstance(model.unembedding, lm.BiasedUnembedding)},
    known=("input_jitter_noise",),
)


_EXPERTS = {"num_experts": 256, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 512}
_SIZES = {"num_kv_heads": 8, "head_dim": 128, "eps": 1e-6, "window": 512, "theta": 500_000.0}


@variant_of(sigmoid_mixture, **_EXPERTS, **_SIZES, qk_norm=True, rotary_share=0.5)
def laguna(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    shared_ffn_dim: int = 512,
    gating: bool | str = True,
    num_attention_heads_per_layer: Sequence[int] = (),
    local_theta: float = 10_000.0,
) -> None:
    """A decoder with QK-norm, gates of heads by softplus, and V3's mixtures.

    Layers with a window have another RoPE, of whole heads.

    Raises:
      ValueError: layers have different numbers of heads.
    """
    if {*num_attention_heads_per_layer} - {num_heads}:
        raise ValueError(f"{num_attention_heads_per_layer=} must all be {num_heads=}.")
    fiddlers.use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
    per_head = gating is True or gating == "per-head"
    for attention in find(cfg.model, lm.Attention):
        if gating:
            attention.output_gate = fdl.Partial(lm.OutputGate, activation=F.softplus)
            attention.output_gate.per_head = per_head
    rotate_in_windows_by(cfg, local_theta)


def _gating(model: Any) -> bool | str:
    gate = model.blocks[0].attention.output_gate
    return gate is not None and (True if gate.repeats > 1 else "per-element")


_LAGUNA = {"mlp.router.selection_bias.bias": "mlp.experts.e_score_correction_bias"}
_LAGUNA |= {"attention.output_gate.project": "self_attn.g_proj"}
LAGUNA = family(
    "laguna",
    laguna,
    "window layer_types rotary_share expert_ffn_dim num_experts top_k attention_bias mlp_types "
    "gating shared_ffn_dim local_theta num_attention_heads_per_layer",
    settings={"route_scale": "moe_routed_scaling_factor"},
    tensors={**QK_NORMS, **EXPERTS, **shared_as("mlp.shared_expert"), **in_layers(LAYER, _LAGUNA)},
    fixed={"moe_apply_router_weight_on_input": (False,), "moe_router_logit_softcapping": (0.0,)},
    defaults={"layer_types": [FULL], "mlp_layer_types": dense_first},
    readings={"gating": _gating}
    | {"num_attention_heads_per_layer": lambda model: each_attention(model, "num_heads")},
)


@variant_of(cohere2, eps=1e-5, head_dim=128)
def cohere2_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_experts: int = 8,
    top_k: int = 2,
    mlp_types: Sequence[str] | None = None,
    expert_selection_fn: str = "softmax",
    normalize: bool = True,
) -> None:
    """Command R with windows and mixtures of experts.

    Raises:
      ValueError: the scores of experts are of another kind, or a layer is dense.
    """
    scores = expert_selection_fn
    if scores not in ("softmax", "sigmoid") or first_dense_of(mlp_types or ()):
        raise ValueError(
            f"{expert_selection_fn=} must be softmax or sigmoid, and {mlp_types=} sparse."
        )
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=top_k)
    if scores == "sigmoid":
        fiddlers.use_sigmoid_router(cfg)
    for router in find(cfg.model, lm.Router):
        router.normalize = normalize or scores == "softmax"


def _scores(model: Any) -> str:
    return "sigmoid" if isinstance(mixture_of(model).router, lm.SigmoidRouter) else "softmax"


COHERE2_MOE = COHERE2.near(
    "cohere2_moe",
    cohere2_moe,
    "num_experts top_k mlp_types normalize expert_selection_fn",
    tensors=EXPERTS,
    fixed={"num_shared_experts": (0,), "rms_norm_eps": (None,)},
    readings={"expert_selection_fn": _scores},
    known="shared_expert_combination_strategy prefix_dense_intermediate_size "
    "prefix_dense_sliding_window_pattern first_k_dense_replace",
)
