"""A module on parts of rows, as processes of the axis `context` compute it, on one process.

What they would send each other is taken from a pass over the whole rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fidgpt.model.context import AttentionContext
from fidgpt.parallel.context import SplitContext, TokenSplit
from fidgpt.processes import Processes

__all__ = ["first_difference"]

_SIZE = 2  # processes


@dataclass(frozen=True, eq=False, kw_only=True)
class Recorded(AttentionContext):
    """A context that keeps what a module passes to `update_cache`, call by call."""

    sent: list[Sequence[Tensor]] = field(default_factory=list)

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Keep the tensors, and return them."""
        self.sent.append(new)
        return new


@dataclass(frozen=True, eq=False, kw_only=True)
class Rehearsed(SplitContext):
    """The context of a process's part of rows, which gets what a pass over them has sent."""

    sent: list[Sequence[Tensor]] = field(default_factory=list)

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Return the tensors of all processes."""
        return [part.index_select(-2, self.mapping.gathered) for part in self.sent.pop(0)]


def first_difference(
    call: Callable[[AttentionContext, Tensor, Tensor], Tensor],
    ctx: AttentionContext,
    tokens: Tensor,
    x: Tensor,
    *,
    bound: float,
) -> int | None:
    """Return the first token whose output differs if processes share the rows; None if none.

    Args:
      call: computes the module, from a context, tokens [batch, seq] and a stream of these.
      ctx: of whole rows.
      tokens: whole rows, of a number of tokens that 4 divides.
      x: the stream [batch, seq, hidden].
      bound: largest error, relative to the largest output.
    """
    recorded = Recorded(ctx.positions, ctx.documents, ctx.contiguous, ctx.tokens)
    out = call(recorded, tokens, x)
    wrong: list[int] = []
    for index in range(_SIZE):
        split = TokenSplit.in_zigzag(tokens.shape[1], _SIZE)
        part = replace(Rehearsed.of(ctx, split, Processes(_SIZE, index)), sent=[*recorded.sent])
        columns = part.mapping.own
        own = call(part, tokens[:, columns], x[:, columns])
        error = (own - out[:, columns]).abs().amax((0, 2))
        wrong += columns[error > bound * out.abs().max()].tolist()
    return min(wrong, default=None)
