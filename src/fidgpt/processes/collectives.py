"""Collectives of tensors over the processes of an axis, with their gradients.

Whether a tensor is the same on all processes, a part or a summand decides the gradient:

| | forward | backward |
|---|---|---|
| `copied` | whole to whole | gradients are summands: summed |
| `summed` | summands to whole | gradients are whole: as they are |
| `gathered` | parts to whole | gradients are summands: summed and split |
| `scattered` | summands to parts of the sum | gradients are parts: gathered |
| `joined` | parts to whole | gradients are whole: split |
| `sliced` | whole to parts | gradients are parts: gathered |
| `exchanged`, `begin_exchange` | parts to other parts | the same way back |
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fidgpt.processes.processes import Processes


def all_sum(x: Tensor, axis: Processes) -> Tensor:
    """Return the sum over an axis, which is the same on all of its processes, bit for bit."""
    return begin_sum(x, axis, None)()


def all_max(x: Tensor, axis: Processes) -> Tensor:
    """Return the elementwise maximum over an axis."""
    if axis.is_planned:
        axis.record("reduce", x.nbytes)
        return x.clone()
    functional = _functional()
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), "max", group_of(axis)))


def all_gather(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return the tensors of all processes, which have one shape, side by side in `dim`."""
    return begin_all_gather(x, axis, dim)()


