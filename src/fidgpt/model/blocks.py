"""Transformer blocks: attention, an MLP and their norms."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, Stream
from fidgpt.model.fields import FieldModule, field_module
from fidgpt.ranges import require_factor, require_probability

__all__ = [
    "Block",
    "BlockSharing",
    "BlockWrapper",
    "FeedForward",
    "Gate",
    "Layer",
    "Mixer",
    "MixerPair",
    "NoMLP",
    "NoMixer",
    "Norm",
    "NormalizedResidualBlock",
    "OutputLayer",
    "ParallelBlock",
    "PostNormBlock",
    "SandwichBlock",
    "Shared",
    "StreamModule",
    "TokenwiseModule",
]


@runtime_checkable
class BlockWrapper(Protocol):
    """Changes how a block computes, but not the names of its parameters."""

    def __call__(self, block: nn.Module, /, *, layer: int) -> nn.Module:
        """Return the block of a layer, counted from 0, to be used in place of `block`."""
        ...


@runtime_checkable
class StreamModule(Protocol):
    """A module that computes on the tokens of a text together."""

    def forward(self, x: Stream, ctx: AttentionContext | None, /) -> Stream:
        """Return a vector for each token; see `AttentionContext`."""
        ...

    def __call__(self, x: Stream, ctx: AttentionContext | None, /) -> Stream:
        """Call `forward`, with torch's hooks."""
        ...


@runtime_checkable
class Mixer(StreamModule, Protocol):
    """A module that mixes tokens, such as `Attention` or a custom one."""


@runtime_checkable
class Layer(StreamModule, Protocol):
    """A layer of a model, which adds to the stream, such as `Block` or a custom one."""


BlockFactory = Callable[[], Layer]
BlockSharing = Callable[[BlockFactory], BlockFactory]


@runtime_checkable
class TokenwiseModule(Protocol):
    """A module that computes on each token alone, such as an MLP or a norm."""

    def forward(self, x: Float[Tensor, "*batch inner"], /) -> Float[Tensor, "*batch outer"]:
        """Return what becomes of each vector."""
        ...

    def __call__(self, x: Float[Tensor, "*batch inner"], /) -> Float[Tensor, "*batch outer"]:
        """Call `forward`, with torch's hooks."""
        ...


@runtime_checkable
class FeedForward(TokenwiseModule, Protocol):
    """An MLP, which computes on each token alone, such as `SwiGLU`, `MoE` or a custom one."""


@runtime_checkable
class Norm(TokenwiseModule, Protocol):
    """A module that normalizes each token alone, such as `RMSNorm` or a custom one."""


@runtime_checkable
class Gate(TokenwiseModule, Protocol):
    """A module that returns factors of the result of all heads, such as `OutputGate`."""


@runtime_checkable
class OutputLayer(TokenwiseModule, Protocol):
    """A module that maps features to logits, such as `Unembedding` or a custom one."""


class NoMLP(nn.Module):
    """An MLP that adds nothing, in layers of a mixer alone (Mamba 2)."""

    ROLE: ClassVar[str] = "FeedForward"

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        """Return zeros."""
        return torch.zeros_like(x)


class NoMixer(nn.Module):
    """A mixer that adds nothing, in layers of an MLP alone (Nemotron-H)."""

    ROLE: ClassVar[str] = "Mixer"

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return zeros."""
        return torch.zeros_like(x)


@field_module
class MixerPair(FieldModule):
    """The weighted sum of two mixers of one input (Falcon-H1, 2025, arXiv:2507.22448).

    Args:
      first: a mixer.
      second: another one.
      first_scale: factor of the first one's output.
      second_scale: factor of the second one's output.

    Raises:
      ValueError: a factor is 0 or not finite.
    """

    ROLE: ClassVar[str] = "Mixer"

    first: Mixer
    second: Mixer
    first_scale: float = 1.0
    second_scale: float = 1.0

    def __post_init__(self) -> None:
        require_factor(first_scale=self.first_scale, second_scale=self.second_scale)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        return self.first(x, ctx) * self.first_scale + self.second(x, ctx) * self.second_scale


@field_module
class Block(FieldModule):
    """A pre-norm block: attention, then an MLP, each added to the residual stream.

    Args:
      attention_norm: normalizes the input of attention.
      attention: mixes tokens; called with the stream and its context.
      mlp_norm: normalizes the input of the MLP.
      mlp: computes on each token alone; called with the stream, and with its context too if it
        declares `takes_context`.
      dropout: probability of dropping an element of either branch in training.
      branch_scale: factor of the output of either branch.

    Raises:
      ValueError: dropout is not in [0, 1), or branch_scale is 0 or not finite.
    """

    ROLE: ClassVar[str] = "Layer"
    ELEMENTWISE_STREAM: ClassVar[bool] = True  # between its children, tokens do not meet

    attention_norm: Norm
    attention: Mixer
    mlp_norm: Norm
    mlp: FeedForward
    dropout: float = 0.0
    branch_scale: float = 1.0

    def __post_init__(self) -> None:
        require_probability(dropout=self.dropout)
        require_factor(branch_scale=self.branch_scale)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the stream after this layer."""
        x = x + self._branch(self.attention(self.attention_norm(x), ctx))
        return x + self._branch(self._compute(self.mlp_norm(x), ctx))

    def _compute(self, x: Stream, ctx: AttentionContext | None) -> Stream:
        """Return the output of the MLP, which may need to know which tokens are padding."""
        mlp: Any = self.mlp
        return mlp(x, ctx=ctx) if getattr(mlp, "takes_context", False) else mlp(x)

    def _branch(self, out: Stream) -> Stream:
        """Return the summand of a branch, scaled and with dropout."""
        if self.training and self.dropout:
            out = F.dropout(out, self.dropout)
        return out if self.branch_scale == 1.0 else out * self.branch_scale


