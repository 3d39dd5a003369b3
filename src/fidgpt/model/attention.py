"""Multi-head and grouped-query self-attention."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.blocks import Gate, Norm
from fidgpt.model.context import AttentionContext, Stream, Tokens, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.kernels import Kernel, Keys, Queries, Scoring, fastest
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.masks import Mask, ScoreChange, causal
from fidgpt.model.positions import Rotation
from fidgpt.placement import Columns, OnHeads, Rows, Split
from fidgpt.ranges import require_factor, require_probability, require_size

__all__ = ["Attention", "LateNormAttention", "OutputGate", "heads_that_fit"]


Rotated = tuple[Queries, Keys]


@runtime_checkable
class SinkFactory(Protocol):
    """Creates the learned sink score of each head, as `attention_sinks` does."""

    def __call__(self, *, num_heads: int) -> nn.Parameter: ...


@runtime_checkable
class GateFactory(Protocol):
    """Creates the gate of the result of all heads, as `OutputGate` does."""

    def __call__(self, *, hidden_dim: int, num_heads: int, head_dim: int) -> Gate: ...


def heads_that_fit(*, hidden_dim: int, head_dim: int) -> int:
    """Return the number of heads that fill the width."""
    return hidden_dim // head_dim


def require_heads(*, hidden_dim: int, head_dim: int, num_heads: int | None) -> int:
    """Return the number of heads, which defaults to `hidden_dim / head_dim`.

    Raises:
      ValueError: num_heads is below 1; or it is None, and head_dim does not divide hidden_dim.
    """
    require_size(num_heads=num_heads)
    if num_heads is not None:
        return num_heads
    if head_dim < 1 or hidden_dim % head_dim:
        raise ValueError(f"{hidden_dim=} must be a multiple of {head_dim=}, or set num_heads.")
    return hidden_dim // head_dim


@runtime_checkable
class TokenVectors(Protocol):
    """Maps tokens to vectors, as `ValueEmbedding` does."""

    def forward(self, tokens: Tokens | None, /) -> Float[Tensor, "batch seq values"]:
        """Return a vector for each token."""
        ...

    def __call__(self, tokens: Tokens | None, /) -> Float[Tensor, "batch seq values"]:
        """Call `forward`, with torch's hooks."""
        ...


class ScoredAttention(ExtensibleModule):
    """What attentions share: how the weights of keys come from scores."""

    ROLE: ClassVar[str] = "Mixer"
    split_place = (0, 1)  # which part of the heads this process computes, of how many
    scale: float
    mask: Mask
    window: int | None
    scores: Sequence[ScoreChange]
    sinks: nn.Parameter | None
    dropout: float

    def scoring(self, ctx: AttentionContext) -> Scoring:
        """Return how the weights of a pass are computed."""
        return Scoring(
            ctx=ctx,
            scale=self.scale,
            mask=self.mask,
            window=self.window,
            changes=self.scores,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
            split_place=self.split_place,
        )


