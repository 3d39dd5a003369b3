"""Mixture of experts: routers, experts, how tokens get there, and what keeps the load even."""

from fidgpt.model.moe.dispatch import Capacity, Dispatch, dropless
from fidgpt.model.moe.experts import (
    AdapterFactory,
    ClampedSwiGLU,
    Experts,
    Gated,
    GatedExperts,
    Gating,
    PlainExperts,
    SeparateExperts,
    StackedExperts,
    StackedLoRA,
    geglu,
    swiglu,
)
from fidgpt.model.moe.layer import (
    Balancing,
    GatedShared,
    LoadBalancingLoss,
    MoE,
    RouterZLoss,
    SequenceBalancingLoss,
)
from fidgpt.model.moe.routing import (
    GroupLimit,
    Router,
    Routing,
    SelectionBias,
    SigmoidRouter,
    SoftmaxRouter,
)

__all__ = [
    "AdapterFactory",
    "Balancing",
    "Capacity",
    "ClampedSwiGLU",
    "Dispatch",
    "Experts",
    "Gated",
    "GatedExperts",
    "GatedShared",
    "Gating",
    "GroupLimit",
    "LoadBalancingLoss",
    "MoE",
    "PlainExperts",
    "Router",
    "RouterZLoss",
    "Routing",
    "SelectionBias",
    "SeparateExperts",
    "SequenceBalancingLoss",
    "SigmoidRouter",
    "SoftmaxRouter",
    "StackedExperts",
    "StackedLoRA",
    "dropless",
    "geglu",
    "swiglu",
]
