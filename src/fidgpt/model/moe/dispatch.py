"""The dispatch of tokens to their experts."""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.model.moe.experts import Experts, Rows
from fidgpt.model.moe.grouped import Groups
from fidgpt.model.reports import RealCount, report_metric
from fidgpt.ranges import require_positive

__all__ = ["Capacity", "Dispatch", "RealTokens", "dropless", "weighted_inputs"]

Chosen = Int64[Tensor, "tokens top_k"]
Weights = Float[Tensor, "tokens top_k"]
Sums = Float[Tensor, "tokens hidden"]


@dataclass(frozen=True, eq=False)
class RealTokens:
    """Which tokens of a pass are no padding.

    Attributes:
      count: how a mean over these tokens is weighted, as in `report_loss`.
      mask: whether each token of this process is one of them; None if all are.
      whole: the same for whole rows; other processes may compute a part of these.
    """

    count: int | RealCount
    mask: Bool[Tensor, "*batch"] | None = None
    whole: Bool[Tensor, "batch columns"] | None = None

    def mean(self, x: Float[Tensor, "tokens ..."]) -> Float[Tensor, "..."]:
        """Return the mean over tokens, the first dimension of `x`."""
        if self.mask is None:
            return x.mean(dim=0)
        return _where(self.mask.flatten(), x).sum(dim=0) / self.mask.sum().clamp_min(1)

    def mean_of_rows(self, x: Float[Tensor, "*batch vector"]) -> Float[Tensor, "..."]:
        """Return the mean of each row, to which its other processes add theirs in equal parts."""
        if self.mask is None or self.whole is None:
            return x.mean(dim=-2)
        columns = self.mask.shape[-1] / self.whole.shape[-1]
        count = self.whole.sum(dim=-1, keepdim=True).clamp_min(1) * columns
        return _where(self.mask, x).sum(dim=-2) / count


def _where(mask: Tensor, x: Tensor) -> Tensor:
    """Return zero where the mask of the first dimensions is false."""
    return torch.where(mask.view(*mask.shape, *[1] * (x.dim() - mask.dim())), x, 0.0)


@runtime_checkable
class Dispatch(Protocol):
    """Sends tokens [tokens, hidden] through their experts, and returns the weighted sums."""

    def __call__(
        self,
        x: Rows,
        chosen: Chosen,
        weights: Weights,
        experts: Experts,
        real: RealTokens | None = None,
        /,
    ) -> Rows:
        """Return a sum for each token; the sum of padding is arbitrary, but finite.

        Args:
          x: tokens.
          chosen: experts of each token.
          weights: of their outputs.
          experts: the experts.
          real: which tokens are no padding; None if all are.
        """
        ...


def dropless(
    x: Rows, chosen: Chosen, weights: Weights, experts: Experts, real: RealTokens | None = None
) -> Rows:
    """Send every token to all of its experts, without a capacity; padding too.

    Rows are sorted by expert (Gale et al., 2022, MegaBlocks, arXiv:2211.15841). All sums have a
    fixed order, so results are deterministic on GPUs too.
    """
    owners, order = chosen.flatten().sort(stable=True)
    bounds = torch.arange(experts.num_experts, device=x.device)
    ends = torch.searchsorted(owners, bounds, right=True, out_int32=True)
    # The inverse of the order, in a fifth of the time of another sort.
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    rows = _Copied.apply(x, order, places)
    out = experts(rows, Groups(owners, ends))
    return _Combined.apply(out, weights.to(out.dtype), order, places)


def weighted_inputs(
    x: Rows, chosen: Chosen, weights: Weights, experts: Experts, real: RealTokens | None = None
) -> Rows:
    """Send every token to its experts, with the weights on their inputs (Llama 4, Meta, 2025).

    Otherwise as `dropless`, which weights the outputs.
    """
    rows = (x.unsqueeze(1) * weights.to(x.dtype).unsqueeze(-1)).flatten(0, 1)
    alone = chosen.reshape(-1, 1)
    ones = torch.ones_like(alone, dtype=weights.dtype)
    return dropless(rows, alone, ones, experts).unflatten(0, chosen.shape).sum(1)