def sum_scatter(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return this process's part in `dim` of the sum over an axis."""
    return begin_sum(x, axis, dim)()


Function = Callable[[Tensor], Tensor]
Pending = Callable[[], Tensor]  # waits for a tensor that is being sent, and returns it


def begin_all_gather(x: Tensor, axis: Processes, dim: int) -> Pending:
    """Begin `all_gather`."""
    if axis.is_planned:
        axis.record("gather", x.nbytes * axis.size)
        return lambda: torch.cat([x] * axis.size, dim)
    functional, part = _functional(), x.movedim(dim, 0).contiguous()
    # torch 2.13 renames it, and warns about the old name.
    collective = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    pending = collective(part, 0, group_of(axis))
    return lambda: functional.wait_tensor(pending).movedim(0, dim)


def begin_sum(x: Tensor, axis: Processes, dim: int | None) -> Pending:
    """Begin `sum_scatter`; without a dimension, `all_sum`."""
    if axis.is_planned:
        axis.record("reduce" if dim is None else "scatter", x.nbytes)
        return (x if dim is None else own_part(x, axis, dim)).clone
    functional = _functional()
    if dim is None:
        whole = functional.all_reduce(x.contiguous(), "sum", group_of(axis))
        return lambda: functional.wait_tensor(whole)
    name = "reduce_scatter_single"  # renamed likewise
    collective = getattr(functional, name, None) or functional.reduce_scatter_tensor
    part = collective(x.movedim(dim, 0).contiguous(), "sum", 0, group_of(axis))
    return lambda: functional.wait_tensor(part).movedim(0, dim)


def own_part(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return this process's part of a whole tensor, of equal parts in `dim`."""
    return x.chunk(axis.size, dim)[axis.rank]


def exchanged(x: Tensor, axis: Processes) -> Tensor:
    """Send part i of a tensor to process i, and return what each process sent, in their order.

    Args:
      x: a tensor [processes, ...].
      axis: the processes.
    """
    if axis.is_planned:
        return planned_exchange(x, axis)
    return _functional().all_to_all_single_autograd(x.contiguous(), None, None, group_of(axis))


def planned_exchange(x: Tensor, axis: Processes) -> Tensor:
    """Return a tensor in place of what other processes would send, as much as they would."""

    def send(x: Tensor) -> Tensor:
        axis.record("exchange", x.nbytes)
        return x.clone()

    return collective(x, send, send)


def group_of(axis: Processes) -> dist.ProcessGroup:
    """Return the process group of an axis."""
    group = dist.group.WORLD if axis.group is None else axis.group
    assert group is not None
    return group


def _functional() -> Any:
    """Return torch's functional collectives, whose module has no public name yet."""
    from torch.distributed import _functional_collectives

    return _functional_collectives


class _Collective(torch.autograd.Function):
    """A collective, and another one that turns the gradient of its output into its input's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Function, backward: Function) -> Tensor:
        ctx.gradient_of = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return ctx.gradient_of(outer[0]), None, None


def collective(x: Tensor, forward: Function, backward: Function) -> Tensor:
    """Return `forward(x)`, whose gradient `backward` turns into the gradient of `x`."""
    return _Collective.apply(x, forward, backward)


def copied(x: Tensor, axis: Processes) -> Tensor:
    """Return a whole tensor, which enters a computation that is divided over an axis."""
    return collective(x, lambda x: x.view_as(x), lambda outer: all_sum(outer, axis))


def summed(x: Tensor, axis: Processes) -> Tensor:
    """Return the sum of what a divided computation gives."""
    return collective(x, lambda x: all_sum(x, axis), lambda outer: outer)


def gathered(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return a whole tensor from parts, which enters a divided computation."""
    # Contiguous: of a strided tensor, each projection would keep a copy for its backward pass.
    return collective(
        x,
        lambda x: all_gather(x, axis, dim).contiguous(),
        lambda outer: sum_scatter(outer, axis, dim),
    )


def scattered(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return this process's part of the sum of what a divided computation gives."""
    return collective(
        x, lambda x: sum_scatter(x, axis, dim), lambda outer: all_gather(outer, axis, dim)
    )


def joined(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return a whole tensor from parts, which enters a computation that all processes repeat."""
    # No view: FSDP warns of those that leave its modules, as this does with the last block.
    return collective(
        x,
        lambda x: all_gather(x, axis, dim).clone(memory_format=torch.contiguous_format),
        lambda outer: own_part(outer, axis, dim),
    )


def sliced(x: Tensor, axis: Processes, dim: int) -> Tensor:
    """Return this process's part of what all processes have computed."""
    return collective(
        x, lambda x: own_part(x, axis, dim).contiguous(), lambda outer: all_gather(outer, axis, dim)
    )


def begin_exchange(
    x: Tensor, axis: Processes, sent: Sequence[int], received: Sequence[int]
) -> Pending:
    """Begin to send rows to all processes, in their order; each may get any number of them.

    What is computed before it is waited for runs beside it, and so does its gradient beside the
    exchange of gradients, which are sent back.

    Args:
      x: rows [rows, ...], the rows for the first process first.
      axis: the processes.
      sent: number of rows for each process.
      received: number of rows from each process.
    """
    under_way: list[Pending] = []
    arriving = _Sent.apply(x, axis, sent, received, under_way)
    return lambda: _Arrived.apply(arriving, axis, sent, received, under_way)


def _start_exchange(
    x: Tensor, axis: Processes, sent: Sequence[int], received: Sequence[int]
) -> Pending:
    arriving = x.new_empty(sum(received), *x.shape[1:])
    work = dist.all_to_all_single(
        arriving, x.contiguous(), [*received], [*sent], group=group_of(axis), async_op=True
    )
    assert work is not None
    return lambda: (work.wait(), arriving)[1]


class _Sent(torch.autograd.Function):
    """Begins an exchange, whose result is not there yet; waits for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        axis: Processes,
        sent: Sequence[int],
        received: Sequence[int],
        under_way: list[Pending],
    ) -> Tensor:
        ctx.under_way = under_way
        under_way.append(_start_exchange(x, axis, sent, received))
        return x.new_empty(()).expand(sum(received), *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return ctx.under_way.pop()(), None, None, None, None


class _Arrived(torch.autograd.Function):
    """Waits for an exchange; begins the gradient's exchange, which returns no gradient itself."""

    @staticmethod
    def forward(ctx: Any, arriving: Tensor, axis: Processes, *exchange: Any) -> Tensor:
        ctx.axis, (ctx.sent, ctx.received, ctx.under_way) = axis, exchange
        return ctx.under_way.pop()()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        ctx.under_way.append(_start_exchange(outer[0], ctx.axis, ctx.received, ctx.sent))
        return outer[0], None, None, None, None


# Returns the sum, or the numbers of all processes, once the all-reduce was started.
Handle = Callable[[], Tensor]


class FusedAllReduce:
    """Adds up numbers over the processes of a run, by one all-reduce beside other work.

    Reading a number from an accelerator waits for all queued work, and every collective has a
    latency that no bandwidth helps. So whatever processes have to know of each other in a step
    joins one of these: on every process the same values in the same order. Results are tensors on
    the device, which the device waits for and Python does not. Sums are made in float64. A single
    process keeps its own values, without a copy.

    Args:
      world: all processes of the run.
      tokens: the processes that compute different tokens.
      is_first_copy: whether this process is the first of those that compute the same tokens.
      device: of the numbers.
    """

    def __init__(
        self, world: Processes, *, tokens: Processes, is_first_copy: bool, device: torch.device
    ) -> None:
        self._world = world
        self._is_first_copy = is_first_copy
        self._device = device
        self._values: list[tuple[Tensor, bool]] = []
        self._sums: Sequence[Tensor] = ()
        self._joined: Tensor | None = None
        self._work: dist.Work | None = None
        # Whether anything is summed over more than one process.
        self._is_shared = tokens.size > 1

    def sum(self, value: Tensor | int | float) -> Handle:
        """Join a tensor or number to be summed over the processes that compute different tokens."""
        return self._join(self._tensor(value))

    def sum_everywhere(self, value: Tensor) -> Handle:
        """Join a tensor to be summed over all processes, those with the same tokens too."""
        self._is_shared = self._is_shared or self._world.size > 1
        return self._join(value.detach(), of_all=True)

    def gather(self, value: int | float) -> Handle:
        """Join a number; each process then knows the numbers of all: [processes]."""
        own, size = self._tensor(value).reshape(1), self._world.size
        if size == 1:
            return self._join(own)
        self._is_shared, rank = True, self._world.rank
        return self._join(F.pad(own, (rank, size - rank - 1)), of_all=True)

    def start(self) -> None:
        """Begin the all-reduce; nothing may join any more."""
        self._sums = [value for value, _ in self._values]
        if not self._is_shared or not self._values:
            return
        counted = [
            value if self._is_first_copy or of_all else torch.zeros_like(value)
            for value, of_all in self._values
        ]
        self._joined = torch.cat([value.flatten().double() for value in counted])
        self._work = dist.all_reduce(self._joined, async_op=True)

    def _result(self, number: int) -> Tensor:
        """Return the sums of what joined as the given one; the device waits for them."""
        if self._work is not None and self._joined is not None:
            self._work.wait()
            self._work = None
            parts = self._joined.split([value.numel() for value in self._sums])
            self._sums = [
                total.to(value.dtype).view(value.shape)
                for total, value in zip(parts, self._sums, strict=True)
            ]
        return self._sums[number]

    def _tensor(self, value: Tensor | int | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.detach()
        dtype = torch.float32 if self._world.size == 1 else torch.float64
        # Filled there: a copy from the CPU would wait for queued work.
        return torch.full((), value, dtype=dtype, device=self._device)

    def _join(self, value: Tensor, *, of_all: bool = False) -> Handle:
        self._values.append((value, of_all))
        return partial(self._result, len(self._values) - 1)
