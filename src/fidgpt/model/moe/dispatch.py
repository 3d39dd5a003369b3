"""Dispatch of tokens to experts."""

import math
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.moe.experts import Experts, Groups
from fidgpt.model.reports import report_metric

__all__ = ["Capacity", "Dispatch", "dropless"]


@runtime_checkable
class Dispatch(Protocol):
    """Sends tokens [tokens, hidden] through their experts, and returns the weighted sums."""

    def __call__(
        self,
        x: Float[Tensor, "tokens hidden"],
        chosen: Int64[Tensor, "tokens top_k"],
        weights: Float[Tensor, "tokens top_k"],
        experts: Experts,
        /,
    ) -> Float[Tensor, "tokens hidden"]: ...


def dropless(
    x: Float[Tensor, "tokens hidden"],
    chosen: Int64[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
    experts: Experts,
) -> Float[Tensor, "tokens hidden"]:
    """Send every token to all of its experts, without a capacity.

    Rows are sorted by expert (Gale et al., 2022, MegaBlocks, arXiv:2211.15841). All sums have a
    fixed order, so results are deterministic on GPUs too.
    """
    owners, order = chosen.flatten().sort(stable=True)
    bounds = torch.arange(experts.num_experts, device=x.device)
    ends = torch.searchsorted(owners, bounds, right=True, out_int32=True)
    places = order.argsort()
    rows = _Copied.apply(x, order, places)
    out = experts(rows, Groups(owners, ends)).index_select(0, places)
    return _weighted(out.unflatten(0, chosen.shape), weights)


class Capacity(nn.Module):
    """Limits the tokens of an expert in training, and drops the rest.

    The capacity of an expert is `factor` times the even share, so all sizes are static. First
    choices have priority over second ones, then tokens in order (Lepikhin et al., 2020, GShard,
    arXiv:2006.16668; Fedus et al., 2021, Switch, arXiv:2101.03961). The metric `moe/dropped` is the
    fraction of dropped choices.

    Which tokens are dropped depends on the whole batch, later tokens included. Outside of training
    nothing is dropped, where the papers use a larger capacity, so that a token's output does not
    depend on the batch or on a cache.

    Args:
      factor: capacity of an expert, relative to the even share.

    Raises:
      ValueError: the factor is not above zero.
    """

    def __init__(self, *, factor: float = 1.25) -> None:
        super().__init__()
        if not factor > 0:
            raise ValueError(f"{factor=} must be above 0, such as 1.25.")
        self.factor = factor

    def forward(
        self,
        x: Float[Tensor, "tokens hidden"],
        chosen: Int64[Tensor, "tokens top_k"],
        weights: Float[Tensor, "tokens top_k"],
        experts: Experts,
    ) -> Float[Tensor, "tokens hidden"]:
        if not self.training:
            return dropless(x, chosen, weights, experts)
        room = math.ceil(min(self.factor * chosen.numel() / experts.num_experts, len(chosen)))
        slots = _slots(chosen, num_experts=experts.num_experts, room=room)
        num_slots = experts.num_experts * room  # one more for dropped choices
        report_metric("moe/dropped", (slots == num_slots).float().mean())
        copies = x.unsqueeze(1).expand(-1, chosen.shape[1], -1).flatten(0, 1)
        rows = x.new_zeros(num_slots + 1, x.shape[1]).index_copy(0, slots.flatten(), copies)
        owners = torch.arange(experts.num_experts, device=x.device).repeat_interleave(room)
        ends = torch.arange(room, num_slots + 1, room, device=x.device, dtype=torch.int32)
        out = experts(rows[:-1], Groups(owners, ends))
        out = torch.cat([out, out.new_zeros(1, out.shape[1])]).index_select(0, slots.flatten())
        return _weighted(out.unflatten(0, chosen.shape), weights)


def _slots(
    chosen: Int64[Tensor, "tokens top_k"], *, num_experts: int, room: int
) -> Int64[Tensor, "tokens top_k"]:
    """Return the slot of each choice among those of all experts; dropped ones get the last."""
    queue = chosen.T.flatten()  # all first choices, then all second ones
    owners, order = queue.sort(stable=True)
    heads = torch.searchsorted(owners, owners)
    waiting = torch.arange(len(queue), device=queue.device) - heads
    slots = torch.where(waiting < room, owners * room + waiting, num_experts * room)
    return torch.empty_like(queue).scatter(0, order, slots).view_as(chosen.T).T.contiguous()


def _weighted(
    out: Float[Tensor, "tokens top_k hidden"], weights: Float[Tensor, "tokens top_k"]
) -> Float[Tensor, "tokens hidden"]:
    return torch.bmm(weights.to(out.dtype).unsqueeze(1), out).squeeze(1)


class _Copied(torch.autograd.Function):
    """A row per choice, permuted; the gradient of torch's index_select sums in no fixed order."""

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
        return outer[0].index_select(0, places).unflatten(0, (-1, ctx.top_k)).sum(1), None, None
