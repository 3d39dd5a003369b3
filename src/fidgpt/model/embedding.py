"""Tokens in, scores out: the token table and the two parts that use it."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidgpt.model.context import AttentionContext, one_document
from fidgpt.model.init import GPT2_NORMAL, Constant, Init, with_init
from fidgpt.ranges import require_factor, require_positive, require_size

HALF = Constant(0.5)


def token_table(*, vocab_size: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> nn.Parameter:
    """One vector for each token, as a parameter of shape [vocab_size, hidden_dim].

    It is a part of its own so that `Embedding` and `Unembedding` can hold the same one (Press and
    Wolf, 2017, arXiv:1608.05859): weights are tied by sharing, never by a flag.

    Raises:
      ValueError: a size is below 1.
    """
    require_size("vocab_size", vocab_size)
    require_size("hidden_dim", hidden_dim)
    return with_init(nn.Parameter(torch.empty(vocab_size, hidden_dim)), init)


def root_of_width(*, hidden_dim: int) -> float:
    """The square root of the width, which Gemma multiplies each token's vector by."""
    return math.sqrt(hidden_dim)


class Embedding(nn.Module):
    """Looks up each token's vector, times `scale`, and adds its position where there is one for it.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      positions: adds where a token stands; None adds nothing.
      scale: of the token's vector; Gemma's is the square root of hidden_dim.

    Raises:
      ValueError: the scale is 0, or not finite.
    """

    def __init__(
        self, weight: nn.Parameter, *, positions: nn.Module | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.check_arguments(scale=scale)
        self.weight = weight
        self.positions = positions
        self.scale = scale

    @staticmethod
    def check_arguments(*, scale: float) -> None:
        """Raises ValueError unless the scale is finite and not 0."""
        require_factor("scale", scale)

    def forward(
        self, tokens: Int[Tensor, "batch seq"], layout: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        """The vectors of tokens that stand as `layout` says; from 0 on unless said."""
        x = _looked_up(tokens, self.weight)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is None:
            return x
        layout = one_document(tokens) if layout is None else layout
        return x + self.positions(layout.places.positions).to(x.dtype)


class ValueEmbedding(nn.Module):
    """A table of an attention's own, of which each token's row is added to its values.

    What a token is then reaches deep layers directly (value embeddings as in Jordan et al., 2024,
    https://github.com/KellerJordan/modded-nanogpt, after Zhou et al., 2024, arXiv:2410.17897). It
    costs memory and next to no operations. A learned number, one a layer, says how much is added.

    Args:
      vocab_size: rows of the table.
      num_kv_heads: value heads of the attention.
      head_dim: size of one.
      init: start of the table.
      gate_init: start of the number.

    Raises:
      ValueError: a size is below 1.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_kv_heads: int,
        head_dim: int,
        init: Init = GPT2_NORMAL,
        gate_init: Init = HALF,
    ) -> None:
        super().__init__()
        self.check_arguments(vocab_size=vocab_size, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self.weight = with_init(
            nn.Parameter(torch.empty(vocab_size, num_kv_heads * head_dim)), init
        )
        self.gate = with_init(nn.Parameter(torch.empty(1)), gate_init)

    @staticmethod
    def check_arguments(*, vocab_size: int, num_kv_heads: int, head_dim: int) -> None:
        """Raises ValueError unless every size is 1 or more."""
        require_size("vocab_size", vocab_size)
        require_size("num_kv_heads", num_kv_heads)
        require_size("head_dim", head_dim)

    def forward(self, tokens: Int[Tensor, "batch seq"] | None) -> Float[Tensor, "batch seq values"]:
        """What is added to the values of all heads, side by side.

        Raises:
          ValueError: the attention was not told which tokens it works on.
        """
        if tokens is None:
            raise ValueError(
                "a ValueEmbedding looks tokens up, and the layout of this pass names none: "
                "call the model with tokens, or the attention with Layout(places, tokens=...)."
            )
        return self.gate * _looked_up(tokens, self.weight)


class Unembedding(nn.Module):
    """Scores every token of the table against a feature: `logits = scale * x W^T`.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      scale: of the logits.
      softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2, arXiv:2408.00118).

    Raises:
      ValueError: the scale is 0 or not finite, or the cap not above 0.
    """

    def __init__(
        self, weight: nn.Parameter, *, scale: float = 1.0, softcap: float | None = None
    ) -> None:
        super().__init__()
        self.check_arguments(scale=scale, softcap=softcap)
        self.weight = weight
        self.scale = scale
        self.softcap = softcap

    @staticmethod
    def check_arguments(*, scale: float, softcap: float | None) -> None:
        """Raises ValueError unless the scale is finite and not 0, and the cap above 0."""
        require_factor("scale", scale)
        require_positive("softcap", softcap)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        return self.finished(F.linear(x, self.weight))

    def finished(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Products with the table as logits."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def own_flops_per_token(self, seq_len: int) -> int:
        """Forward floating-point operations of one token, a multiply-add counted as two."""
        return 2 * self.weight.numel()


def _looked_up(
    tokens: Int[Tensor, "batch seq"], table: Float[Tensor, "vocab width"]
) -> Float[Tensor, "batch seq width"]:
    is_narrow = table.device.type == "cpu" and table.itemsize < 4
    if is_narrow and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _LookUp.apply(tokens, table)
    return F.embedding(tokens, table)


class _LookUp(torch.autograd.Function):
    """Rows of a narrow table, whose gradients are added up in float32, as torch does on GPUs.

    On CPUs torch adds them up in the table's format: of a byte that a batch holds a thousand times,
    most come to nothing in bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[None, Tensor]:
        (tokens,) = ctx.saved_tensors
        # A table of the tokens that there are: in float32 a whole one would be mostly zeros.
        there = tokens.new_zeros(ctx.shape[0]).index_fill_(0, tokens.flatten(), 1)
        used, places = there.nonzero().squeeze(1), there.cumsum(0)[tokens] - 1
        sums = torch.ops.aten.embedding_dense_backward(
            outer[0].float(), places, len(used), padding_idx=-1, scale_grad_by_freq=False
        )
        gradient = outer[0].new_zeros(ctx.shape)
        gradient[used] = sums.to(gradient.dtype)
        return None, gradient
