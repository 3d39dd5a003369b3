"""Products of rows with the matrix of the group that each belongs to."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from fidgpt.model import cpu

__all__ = ["Groups"]

_ALIGNMENT = 16  # bytes to which torch's kernels require rows to be aligned
_OVERHEAD = 2**21  # multiply-adds that take as long as a product takes to begin
_MULTIPLE = 16  # every number of rows is a multiple of it
_MIN_GAIN = 1.3  # of a layout, since rows are copied to their slots and back
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Inside = Float[Tensor, "rows inside"]
Outside = Float[Tensor, "rows outside"]
Matrices = Float[Tensor, "groups outside inside"]
Biases = Float[Tensor, "groups outside"]


class Groups(NamedTuple):
    """The assignment of rows to groups.

    Attributes:
      owners: group of each row, in ascending order.
      ends: end offset of each group, exclusive.
      filled: number of rows of each group that hold a token, its first ones; None if all do.
    """

    owners: Int64[Tensor, " rows"]
    ends: Int32[Tensor, " groups"]
    filled: Int64[Tensor, " groups"] | None = None

    def sizes(self) -> list[int]:
        """Return the number of rows of each group; synchronizes with the device."""
        return _sizes(self.ends)


def grouped_linear(
    rows: Inside, weight: Matrices, groups: Groups, bias: Biases | None = None
) -> Outside:
    """Compute `y = x W_g^T + b_g` for each row x of group g; groups may be empty.

    Uses torch's grouped_mm if rows are aligned, except for bfloat16 on CPUs: see `_blocks`.
    """
    is_traced = rows.is_meta or torch.compiler.is_compiling()
    # The only dtype of its meta kernel is bfloat16.
    has_kernel = _has_kernel(rows, weight.shape[1:])
    if has_kernel and not _is_generated(rows) and not (is_traced and rows.dtype != torch.bfloat16):
        out = F.grouped_mm(rows, weight.mT, offs=groups.ends)
    elif is_traced:
        out = _linear_op(rows, weight, groups.ends)
    else:
        out = _Linear.apply(rows, weight, groups.ends)
    return out if bias is None else out + bias[groups.owners]


def _is_generated(rows: Tensor) -> bool:
    """Return whether oneDNN generates code for each number of rows that it multiplies."""
    if not cpu.ENABLED or rows.device.type != "cpu":
        return False
    if rows.dtype == torch.float32 and not torch.compiler.is_compiling():
        return torch.get_float32_matmul_precision() == "medium"  # products in bfloat16
    return rows.dtype == torch.bfloat16


def _has_kernel(rows: Tensor, widths: Iterable[int]) -> bool:
    """Return whether torch's grouped_mm supports rows of these widths."""
    is_aligned = not any(width * rows.element_size() % _ALIGNMENT for width in widths)
    return is_aligned and rows.dtype in _DTYPES


class _Layout(NamedTuple):
    """Slots for rows, so that one product computes most rows of all groups at once.

    The first `even` rows of each group are a batch [groups, even], padded with zeros, and the rest
    of longer groups follow. Measured in bfloat16 on an AMD EPYC, each product takes 10 to 20 us
    before it begins, and the first one of each shape half a millisecond more, as oneDNN generates
    its code; so all numbers of rows are multiples of 16.

    Attributes:
      even: rows of each group in the batch.
      sources: row of each slot; the number of rows for an empty slot.
      places: slot of each row.
      rest: groups with more rows, and the first and last slot of these.
    """

    even: int
    sources: Int64[Tensor, " slots"]
    places: Int64[Tensor, " rows"]
    rest: Sequence[tuple[int, int, int]]

    def spread(self, rows: Tensor) -> Tensor:
        """Return the rows by slot."""
        return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, self.sources)

    def batch(self, slots: Tensor) -> Tensor:
        """Return the batch of all groups, a view."""
        num_rest = sum(end - begin for _, begin, end in self.rest)
        return slots[: len(slots) - num_rest].unflatten(0, (-1, self.even))


