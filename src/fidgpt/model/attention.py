"""Self-attention with grouped queries."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, Stream, Tokens, counted
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.kernels import Kernel, Keys, Queries, Scoring, fastest
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.masks import Mask, ScoreChange, causal
from fidgpt.ranges import require_factor, require_probability, require_size

__all__ = ["Attention", "heads_that_fit"]


Rotated = tuple[Queries, Keys]


@runtime_checkable
class Rotation(Protocol):
    """Rotates queries and keys by their positions; see RoPE."""

    def __call__(self, query: Queries, key: Keys, ctx: AttentionContext, /) -> Rotated: ...


@runtime_checkable
class SinkFactory(Protocol):
    """Makes a score for each head that belongs to no key; see attention_sinks."""

    def __call__(self, *, num_heads: int) -> nn.Parameter: ...


def heads_that_fit(*, hidden_dim: int, head_dim: int) -> int:
    """Return how many heads fill the width."""
    return hidden_dim // head_dim


def require_heads(*, hidden_dim: int, head_dim: int, num_heads: int | None) -> int:
    """Return the number of heads.

    Raises:
      ValueError: it is below 1; or it defaults to `hidden_dim / head_dim`, which is not whole.
    """
    require_size("num_heads", num_heads)
    if num_heads is not None:
        return num_heads
    if head_dim < 1 or hidden_dim % head_dim:
        raise ValueError(
            f"{hidden_dim=} is not a whole number of heads of {head_dim=}; "
            "change one of them, or set num_heads."
        )
    return hidden_dim // head_dim


class Attention(nn.Module):
    """Multi-head attention over the tokens so far (Vaswani et al., 2017).

    With fewer key and value heads than query heads, neighboring queries share one (grouped-query
    attention, Ainslie et al., 2023, arXiv:2305.13245).

    Args:
      hidden_dim: width of the residual stream.
      head_dim: size of a head.
      num_heads: query heads; defaults to hidden_dim / head_dim.
      num_kv_heads: key and value heads; defaults to num_heads.
      window: sliding-window size in tokens, including the query; None for full attention.
      scale: of the products of queries and keys; defaults to 1 / sqrt(head_dim).
      rope: rotates queries and keys by their positions; None leaves them as they are.
      query_norm: normalizes queries [batch, seq, heads, head_dim] before they are rotated.
      key_norm: the same for keys.
      value_embedding: of tokens [batch, seq], added to the projected values.
      scores: changes of the scores before the softmax, in order.
      sinks: makes learned scores that belong to no key.
      mask: which tokens of its document a token may see.
      kernel: computes attention itself.
      linear: makes the four projections.
      bias: adds a bias to all four projections.
      out_bias: the same for the output projection alone; defaults to `bias`.
      dropout: probability of dropping an attention weight in training.
      init: of the query, key and value projections.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide the width, or num_kv_heads the heads; or the window is
        empty.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        window: int | None = None,
        scale: float | None = None,
        rope: Rotation | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        value_embedding: nn.Module | None = None,
        scores: Sequence[ScoreChange] = (),
        sinks: SinkFactory | None = None,
        mask: Mask = causal,
        kernel: Kernel = fastest,
        linear: LinearFactory = Linear,
        bias: bool = False,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        require_probability("dropout", dropout)
        require_size("window", window)
        require_factor("scale", scale)
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(
                f"{num_heads=} cannot be split evenly over {num_kv_heads=}: "
                "use a num_kv_heads that divides it."
            )
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        out_bias = bias if out_bias is None else out_bias
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.window = window
        self.scale = head_dim**-0.5 if scale is None else scale
        self.dropout = dropout
        self.mask = mask
        self.scores = tuple(scores)
        self.kernel = kernel
        self.rope = rope
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.value_embedding = value_embedding
        self.query = linear(hidden_dim, num_heads * head_dim, bias=bias, init=init)
        self.key = linear(hidden_dim, num_kv_heads * head_dim, bias=bias, init=init)
        self.value = linear(hidden_dim, num_kv_heads * head_dim, bias=bias, init=init)
        self.out = linear(num_heads * head_dim, hidden_dim, bias=out_bias, init=out_init or init)
        self.sinks = None if sinks is None else sinks(num_heads=num_heads)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        query, key, value = self._project(x, ctx.tokens)
        if self.rope is not None:
            query, key = self.rope(query, key, ctx)
        key, value = ctx.update_cache(self, [key, value], window=self.window)
        scoring = Scoring(
            ctx=ctx,
            scale=self.scale,
            mask=self.mask,
            window=self.window,
            changes=self.scores,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
        )
        mixed = self.kernel(query, key, value, scoring)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def own_flops_per_token(self, seq_len: int) -> int:
        """Return operations of the scores and weighted sums, causal half included.

        This is the convention of PaLM's appendix B (Chowdhery et al., 2022) and of nanoGPT.
        """
        seen = seq_len if self.window is None else min(seq_len, self.window)
        return 4 * seen * self.num_heads * self.head_dim

    def projections(self, x: Stream) -> Sequence[Tensor]:
        """Return queries, keys and values, each [batch, seq, its heads * head_dim]."""
        return self.query(x), self.key(x), self.value(x)

    def _project(self, x: Stream, tokens: Tokens | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [batch, heads, seq, head_dim]."""
        query, key, value = self.projections(x)
        if self.value_embedding is not None:
            value = value + self.value_embedding(tokens)
        query, key, value = (x.unflatten(-1, (-1, self.head_dim)) for x in (query, key, value))
        if self.query_norm is not None:
            query = self.query_norm(query)
        if self.key_norm is not None:
            key = self.key_norm(key)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
