"""Context parallelism: the tokens of each sequence are split over the processes of an axis.

All of a model but attention computes on each token alone. Attention gets the keys and values of
other processes by `AttentionContext.update_cache`, where generation gets the keys and values of
earlier tokens. Masks, biases and rotations are functions of positions and documents, which every
process has of all tokens, so they are the same as in one process.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, TokenPositions, Tokens
from fidgpt.model.kernels import Kernel, Keys, Mixed, Queries, Scoring, Values
from fidgpt.parallel.axes import Axis, AxisPart, MeshSizes
from fidgpt.processes import Processes
from fidgpt.processes.collectives import exchanged, gathered

__all__ = ["CONTEXT", "GatheredContext", "UlyssesContext"]

CONTEXT = Axis(name="context", splits_sequences=True, joins_shards=True)

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TokenSplit:
    """Which columns of a sequence each process computes.

    Attributes:
      ranges: ascending ranges of columns, each from its first to after its last, of each process.
    """

    ranges: tuple[Ranges, ...]

    @classmethod
    def in_zigzag(cls, num_columns: int, size: int) -> "TokenSplit":
        """Give each process one chunk from the begin and one from the end of a sequence.

        Under a causal mask all processes then have the same number of pairs of query and key.
        """
        ends = [num_columns * chunk // (2 * size) for chunk in range(2 * size + 1)]
        chunks = [*itertools.pairwise(ends)]
        return cls(tuple((chunks[i], chunks[-1 - i]) for i in range(size)))

    @classmethod
    def in_order(cls, num_columns: int, size: int) -> "TokenSplit":
        """Give each process one chunk."""
        ends = [num_columns * chunk // size for chunk in range(size + 1)]
        return cls(tuple((chunk,) for chunk in itertools.pairwise(ends)))

    def between(self, begin: int, end: int) -> "TokenSplit":
        """Return the split of columns from `begin` to `end`, counted from `begin`."""
        return TokenSplit(
            tuple(
                tuple(
                    (max(first, begin) - begin, min(last, end) - begin)
                    for first, last in ranges
                    if max(first, begin) < min(last, end)
                )
                for ranges in self.ranges
            )
        )

    @property
    def longest(self) -> int:
        """The largest number of columns of a process."""
        return max(sum(last - first for first, last in ranges) for ranges in self.ranges)


@dataclass(frozen=True, eq=False)
class ColumnMap:
    """The columns of a split on a device.

    Attributes:
      own: the columns of this process, ascending.
      gathered: the columns of all processes in turn, -1 where one has fewer than the longest.
      order: where each column is among those gathered; None if they are in order.
    """

    own: Int64[Tensor, " own"]
    gathered: Int64[Tensor, " keys"]
    order: Int64[Tensor, " columns"] | None


@functools.lru_cache(maxsize=256)
def _columns(split: TokenSplit, index: int, device: torch.device) -> ColumnMap:
    each = [
        torch.cat([torch.arange(0), *(torch.arange(*limits) for limits in ranges)])
        for ranges in split.ranges
    ]
    padded = [F.pad(part, (0, split.longest - len(part)), value=-1) for part in each]
    gathered, order = torch.cat(padded), None
    if not torch.equal(gathered, torch.arange(len(gathered))):
        places = gathered.argsort(stable=True)
        order = places[gathered[places] >= 0].to(device)
    return ColumnMap(each[index].to(device), gathered.to(device), order)


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitContext(AttentionContext):
    """The context of one process's tokens, whose attention sees the tokens of all processes.

    Attributes:
      whole: context of all tokens.
      split: which of them each process computes.
      axis: the processes.
      mapping: the columns of the split.
      keys: positions of the tokens of all processes in turn.
    """

    whole: AttentionContext
    split: TokenSplit
    axis: Processes
    mapping: ColumnMap
    keys: TokenPositions

    @classmethod
    def of(cls, whole: AttentionContext, split: TokenSplit, axis: Processes) -> "SplitContext":
        """Return the context of this process's tokens."""
        mapping = _columns(split, axis.rank, whole.positions.device)
        gathered = mapping.gathered.clamp_min(0)
        keys = TokenPositions(
            whole.positions.index_select(1, gathered).masked_fill(mapping.gathered < 0, -1),
            None if whole.documents is None else whole.documents.index_select(1, gathered),
        )
        return cls(
            contiguous=whole.contiguous,
            whole=whole,
            split=split,
            axis=axis,
            mapping=mapping,
            keys=keys,
            **whole.each_token(lambda x: x.index_select(1, mapping.own)),
        )

    @property
    def num_columns(self) -> int:
        """Number of tokens of a whole row."""
        return len(self.whole)

    @property
    def real_of_rows(self) -> Tensor | None:
        """Whether each token of whole rows is no padding; None if all are."""
        return self.whole.real

    def columns(self, begin: int, end: int, *, ahead: int = 0, also: int = 0) -> "SplitContext":
        """Return the context of this process's columns among the columns of a whole row."""
        whole = self.whole.columns(begin, end, ahead=ahead, also=also)
        return type(self).of(whole, self.split.between(begin, end), self.axis)

    def own(self, x: Tensor) -> Tensor:
        """Return the columns of a tensor [batch, seq] of whole rows that this process computes."""
        return x.index_select(1, _columns(self.split, self.axis.rank, x.device).own)

    @property
    def spans(self) -> Ranges:
        """The ranges of a whole row that this process computes."""
        return self.split.ranges[self.axis.rank]

    def in_order(self, x: Tensor) -> Tensor:
        """Return gathered tensors [..., keys, size] in the order of a whole row."""
        order = self.mapping.order
        return x if order is None else x.index_select(-2, order)

    @property
    def rows(self) -> AttentionContext:
        """The context of all tokens."""
        return self.whole

    def whole_rows(self, new: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors of all tokens, each of which this process has a part of."""
        return [self.in_order(part) for part in SplitContext.update_cache(self, None, new)]

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Return the tensors of the tokens of all processes, in the order of `key_positions`."""
        if len({part.shape[:-1] for part in new}) > 1:
            return [self._gathered(part) for part in new]
        joined = self._gathered(torch.cat([*new], dim=-1))  # one collective instead of several
        return joined.split([part.shape[-1] for part in new], dim=-1)

    def key_positions(self, window: int | None = None) -> TokenPositions:
        """Return the positions of the tokens of all processes."""
        return self.keys

    def _gathered(self, part: Tensor) -> Tensor:
        return gathered(self.padded(part), self.axis, -2)

    def padded(self, part: Tensor) -> Tensor:
        """Return a tensor [..., seq, size] with as many columns as the longest process has."""
        missing = self.split.longest - part.shape[-2]
        return F.pad(part, (0, 0, 0, missing)) if missing else part


class UlyssesSplit(SplitContext):
    """A context in which kernels that `UlyssesKernel` wraps see all tokens of some heads."""

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Return the tensors as they are for such kernels, and gathered for other owners."""
        if isinstance(getattr(owner, "kernel", None), UlyssesKernel):
            return new
        return super().update_cache(owner, new, window=window)


class UlyssesKernel:
    """Computes a kernel on all tokens of some heads, instead of some tokens of all heads.

    Query heads are split evenly. Key heads are repeated if there are fewer than processes.

    Args:
      kernel: computes attention.
      axis: the processes.
    """

    def __init__(self, kernel: Kernel, axis: Processes) -> None:
        self.kernel = kernel
        self.axis = axis

    def __call__(self, query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
        """Return the weighted values of this process's queries, for all heads."""
        ctx = scoring.ctx
        if not isinstance(ctx, UlyssesSplit):
            return self.kernel(query, key, value, scoring)
        size, heads = self.axis.size, query.shape[1]
        repeats = math.lcm(key.shape[1], size) // key.shape[1]
        key, value = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (key, value))
        if key.shape[-1] == value.shape[-1]:
            query, key, value = self._by_heads(ctx, query, key, value)
        else:
            query, key = self._by_heads(ctx, query, key)
            (value,) = self._by_heads(ctx, value)
        first = heads // size * self.axis.rank
        sinks = scoring.sinks
        place, parts = scoring.split_place
        own = replace(
            scoring,
            ctx=ctx.whole,
            split_place=(place * size + self.axis.rank, parts * size),
            sinks=None if sinks is None else sinks[first : first + heads // size],
        )
        return self._by_tokens(ctx, self.kernel(query, key, value, own))

    def _by_heads(self, ctx: UlyssesSplit, *parts: Tensor) -> Sequence[Tensor]:
        """Return all tokens of this process's heads; one collective for tensors of one size."""
        split = [ctx.padded(part).unflatten(1, (self.axis.size, -1)) for part in parts]
        sent = torch.cat(split, dim=2).movedim(1, 0)
        received = exchanged(sent, self.axis).movedim(0, 2).flatten(2, 3)
        order = ctx.mapping.order
        received = received if order is None else received.index_select(2, order)
        return received.split([part.shape[2] for part in split], dim=1)

    def _by_tokens(self, ctx: UlyssesSplit, mixed: Mixed) -> Mixed:
        """Return all heads of this process's tokens."""
        if ctx.mapping.order is not None:
            mixed = mixed.index_select(2, ctx.mapping.gathered.clamp_min(0))
        sent = mixed.unflatten(2, (self.axis.size, -1)).movedim(2, 0)
        received = exchanged(sent, self.axis).movedim(0, 1).flatten(1, 2)
        return received[:, :, : len(ctx)]


class _Division:
    """Splits contexts over the processes of an axis."""

    def __init__(self, kind: type[SplitContext], split: Any, axis: Processes) -> None:
        self._kind = kind
        self._split = split
        self._axis = axis

    def __call__(self, ctx: AttentionContext, tokens: Tokens) -> SplitContext:
        """Return the context of this process's part of whole rows of tokens."""
        whole = ctx if ctx.tokens is not None else replace(ctx, tokens=tokens)
        return self._kind.of(whole, self._split(len(ctx), self._axis.size), self._axis)

    def own(self, x: Tensor) -> Tensor:
        """Return the columns of a tensor [batch, seq] of whole rows that this process computes."""
        split = self._split(x.shape[1], self._axis.size)
        return x.index_select(1, _columns(split, self._axis.rank, x.device).own)


class GatheredContext(AxisPart):
    """Context parallelism by gathering keys and values: each process has the queries of its tokens.

    The backward pass sums the gradients of keys and values (reduce-scatter). As in the training of
    Llama 3 (Grattafiori et al., 2024, arXiv:2407.21783, section 3.3.2), a process has one chunk
    from the begin and one from the end of each sequence, so that causal masks leave all the same
    work. Any attention works that calls `update_cache`, with any number of heads.
    """

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError if sequences cannot be split evenly."""
        size = mesh[CONTEXT]
        if seq_len % (2 * size):
            raise ValueError(
                f"{seq_len=} must be a multiple of {2 * size}, two chunks for each of the "
                f"context={size} processes; change seq_len or the size of the axis."
            )

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Make a model compute this process's tokens."""
        vars(model)["division"] = _Division(SplitContext, TokenSplit.in_zigzag, axis)


class UlyssesContext(AxisPart):
    """Context parallelism by exchanging tokens for heads around attention (DeepSpeed-Ulysses).

    Queries, keys and values are sent by one all-to-all, so that each process has all tokens of some
    heads, and results by another (Jacobs et al., 2023, arXiv:2309.14509). This communicates less
    than gathering does if there are many processes, and kernels for plain causal attention apply;
    the number of heads must be a multiple of the number of processes. Attention that has no
    `kernel` is computed as by `GatheredContext`.
    """

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError if sequences or heads cannot be split evenly."""
        size = mesh[CONTEXT]
        splits = [axis for axis in mesh.axes() if axis.splits_heads and mesh[axis] > 1]
        parts = math.prod([size, *(mesh[axis] for axis in splits)])
        if seq_len % size:
            raise ValueError(
                f"{seq_len=} must be a multiple of the context={size} processes; change one of "
                "them."
            )
        for name, module in _with_kernels(model):
            heads = getattr(module, "num_heads", parts)
            if heads % parts:
                by = " * ".join([f"context={size}", *(f"{a.name}={mesh[a]}" for a in splits)])
                raise ValueError(
                    f"num_heads={heads} of {name} must be a multiple of the {by} "
                    "processes among which Ulysses splits heads; use a size that divides it, or "
                    "GatheredContext, which does not split heads."
                )

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Make a model compute this process's tokens."""
        for _, module in _with_kernels(model):
            if not isinstance(module.kernel, UlyssesKernel):
                module.kernel = UlyssesKernel(module.kernel, axis)
        vars(model)["division"] = _Division(UlyssesSplit, TokenSplit.in_order, axis)


def _with_kernels(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the attentions whose kernel can be replaced, by path."""
    named = [*model.named_modules()]
    return [(name, module) for name, module in named if callable(getattr(module, "kernel", None))]