@functools.lru_cache(maxsize=64)  # a layer asks nine times, and again in its backward pass
def _layout(sizes: tuple[int, ...], cells: int) -> _Layout | None:
    """Return the layout of groups whose matrices have so many cells; None if it gains nothing."""
    even = _even(sizes, _OVERHEAD // cells)
    if not even:
        return None
    begin, rest = even * len(sizes), list[tuple[int, int, int]]()
    for group, size in enumerate(sizes):
        if size > even:
            end = begin + _rounded(size - even)
            rest.append((group, begin, end))
            begin = end
    firsts = torch.arange(len(sizes)) * even
    behind = torch.zeros_like(firsts)
    for group, first, _ in rest:
        behind[group] = first - even
    numbers = torch.tensor(sizes)
    owners = torch.arange(len(sizes)).repeat_interleave(numbers)
    waiting = torch.arange(len(owners)) - (numbers.cumsum(0) - numbers)[owners]
    places = waiting + torch.where(waiting < even, firsts[owners], behind[owners])
    sources = torch.full((begin,), len(owners)).scatter_(0, places, torch.arange(len(owners)))
    return _Layout(even, sources, places, rest)


def _even(sizes: Sequence[int], overhead: int) -> int:
    """Return how many rows of each group to compute at once; 0 for one product per group.

    Args:
      sizes: rows of each group.
      overhead: as many rows as could be computed while a product begins.
    """
    best, least, behind = 0, sum(size + overhead for size in sizes if size) / _MIN_GAIN, 0
    for number, size in enumerate(sorted(sizes, reverse=True)):
        even = _rounded(size)
        cost = even * len(sizes) + overhead + max(0, behind + number * (overhead - even))
        if cost < least:
            best, least = even, cost
        behind += size
    return best


def _rounded(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def _blocks(rows: Tensor, ends: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the first and last row of each group, and a multiple of 16 rows from its first on.

    The rows behind the last one belong to other groups, or are zeros, so that a product of each
    needs no copies. With as many products as numbers of rows, oneDNN would generate code all the
    time, and keep hundreds of megabytes of it. Measured in bfloat16 on an AMD EPYC, 2,048 rows of
    16 groups whose sizes change took 6.2 ms at first and 3.5 ms later; with multiples of 16, 2.6.
    """
    begin = 0
    for end in ends.tolist():
        length = _rounded(end - begin)
        if missing := max(0, begin + length - len(rows)):
            yield begin, end, F.pad(rows[begin:], (0, 0, 0, missing))
        else:
            yield begin, end, rows.narrow(0, begin, length)
        begin = end


def _linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return the product of each row and the matrix of its group."""
    if not _is_generated(rows):
        if _has_kernel(rows, weight.shape[1:]):
            return F.grouped_mm(rows, weight.mT, offs=ends)
        parts = zip(rows.split(_sizes(ends)), weight, strict=True)
        return torch.cat([F.linear(part, matrix) for part, matrix in parts])
    layout = _layout(tuple(_sizes(ends)), weight.shape[1] * weight.shape[2])
    if layout is None:
        out = rows.new_empty(len(rows) + _MULTIPLE, weight.shape[1])
        for (begin, _, block), matrix in zip(_blocks(rows, ends), weight.mT.unbind(), strict=True):
            torch.mm(block, matrix, out=out.narrow(0, begin, len(block)))
        return out[: len(rows)]  # each group has overwritten what the one before it left there
    slots = layout.spread(rows)
    out = rows.new_empty(len(slots), weight.shape[1])
    torch.bmm(layout.batch(slots), weight.mT, out=layout.batch(out))
    for group, begin, end in layout.rest:
        torch.mm(slots[begin:end], weight[group].T, out=out[begin:end])
    return out.index_select(0, layout.places)


def _outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Return the sum of outer products over the rows of each group."""
    if not _is_generated(left):
        if _has_kernel(left, (left.shape[1], right.shape[1])):
            return F.grouped_mm(left.T, right, offs=ends)
        parts = zip(left.split(_sizes(ends)), right.split(_sizes(ends)), strict=True)
        return torch.stack([a.T @ b for a, b in parts])
    layout = _layout(tuple(_sizes(ends)), left.shape[1] * right.shape[1])
    if layout is None:
        out = left.new_zeros(len(ends), left.shape[1], right.shape[1])
        left = F.pad(left, (0, 0, 0, _MULTIPLE))  # a copy, in which rows are zeroed below
        blocks = zip(_blocks(right, ends), out.unbind(), strict=True)
        for (begin, end, block), matrix in reversed([*blocks]):
            if end > begin:
                left[end : begin + len(block)] = 0
                torch.mm(left.narrow(0, begin, len(block)).T, block, out=matrix)
        return out
    left, right = layout.spread(left), layout.spread(right)
    out = torch.bmm(layout.batch(left).mT, layout.batch(right))
    for group, begin, end in layout.rest:
        out[group].addmm_(left[begin:end].T, right[begin:end])
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, ends)
        return _linear(rows, weight, ends)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight, ends = ctx.saved_tensors
        of_rows, of_weight, _ = ctx.needs_input_grad
        return (
            _linear(outer[0], weight.mT, ends) if of_rows else None,
            _outer(outer[0], rows, ends) if of_weight else None,
            None,
        )


# The same as custom operators for torch.compile, to which sizes of groups are unknown; the first
# call of one imports the compiler.
_linear_op = torch.library.custom_op("fidgpt::grouped_linear", _linear, mutates_args=())
_outer_op = torch.library.custom_op("fidgpt::grouped_outer", _outer, mutates_args=())


@_linear_op.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@_outer_op.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(len(ends), left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weight, ends = ctx.saved_tensors
    return _linear_op(gradient, weight.mT, ends), _outer_op(gradient, rows, ends), None


_linear_op.register_autograd(_gradients, setup_context=_keep)


@register_flop_formula(torch.ops.fidgpt.grouped_linear)
def _linear_flops(rows: Sequence[int], weight: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * rows[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.fidgpt.grouped_outer)
def _outer_flops(left: Sequence[int], right: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * left[0] * left[1] * right[1]


def _sizes(ends: Tensor) -> list[int]:
    return ends.diff(prepend=ends.new_zeros(1)).tolist()
