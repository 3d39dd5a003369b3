"""A layer of the decoder: attention and an MLP, and where their norms stand."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext
from fidgpt.ranges import require_factor, require_probability

Stream = Float[Tensor, "batch seq hidden"]
BlockFactory = Callable[[], nn.Module]


@runtime_checkable
class Mixer(Protocol):
    """A module that lets tokens look at each other, such as Attention or one of your own."""

    def forward(self, x: Stream, layout: AttentionContext | None, /) -> Stream:
        """What is added to the stream; tokens stand as `layout` says, from 0 on without one."""
        ...

    def __call__(self, x: Stream, layout: AttentionContext | None, /) -> Stream:
        """The same: what torch makes of `forward`."""
        ...


class Block(nn.Module):
    """One layer: attention, then an MLP, each normalised before and added to the stream.

    Args:
      attention_norm: normalises what attention reads.
      attention: mixes tokens; called with the stream and its layout.
      mlp_norm: normalises what the MLP reads.
      mlp: works on each token alone.
      dropout: probability of dropping an element of either branch in training.
      branch_scale: of what either branch adds to the stream.

    Raises:
      ValueError: dropout is not from 0 to below 1, or branch_scale 0 or not finite.
    """

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: Mixer,
        mlp_norm: nn.Module,
        mlp: nn.Module,
        dropout: float = 0.0,
        branch_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.check_arguments(dropout=dropout, branch_scale=branch_scale)
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.dropout = dropout
        self.branch_scale = branch_scale

    @staticmethod
    def check_arguments(*, dropout: float, branch_scale: float) -> None:
        """Raises ValueError unless dropout is from 0 to below 1, and branch_scale is not 0."""
        require_probability("dropout", dropout)
        require_factor("branch_scale", branch_scale)

    def forward(self, x: Stream, layout: AttentionContext | None = None) -> Stream:
        """The stream after this layer; its tokens stand as `layout` says, from 0 on unless said."""
        x = x + self._branch(self.attention(self.attention_norm(x), layout))
        return x + self._branch(self.mlp(self.mlp_norm(x)))

    def _branch(self, out: Stream) -> Stream:
        """What is added to the stream."""
        if self.training and self.dropout:
            out = F.dropout(out, self.dropout)
        return out if self.branch_scale == 1.0 else out * self.branch_scale


class PostNormBlock(Block):
    """Normalises what each branch gives rather than what it reads (OLMo 2, arXiv:2501.00656)."""

    def forward(self, x: Stream, layout: AttentionContext | None = None) -> Stream:
        """The stream after this layer."""
        x = x + self._branch(self.attention_norm(self.attention(x, layout)))
        return x + self._branch(self.mlp_norm(self.mlp(x)))


class ParallelBlock(Block):
    """Attention and MLP read the same stream, so that neither waits (GPT-J; PaLM, section 2)."""

    def forward(self, x: Stream, layout: AttentionContext | None = None) -> Stream:
        """The stream after this layer."""
        attended = self.attention(self.attention_norm(x), layout)
        return x + self._branch(attended + self.mlp(self.mlp_norm(x)))


class SandwichBlock(Block):
    """Normalises what each branch reads and what it gives (Ding et al., 2021; Gemma 2).

    Args:
      attention_norm: normalises what attention reads.
      attention: mixes tokens; called with the stream and its layout.
      attention_out_norm: normalises what attention gives.
      mlp_norm: normalises what the MLP reads.
      mlp: works on each token alone.
      mlp_out_norm: normalises what the MLP gives.
      dropout: probability of dropping an element of either branch in training.
      branch_scale: of what either branch adds to the stream.
    """

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: Mixer,
        attention_out_norm: nn.Module,
        mlp_norm: nn.Module,
        mlp: nn.Module,
        mlp_out_norm: nn.Module,
        dropout: float = 0.0,
        branch_scale: float = 1.0,
    ) -> None:
        super().__init__(
            attention_norm=attention_norm,
            attention=attention,
            mlp_norm=mlp_norm,
            mlp=mlp,
            dropout=dropout,
            branch_scale=branch_scale,
        )
        self.attention_out_norm = attention_out_norm
        self.mlp_out_norm = mlp_out_norm

    def forward(self, x: Stream, layout: AttentionContext | None = None) -> Stream:
        """The stream after this layer."""
        attended = self.attention(self.attention_norm(x), layout)
        x = x + self._branch(self.attention_out_norm(attended))
        return x + self._branch(self.mlp_out_norm(self.mlp(self.mlp_norm(x))))


class Shared:
    """A factory that makes one block and gives it to every layer (ALBERT, arXiv:1909.11942).

    Args:
      block: makes it.
    """

    def __init__(self, block: BlockFactory) -> None:
        self._make = block
        self._made: nn.Module | None = None

    def __call__(self) -> nn.Module:
        """The one block."""
        if self._made is None:
            self._made = self._make()
        return self._made
