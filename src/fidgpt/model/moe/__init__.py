"""Mixture of experts: routers, experts, how tokens get there, and what keeps the load even."""

from fidgpt.model.moe.balancing import (
    Balancing,
    LoadBalancingLoss,
    RouterZLoss,
    SequenceBalancingLoss,
)
from fidgpt.model.moe.dispatch import Capacity, Dispatch, dropless
from fidgpt.model.moe.experts import (
    ClampedSwiGLU,
    Experts,
    Gated,
    GatedExperts,
    PlainExperts,
    SeparateExperts,
    geglu,
    swiglu,
)
from fidgpt.model.moe.layer import GatedShared, MoE
from fidgpt.model.moe.routers import Router, SigmoidRouter, SoftmaxRouter
from fidgpt.model.moe.routing import GroupLimit, Routing, SelectionBias

__all__ = [
    "Balancing",
    "Capacity",
    "ClampedSwiGLU",
    "Dispatch",
    "Experts",
    "Gated",
    "GatedExperts",
    "GatedShared",
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
    "dropless",
    "geglu",
    "swiglu",
]
