"""Products of rows with the matrix of the group that each belongs to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32, Int64
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

__all__ = ["Groups"]

_ALIGNMENT = 16  # bytes to which torch's kernels require rows to be aligned
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

    Uses torch's grouped_mm if rows are aligned, which takes 10% to 25% less time than one product
    per group (forward and backward in float32 on one core of an AMD EPYC).
    """
    if _takes(rows, weight):
        out = F.grouped_mm(rows, weight.transpose(-2, -1), offs=groups.ends)
    else:
        out = _by_loop(rows, weight, groups.ends)
    return out if bias is None else out + bias[groups.owners]


def _takes(rows: Tensor, weight: Tensor) -> bool:
    """Return whether torch's grouped_mm supports these tensors in the current mode."""
    if any(size * rows.element_size() % _ALIGNMENT for size in weight.shape[1:]):
        return False
    if rows.is_meta or torch.compiler.is_compiling():
        return rows.dtype == torch.bfloat16  # the only dtype of its meta kernel
    return rows.dtype in _DTYPES


@torch.library.custom_op("fidgpt::grouped_linear", mutates_args=())
def _by_loop(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    # A custom operator, because group sizes are unknown to torch.compile.
    parts = zip(rows.split(_sizes(ends)), weight, strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts])


@_by_loop.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@torch.library.custom_op("fidgpt::grouped_outer", mutates_args=())
def _outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Return the sum of outer products over the rows of each group."""
    sizes = _sizes(ends)
    return torch.stack(
        [a.T @ b for a, b in zip(left.split(sizes), right.split(sizes), strict=True)]
    )


@_outer.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(len(ends), left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weight, ends = ctx.saved_tensors
    return _by_loop(gradient, weight.mT, ends), _outer(gradient, rows, ends), None


_by_loop.register_autograd(_gradients, setup_context=_keep)


@register_flop_formula(torch.ops.fidgpt.grouped_linear)
def _linear_flops(rows: Sequence[int], weight: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * rows[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.fidgpt.grouped_outer)
def _outer_flops(left: Sequence[int], right: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * left[0] * left[1] * right[1]


def _sizes(ends: Tensor) -> list[int]:
    return ends.diff(prepend=ends.new_zeros(1)).tolist()
