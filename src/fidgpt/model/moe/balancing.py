"""Losses that keep a router in order: experts evenly loaded, logits small."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fidgpt.model.moe.routing import Routing
from fidgpt.model.reports import report_loss
from fidgpt.ranges import require_not_negative


@runtime_checkable
class Balancing(Protocol):
    """Looks at what a router decided in training, and reports what it has against it."""

    def __call__(self, routing: Routing, /) -> None: ...


class LoadBalancingLoss:
    """`weight * num_experts * sum_i f_i P_i`, which is `weight` where all is even.

    f_i is the share of all choices that fell on expert i, and P_i its mean share of the scores: the
    gradient lowers the scores of what is chosen too often (Fedus et al., 2021, Switch,
    arXiv:2101.03961, equations 4 to 6). Implementations that count f_i per token have top_k times
    as much for the same weight.

    Args:
      weight: what it counts beside the cross-entropy, for each layer; 0.01 in Switch.
    """

    def __init__(self, *, weight: float = 0.01) -> None:
        self.check_arguments(weight=weight)
        self.weight = weight

    @staticmethod
    def check_arguments(*, weight: float) -> None:
        """Raises ValueError unless the weight is finite and 0 or more."""
        require_not_negative("weight", weight)

    def __call__(self, routing: Routing) -> None:
        load = routing.load()
        chosen = load / load.sum()
        mean = routing.shares.flatten(0, -2).mean(dim=0)
        report_loss("moe/balance", self.weight * len(load) * (chosen * mean).sum())


class SequenceBalancingLoss:
    """The same for each sequence by itself, then averaged: none may lean on a few experts.

    A small one accompanies balancing without a loss (DeepSeek-V3, 2024, arXiv:2412.19437, equations
    17 to 20).

    Args:
      weight: what it counts beside the cross-entropy, for each layer.
    """

    def __init__(self, *, weight: float = 0.0001) -> None:
        self.check_arguments(weight=weight)
        self.weight = weight

    @staticmethod
    def check_arguments(*, weight: float) -> None:
        """Raises ValueError unless the weight is finite and 0 or more."""
        require_not_negative("weight", weight)

    def __call__(self, routing: Routing) -> None:
        """Sequences are the dimension before the last of the routing, [..., seq, experts]."""
        num_experts = routing.scores.shape[-1]
        chosen = routing.experts.flatten(-2)
        counts = torch.zeros_like(routing.scores[..., 0, :])
        counts = counts.scatter_add(-1, chosen, torch.ones_like(chosen, dtype=counts.dtype))
        products = counts / chosen.shape[-1] * routing.shares.mean(dim=-2)
        even = num_experts * products.sum(dim=-1)
        report_loss("moe/sequence_balance", self.weight * even.mean())


class RouterZLoss:
    """`weight * mean(logsumexp(logits)^2)`: keeps logits where float32 is exact.

    (Zoph et al., 2022, ST-MoE, arXiv:2202.08906, equation 5.)

    Args:
      weight: what it counts beside the cross-entropy, for each layer; 0.001 in ST-MoE.
    """

    def __init__(self, *, weight: float = 0.001) -> None:
        self.check_arguments(weight=weight)
        self.weight = weight

    @staticmethod
    def check_arguments(*, weight: float) -> None:
        """Raises ValueError unless the weight is finite and 0 or more."""
        require_not_negative("weight", weight)

    def __call__(self, routing: Routing) -> None:
        squares: Float[Tensor, "*batch"] = routing.logits.logsumexp(dim=-1).square()
        report_loss("moe/z", self.weight * squares.mean())