class Capacity(nn.Module):
    """Dispatch with a maximum number of tokens per expert in training; the rest are dropped.

    The capacity of an expert is `factor` times its even share; padding takes no place. All shapes
    are static. First choices take priority over second ones, then earlier tokens over later ones
    (Lepikhin et al., 2020, GShard, arXiv:2006.16668; Fedus et al., 2021, Switch, arXiv:2101.03961).
    The metric `moe/dropped` is the fraction of dropped choices.

    Which tokens are dropped depends on the whole batch, including later tokens. In evaluation
    nothing is dropped (the papers use a larger capacity), so that outputs do not depend on the
    batch or the cache.

    Args:
      factor: capacity of an expert relative to its even share.

    Raises:
      ValueError: the factor is not above zero.
    """

    def __init__(self, *, factor: float = 1.25) -> None:
        super().__init__()
        require_positive(factor=factor)
        self.factor = factor

    def forward(
        self,
        x: Rows,
        chosen: Chosen,
        weights: Weights,
        experts: Experts,
        real: RealTokens | None = None,
    ) -> Rows:
        if not self.training:
            return dropless(x, chosen, weights, experts)
        real = RealTokens(len(chosen)) if real is None else real
        capacity = math.ceil(min(self.factor * chosen.numel() / experts.num_experts, len(chosen)))
        slots = self._slots(chosen, experts.num_experts, capacity=capacity, mask=real.mask)
        num_slots = experts.num_experts * capacity  # an additional slot holds dropped choices
        dropped = (slots == num_slots).float()
        fraction = dropped.mean() if real.mask is None else real.mean(dropped).mean()
        report_metric("moe/dropped", fraction, count=real.count)
        copies = x.unsqueeze(1).expand(-1, chosen.shape[1], -1).flatten(0, 1)
        rows = x.new_zeros(num_slots + 1, x.shape[1]).index_copy(0, slots.flatten(), copies)
        owners = torch.arange(experts.num_experts, device=x.device).repeat_interleave(capacity)
        ends = torch.arange(capacity, num_slots + 1, capacity, device=x.device, dtype=torch.int32)
        filled = torch.zeros_like(rows[:, 0], dtype=torch.int64).index_fill(0, slots.flatten(), 1)
        out = experts(rows[:-1], Groups(owners, ends, filled[:-1].view(-1, capacity).sum(1)))
        out = torch.cat([out, out.new_zeros(1, out.shape[1])]).index_select(0, slots.flatten())
        return _weighted(out.unflatten(0, chosen.shape), weights)

    def _slots(
        self, chosen: Chosen, num_experts: int, *, capacity: int, mask: Tensor | None
    ) -> Chosen:
        """Return the slot of each choice; dropped choices, and padding, get the last slot."""
        room: int | Tensor = capacity
        if mask is not None:  # the capacity for tokens that are no padding
            chosen = chosen.masked_fill(~mask.flatten().unsqueeze(-1), num_experts)
            number = mask.sum()
            shares = self.factor * (number * chosen.shape[1]).double() / num_experts
            room = shares.minimum(number).ceil()
        queue = chosen.T.flatten()  # all first choices, then all second choices
        owners, order = queue.sort(stable=True)
        heads = torch.searchsorted(owners, owners)
        waiting = torch.arange(len(queue), device=queue.device) - heads
        has_slot = (waiting < room) & (owners < num_experts)
        slots = torch.where(has_slot, owners * capacity + waiting, num_experts * capacity)
        return torch.empty_like(queue).scatter(0, order, slots).view_as(chosen.T).T.contiguous()


def _weighted(out: Float[Tensor, "tokens top_k hidden"], weights: Weights) -> Sums:
    return torch.bmm(weights.to(out.dtype).unsqueeze(1), out).squeeze(1)


def _sums(rows: Rows, places: Chosen, weights: Weights | None = None) -> Sums:
    """Return the weighted sum of the rows at the places of each token."""
    if cpu.ENABLED and rows.device.type == "cpu":  # in one pass over memory
        return F.embedding_bag(places, rows, mode="sum", per_sample_weights=weights)
    chosen = rows.index_select(0, places.flatten()).unflatten(0, places.shape)
    return chosen.sum(1) if weights is None else _weighted(chosen, weights)


class _Copied(torch.autograd.Function):
    """Copies rows per choice; the gradient of torch's index_select sums in no fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.top_k = len(order) // len(x)
        return x.index_select(0, order // ctx.top_k)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return _sums(outer[0], places.unflatten(0, (-1, ctx.top_k))), None, None


class _Combined(torch.autograd.Function):
    """Weighted sums of the rows of each token, whose gradients are gathered, not added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, order, places)
        return _sums(rows, places.view_as(weights), weights)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        rows, weights, order, places = ctx.saved_tensors
        each = outer[0].index_select(0, order // weights.shape[1])
        wide = torch.promote_types(rows.dtype, torch.float32)
        along = (each * rows).sum(-1, dtype=wide).index_select(0, places).to(rows.dtype)
        scaled = each * weights.flatten().index_select(0, order).unsqueeze(-1)
        return scaled, along.view_as(weights), None, None
