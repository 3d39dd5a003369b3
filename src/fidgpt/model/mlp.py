"""What a block does to each token alone: GELU and gated MLPs."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear


def multiple_of(*, multiple: int, value: int | float) -> int:
    """The smallest multiple of `multiple` that is at least `value`: sizes that hardware likes."""
    return -int(-value // multiple) * multiple


def gated_ffn_dim(*, hidden_dim: int, multiple: int = 64) -> int:
    """Width at which a gated MLP has as many parameters as a plain one of 4 * hidden_dim.

    Three matrices in place of two make it 8 / 3 of hidden_dim (Shazeer, 2020, section 2), rounded
    up to a multiple of `multiple`.
    """
    return multiple_of(multiple=multiple, value=8 * hidden_dim / 3)


class GELU(nn.Module):
    """`down(gelu(up(x)))`, with the tanh form of GELU that GPT-2 was trained with.

    Args:
      hidden_dim: width of the residual stream.
      ffn_dim: width inside; 4 * hidden_dim unless said.
      bias: adds a bias to both projections.
      init: start of the projection up.
      out_init: start of the projection down, `init` unless said.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        ffn_dim: int | None = None,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        ffn_dim = 4 * hidden_dim if ffn_dim is None else ffn_dim
        self.up = Linear(hidden_dim, ffn_dim, bias=bias, init=init)
        self.down = Linear(ffn_dim, hidden_dim, bias=bias, init=out_init or init)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))` (Shazeer, 2020, https://arxiv.org/abs/2002.05202).

    Args:
      hidden_dim: width of the residual stream.
      ffn_dim: width inside; `gated_ffn_dim` of the width unless said.
      bias: adds a bias to all three projections.
      init: start of the gate and the projection up.
      out_init: start of the projection down, `init` unless said.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        ffn_dim: int | None = None,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        ffn_dim = gated_ffn_dim(hidden_dim=hidden_dim) if ffn_dim is None else ffn_dim
        self.gate = Linear(hidden_dim, ffn_dim, bias=bias, init=init)
        self.up = Linear(hidden_dim, ffn_dim, bias=bias, init=init)
        self.down = Linear(ffn_dim, hidden_dim, bias=bias, init=out_init or init)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))
