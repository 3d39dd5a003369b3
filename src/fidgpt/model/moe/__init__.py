"""Mixture of experts: routers, experts, how tokens get there, and what keeps the load even."""

from fidgpt.model.moe.adapters import AdapterFactory, StackedLoRA
from fidgpt.model.moe.balancing import (
    Balancing,
    LoadBalancingLoss,
    RouterZLoss,
    SequenceBalancingLoss,
)
from fidgpt.model.moe.dispatch import Capacity, Dispatch, dropless
from fidgpt.model.moe.experts import (
    ClampedSwiGLU,
    Gated,
    GatedExperts,
    Gating,
    PlainExperts,
    SeparateExperts,
    geglu,
    swiglu,
)
from fidgpt.model.moe.layer import GatedShared, MoE
from fidgpt.model.moe.routers import Router, SigmoidRouter, SoftmaxRouter
from fidgpt.model.moe.routing import GroupLimit, Routing, SelectionBias
from fidgpt.model.moe.stacked import Experts, StackedExperts

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
