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
from fidgpt.configs.hub import EXPERTS, LAYER, QK_NORMS, SELECTION_BIAS, shared_as
from fidgpt.configs.mixtures import sigmoid_mixture
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, rotate_in_windows_by
from fidgpt.graph import find, swap_all
from fidgpt.train import Trainer


@variant_of(mixtral.mixtral, theta=1e6)
def phimoe(
    cfg: fdl.Config[Trainer], *, eps: float, jitter: float = 0.01, logit_bias: bool = False
) -> None:
    """Mixtral with LayerNorm and the routers of SparseMixer; `logit_bias` adds one to logits."""
    fiddlers.use_layer_norm(cfg, eps=eps)
    for router in swap_all(cfg.model, lm.SoftmaxRouter, by=lm.SparseMixerRouter):
        router.tolerance = 2 * jitter
    if logit_bias:
        swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)


PHIMOE = mixtral.HUB.near(
    "phimoe",
    phimoe,
    "attention_bias",
    settings={"jitter": "router_jitter_noise", "logit_bias": "lm_head_bias"},
    defaults={"rope_theta": 1e6, "num_local_experts": 16, "num_key_value_heads": 8},
    readings={"jitter": lambda model: model.blocks[0].mlp.router.tolerance / 2}
    | {"logit_bias": lambda model: isinstance(model.unembedding, lm.BiasedUnembedding)},
    known=("input_jitter_noise",),
)


@variant_of(sigmoid_mixture, qk_norm=True, rotary_share=0.5, theta=500_000.0, window=512)
def laguna(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    shared_ffn_dim: int = 512,
    gating: bool | str = True,
    heads: Sequence[int] = (),
    local_theta: float = 10_000.0,
) -> None:
    """A decoder with QK-norm, gates of heads by softplus, and V3's mixtures.

    Layers with a window have another RoPE, of whole heads.

    Raises:
      ValueError: layers have different numbers of heads.
    """
    if {*heads} - {num_heads}:
        raise ValueError(f"{heads=} must all be {num_heads=}.")
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


LAGUNA = family(
    "laguna",
    laguna,
    "window layer_types rotary_share expert_ffn_dim num_experts num_shared top_k attention_bias "
    "mlp_types gating shared_ffn_dim local_theta",
    settings={"route_scale": "moe_routed_scaling_factor", "heads": "num_attention_heads_per_layer"},
    tensors={**QK_NORMS, **EXPERTS, **shared_as("mlp.shared_expert")}
    | {"blocks.*.attention.output_gate.project": f"{LAYER}.self_attn.g_proj"}
    | {SELECTION_BIAS: f"{LAYER}.mlp.experts.e_score_correction_bias"},
    fixed={"moe_apply_router_weight_on_input": (False,), "moe_router_logit_softcapping": (0.0,)},
    defaults={"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512}
    | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    | {"num_shared_experts": 1, "rms_norm_eps": 1e-6, "layer_types": [FULL]}
    | {"mlp_layer_types": dense_first},
    readings={
        "num_shared": lambda _: 1,
        "gating": _gating,
        "heads": lambda model: [block.attention.num_heads for block in model.blocks],
    },
)


@variant_of(cohere2, eps=1e-5)
def cohere2_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_experts: int = 8,
    top_k: int = 2,
    mlp_types: Sequence[str] | None = None,
    sigmoid: str = "softmax",
    normalize: bool = True,
) -> None:
    """Command R with windows and mixtures of experts.

    Raises:
      ValueError: the scores of experts are of another kind, or a layer is dense.
    """
    if sigmoid not in ("softmax", "sigmoid") or first_dense_of(mlp_types or ()):
        raise ValueError(f"{sigmoid=} must be softmax or sigmoid, and {mlp_types=} sparse.")
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=top_k)
    if sigmoid == "sigmoid":
        fiddlers.use_sigmoid_router(cfg)
    for router in find(cfg.model, lm.Router):
        router.normalize = normalize or sigmoid == "softmax"


COHERE2_MOE = COHERE2.near(
    "cohere2_moe",
    cohere2_moe,
    "num_experts top_k mlp_types normalize",
    settings={"sigmoid": "expert_selection_fn"},
    tensors=EXPERTS,
    fixed={"num_shared_experts": (0,), "rms_norm_eps": (None,)},
    defaults={"head_dim": 128, "rope_theta": 10_000.0},
    readings={
        "sigmoid": lambda model: (
            "sigmoid" if isinstance(model.blocks[0].mlp.router, lm.SigmoidRouter) else "softmax"
        )
    },
    known=(
        *("shared_expert_combination_strategy", "prefix_dense_intermediate_size"),
        *("prefix_dense_sliding_window_pattern", "first_k_dense_replace"),
    ),
)
