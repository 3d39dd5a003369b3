"""Losses on the routing: balanced loads, and small logits."""

from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fidgpt.model.moe.routers import Routing, Scores
from fidgpt.model.reports import report_batch_loss, report_loss
from fidgpt.ranges import require_not_negative

__all__ = [
    "Balancing",
    "LoadBalancingLoss",
    "MicroBatchBalancingLoss",
    "RouterZLoss",
    "SequenceBalancingLoss",
]


@runtime_checkable
class Balancing(Protocol):
    """Reports a loss on the routing in training, such as one that balances the load."""

    def __call__(self, routing: Routing, /) -> None: ...


class LoadBalancingLoss:
    """`weight * num_experts * sum_i f_i P_i`, which is `weight` for an even load.

    f_i is the fraction of all choices that went to expert i, and P_i its mean share of the scores
    (Fedus et al., 2021, Switch, arXiv:2101.03961, equations 4 to 6). In implementations where f_i
    is the fraction of tokens, the loss is top_k times as large for the same weight.

    Both are over all tokens of an optimizer step. f_i has no gradient and P_i is a mean, so the
    loss adds up over micro-batches and processes once f_i is known: processes exchange it after the
    forward pass, and with several micro-batches, a first pass without gradients counts it, which
    takes a third more time. (Qiu et al., 2025, arXiv:2501.11873, avoid that pass by the counts of
    the micro-batches so far; only for the last micro-batch are these the counts of the batch.)

    Args:
      weight: weight of the loss of each layer; 0.01 in Switch.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    counts_batch: ClassVar[bool] = True

    def __init__(self, *, weight: float = 0.01) -> None:
        require_not_negative(weight=weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        report_batch_loss(
            self,
            "moe/balance",
            routing.mean(routing.shares),
            counts=routing.load(),
            count=routing.real_tokens.count,
        )

    def loss_of_batch(self, mean: Scores, load: Int64[Tensor, " experts"]) -> Float[Tensor, ""]:
        """Return the loss of the mean shares of a pass, and the load of the whole batch."""
        chosen = load / load.sum().clamp_min(1)
        return self.weight * len(load) * (chosen * mean).sum()


class MicroBatchBalancingLoss(LoadBalancingLoss):
    """`LoadBalancingLoss` of each micro-batch of each process alone, averaged over them.

    It needs no first pass, and depends on the size of micro-batches and the number of processes:
    the smaller they are, the more evenly each text has to use all experts.
    """

    counts_batch: ClassVar[bool] = False

    def __call__(self, routing: Routing) -> None:
        loss = self.loss_of_batch(routing.mean(routing.shares), routing.load())
        report_loss("moe/balance", loss, count=routing.real_tokens.count)


class SequenceBalancingLoss:
    """`LoadBalancingLoss` per sequence, averaged over sequences.

    DeepSeek-V3 uses a small one together with loss-free balancing (2024, arXiv:2412.19437,
    equations 17 to 20).

    Args:
      weight: weight of the loss of each layer.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    def __init__(self, *, weight: float = 0.0001) -> None:
        require_not_negative(weight=weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        """Report the loss of a routing whose scores are [..., seq, num_experts]."""
        chosen = routing.experts.flatten(-2)
        counts = torch.zeros_like(routing.scores[..., 0, :], dtype=chosen.dtype)
        report_batch_loss(
            self,
            "moe/sequence_balance",
            routing.real_tokens.mean_of_rows(routing.shares),
            counts=counts.scatter_add(-1, chosen, routing.choices().flatten(-2)),
            count=routing.num_tokens,
            by_sequence=True,
        )

    def loss_of_batch(self, shares: Scores, counts: Int64[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the loss of the mean shares of each sequence, and its load."""
        products = counts / counts.sum(dim=-1, keepdim=True).clamp_min(1) * shares
        even = shares.shape[-1] * products.sum(dim=-1)
        return self.weight * even.mean()


class RouterZLoss:
    """`weight * mean(logsumexp(logits)^2)`: keeps logits small, where float32 is precise.

    See Zoph et al., 2022, ST-MoE, arXiv:2202.08906, equation 5.

    Args:
      weight: weight of the loss of each layer; 0.001 in ST-MoE.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    def __init__(self, *, weight: float = 0.001) -> None:
        require_not_negative(weight=weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        squares: Float[Tensor, "*batch"] = routing.logits.logsumexp(dim=-1).square()
        mean = routing.mean(squares)
        report_loss("moe/z", self.weight * mean, count=routing.real_tokens.count)