class PostNormBlock(Block):
    """Norms after each branch instead of before it (OLMo 2, arXiv:2501.00656)."""

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the stream after this layer."""
        x = x + self._branch(self.attention_norm(self.attention(x, ctx)))
        return x + self._branch(self.mlp_norm(self._compute(x, ctx)))


@field_module
class NormalizedResidualBlock(Block):
    """A block whose branches are added to their normalized input, as in MiniMax-01.

    `x = norm(x)`, then `x = residual * x + branch(x)`, for both branches (2025, arXiv:2501.08313,
    section 2.2, after DeepNorm: Wang et al., 2022, arXiv:2203.00555).

    Args:
      attention_norm: normalizes the stream before attention.
      attention: mixes tokens; called with the stream and its context.
      mlp_norm: normalizes the stream before the MLP.
      mlp: computes on each token alone.
      dropout: probability of dropping an element of either branch in training.
      branch_scale: factor of the output of either branch.
      attention_residual: factor of what attention is added to.
      mlp_residual: factor of what the MLP is added to.
    """

    attention_residual: float = 1.0
    mlp_residual: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_factor(attention_residual=self.attention_residual, mlp_residual=self.mlp_residual)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the stream after this layer."""
        x = self.attention_norm(x)
        x = x * self.attention_residual + self._branch(self.attention(x, ctx))
        x = self.mlp_norm(x)
        return x * self.mlp_residual + self._branch(self._compute(x, ctx))


@field_module
class ParallelBlock(Block):
    """Attention and MLP in parallel on one input (GPT-J; PaLM, section 2).

    Args:
      attention_norm: normalizes the input of attention.
      attention: mixes tokens; called with the stream and its context.
      mlp_norm: normalizes the input of the MLP; None for the input of attention (Cohere, Falcon).
      mlp: computes on each token alone.
      dropout: probability of dropping an element of the branches in training.
      branch_scale: factor of the output of the branches.
    """

    mlp_norm: Norm | None  # pyright: ignore[reportIncompatibleVariableOverride]

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the stream after this layer."""
        attended = self.attention(normed := self.attention_norm(x), ctx)
        normed = normed if self.mlp_norm is None else self.mlp_norm(x)
        return x + self._branch(attended + self._compute(normed, ctx))


@field_module
class SandwichBlock(Block):
    """Norms before and after each branch (Ding et al., 2021; Gemma 2).

    Args:
      attention_norm: normalizes the input of attention.
      attention: mixes tokens; called with the stream and its context.
      attention_out_norm: normalizes the output of attention.
      mlp_norm: normalizes the input of the MLP.
      mlp: computes on each token alone.
      mlp_out_norm: normalizes the output of the MLP.
      dropout: probability of dropping an element of either branch in training.
      branch_scale: factor of the output of either branch.
    """

    attention_out_norm: Norm
    mlp_out_norm: Norm

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the stream after this layer."""
        attended = self.attention(self.attention_norm(x), ctx)
        x = x + self._branch(self.attention_out_norm(attended))
        computed = self._compute(self.mlp_norm(x), ctx)
        return x + self._branch(self.mlp_out_norm(computed))


class Shared:
    """A factory that returns the same block for all layers (ALBERT, arXiv:1909.11942).

    Args:
      block: creates the block.
    """

    def __init__(self, block: BlockFactory) -> None:
        self._make = block
        self._made: Layer | None = None

    def __call__(self) -> Layer:
        """Return the shared block, created on the first call."""
        if self._made is None:
            self._made = self._make()
        return self._made