class Attention(ScoredAttention):
    """Causal multi-head self-attention (Vaswani et al., 2017, arXiv:1706.03762).

    With fewer key and value heads than query heads, consecutive query heads share one
    (grouped-query attention, Ainslie et al., 2023, arXiv:2305.13245).

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions per head.
      num_heads: number of query heads; defaults to hidden_dim / head_dim.
      num_kv_heads: number of key and value heads; defaults to num_heads.
      window: sliding-window size in tokens, including the query; None for full attention.
      scale: factor of the query-key products; defaults to 1 / sqrt(head_dim).
      rope: rotates queries and keys by their positions; None for no rotation.
      query_norm: normalizes queries [batch, seq, heads, head_dim] before the rotation.
      key_norm: normalizes keys in the same way.
      value_embedding: maps tokens [batch, seq] to a summand of the projected values.
      scores: modifications of the scores before the softmax, in order.
      sinks: creates attention sinks; None for none.
      output_gate: creates what multiplies the result of the heads, such as `OutputGate`; None for
        no gate.
      mask: which keys of its document a query may attend to.
      kernel: implementation of attention, such as `sdpa` or `flex`.
      linear: creates the four projections.
      bias: adds a bias to all four projections.
      out_bias: overrides `bias` for the output projection.
      dropout: probability of dropping an attention weight in training.
      init: initializer of the query, key and value projections.
      out_init: initializer of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide hidden_dim, num_kv_heads does not divide num_heads, or
        the window is below 1.
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
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        value_embedding: TokenVectors | None = None,
        scores: Sequence[ScoreChange] = (),
        sinks: SinkFactory | None = None,
        output_gate: GateFactory | None = None,
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
        require_probability(dropout=dropout)
        require_size(window=window)
        require_factor(scale=scale)
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(f"{num_heads=} must be a multiple of {num_kv_heads=}.")
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
        self.output_gate = None
        if output_gate is not None:
            self.output_gate = output_gate(
                hidden_dim=hidden_dim, num_heads=num_heads, head_dim=head_dim
            )

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Return the output of attention; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        query, key, value = self._project(x, ctx.tokens)
        query, key = self._placed(*self._normalized(query, key), ctx)
        key, value = ctx.update_cache(self, [key, value], window=self.window)
        mixed = self.kernel(query, key, value, self.scoring(ctx)).transpose(1, 2).flatten(2)
        return self.out(mixed if self.output_gate is None else mixed * self.output_gate(x))

    def own_split(self) -> Split:
        """Return how heads may be divided over processes."""
        heads, keys = Columns(self.num_heads), Columns(self.num_kv_heads, repeats=True)
        parts = dict.fromkeys(("query", "sinks", "output_gate.project"), heads)
        parts |= dict.fromkeys(("key", "value", "value_embedding"), keys)
        norms = {
            "query_norm": OnHeads(self.num_heads),
            "key_norm": OnHeads(self.num_kv_heads, repeats=True),
        }
        return Split({**parts, **norms, "out": Rows(self.num_heads)}, returns="out")

    def projections(self, x: Stream) -> Sequence[Tensor]:
        """Return queries, keys and values, each [batch, seq, number of its heads * head_dim]."""
        return self.query(x), self.key(x), self.value(x)

    def _project(self, x: Stream, tokens: Tokens | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [batch, heads, seq, head_dim]."""
        query, key, value = self.projections(x)
        if self.value_embedding is not None:
            takes_stream = getattr(self.value_embedding, "takes_stream", False)
            more = (x,) if takes_stream else ()
            value = value + self.value_embedding(tokens, *more)
        query, key, value = (x.unflatten(-1, (-1, self.head_dim)) for x in (query, key, value))
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def _normalized(self, query: Queries, key: Keys) -> Rotated:
        """Return queries and keys after their norms, which see all heads of a token together."""
        if self.query_norm is not None:
            query = self.query_norm(query.transpose(1, 2)).transpose(1, 2)
        if self.key_norm is not None:
            key = self.key_norm(key.transpose(1, 2)).transpose(1, 2)
        return query, key

    def _placed(self, query: Queries, key: Keys, ctx: AttentionContext) -> Rotated:
        """Return queries and keys with their positions."""
        return (query, key) if self.rope is None else self.rope(query, key, ctx)


class OutputGate(ExtensibleModule):
    """`activation(W x)` for each dimension of all heads (Qiu et al., 2025, arXiv:2505.06708).

    Args:
      hidden_dim: width of the residual stream.
      num_heads: number of query heads.
      head_dim: dimensions per head.
      activation: of the projection; a sigmoid in the paper, softplus in Laguna.
      per_head: whether all dimensions of a head have one factor.
      linear: creates the projection.
      bias: adds a bias.
      init: initializer of the projection.
    """

    ROLE: ClassVar[str] = "Gate"

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        activation: Callable[[Tensor], Tensor] = F.sigmoid,
        per_head: bool = False,
        linear: LinearFactory = Linear,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.repeats = head_dim if per_head else 1
        width = num_heads * head_dim // self.repeats
        self.project = linear(hidden_dim, width, bias=bias, init=init)

    def forward(self, x: Stream) -> Float[Tensor, "batch seq values"]:
        """Return the factors of the heads' results."""
        factors = self.activation(self.project(x))
        return factors if self.repeats == 1 else factors.repeat_interleave(self.repeats, dim=-1)


class LateNormAttention(Attention):
    """Attention that normalizes queries and keys after their rotation, as Hunyuan and nanochat do.

    It takes the arguments of `Attention`.
    """

    def _placed(self, query: Queries, key: Keys, ctx: AttentionContext) -> Rotated:
        return super()._normalized(*super()._placed(query, key, ctx))

    def _normalized(self, query: Queries, key: Keys) -> Rotated:
        return query, key
