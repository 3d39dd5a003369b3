"""Where the states of recurrent layers are reset, and which tokens they pass over."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fidgpt.model.context import AttentionContext


@dataclass(frozen=True, eq=False)
class Segments:
    """The documents of rows of tokens.

    Attributes:
      numbers: number of each token's document, [rows, seq]: 0 for the one of the state before these
        tokens, and 1, 2, ... for those that begin among them.
      real: whether each token is no padding, which leaves a state as it is, [rows, seq].
      begins: whether each token is the first one of its document, [rows, seq].
    """

    numbers: Int[Tensor, "rows seq"]
    real: Bool[Tensor, "rows seq"]
    begins: Bool[Tensor, "rows seq"]

    @classmethod
    def of(cls, ctx: AttentionContext) -> "Segments | None":
        """Return the documents of a context; None if rows are known to be parts of one each."""
        return None if ctx.contiguous else ctx.cached("segments", lambda: cls._in(ctx.positions))

    @classmethod
    def _in(cls, positions: Int[Tensor, "rows seq"]) -> "Segments":
        begins = positions == 0
        return cls(begins.cumsum(1), positions >= 0, begins)

    def without_padding(self, x: Float[Tensor, "batch seq *sizes"]) -> Tensor:
        """Return a tensor that is zero at padding."""
        return torch.where(spread(self.real, x), x, 0.0)


def spread(mask: Bool[Tensor, "rows seq"], x: Float[Tensor, "batch seq *sizes"]) -> Tensor:
    """Return a mask of tokens with as many dimensions as `x` has."""
    return mask.view(*mask.shape, *(1,) * (x.dim() - 2))
