"""The embedding table, and the embedding and unembedding modules that use it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.model.blocks import Norm
from fidgpt.model.context import AttentionContext, Stream, Tokens, one_document
from fidgpt.model.cpu.backward import AlignedProduct, TableLookup
from fidgpt.model.fields import FieldModule, field_module
from fidgpt.model.init import GPT2_NORMAL, ZEROS, Constant, Init, Uniform, with_init
from fidgpt.placement import Columns, Dims, Once, Split
from fidgpt.ranges import require_factor, require_positive, require_size

__all__ = [
    "BiasedUnembedding",
    "Embedding",
    "GatedValueEmbedding",
    "NormalizedEmbedding",
    "SmearedEmbedding",
    "Unembedding",
    "ValueEmbedding",
    "root_of_width",
    "token_table",
]


HALF = Constant(0.5)
SLIGHT = Uniform(low=0.0, high=0.02)


def token_table(*, vocab_size: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> nn.Parameter:
    """Return an embedding table, a parameter of shape [vocab_size, hidden_dim].

    `Embedding` and `Unembedding` may share one (Press and Wolf, 2017, arXiv:1608.05859): weights
    are tied by sharing the parameter, not by a flag.

    Raises:
      ValueError: a size is below 1.
    """
    require_size(vocab_size=vocab_size, hidden_dim=hidden_dim)
    return with_init(nn.Parameter(torch.empty(vocab_size, hidden_dim)), init)


def root_of_width(*, hidden_dim: int) -> float:
    """Return sqrt(hidden_dim), the scale of Gemma's embedding."""
    return math.sqrt(hidden_dim)


@runtime_checkable
class PositionVectors(Protocol):
    """Maps positions to vectors, as `LearnedPositions` does."""

    def forward(self, positions: Tokens, /) -> Float[Tensor, "rows seq hidden"]:
        """Return a vector for each position."""
        ...

    def __call__(self, positions: Tokens, /) -> Float[Tensor, "rows seq hidden"]:
        """Call `forward`, with torch's hooks."""
        ...


@field_module
class Embedding(FieldModule):
    """Token embedding: the vector of each token times `scale`, plus its position's vector if any.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      positions: maps positions to vectors that are added; None for none.
      scale: factor of the token vectors; sqrt(hidden_dim) in Gemma.

    Raises:
      ValueError: the scale is 0 or not finite.
    """

    first_row: ClassVar[int | None] = None  # of the part of the table that this process holds

    weight: nn.Parameter = field(kw_only=False)
    positions: PositionVectors | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_factor(scale=self.scale)

    def own_split(self) -> Split:
        """Return how the rows of the table may be divided over processes."""
        return Split({"weight": Columns(len(self.weight), uneven=True), "positions": Once()})

    def forward(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the vectors of tokens; without a context, positions count from 0.

        Of a divided table, tokens in other parts have vectors of zeros.
        """
        if self.first_row is None:
            x = _look_up(tokens, self.weight)
        else:
            rows = tokens - self.first_row
            elsewhere = (rows < 0) | (rows >= len(self.weight))
            x = _look_up(rows.masked_fill(elsewhere, 0), self.weight)
            x = x.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is None:
            return x
        ctx = one_document(tokens) if ctx is None else ctx
        return x + self.positions(ctx.positions).to(x.dtype)


@field_module
class NormalizedEmbedding(Embedding):
    """A token embedding with a norm after it, as in BLOOM (2022, arXiv:2211.05100).

    Args:
      weight: the token table [vocab_size, hidden_dim].
      norm: normalizes each vector.
      positions: maps positions to vectors that are added before the norm; None for none.
      scale: factor of the token vectors.

    Raises:
      ValueError: the scale is 0 or not finite.
    """

    norm: Norm

    def forward(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the normalized vectors of tokens; without a context, positions count from 0."""
        return self.norm(super().forward(tokens, ctx))


@field_module
class SmearedEmbedding(Embedding):
    """A token embedding to which a gated share of the embedding before it is added.

    `x[t] + amount * sigmoid(gate x[t, :num_channels]) * x[t - 1]` gives the first layer pairs of
    tokens (https://github.com/KellerJordan/modded-nanogpt, nanochat). The first token of a document
    has none before it.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      norm: normalizes each vector before; None for no norm.
      positions: maps positions to vectors that are added; None for none.
      scale: factor of the token vectors.
      num_channels: first elements of a vector that the gate reads.
      gate_init: initializer of the gate.
      amount_init: initializer of the amount, a scalar; by default the smear begins with nothing.

    Raises:
      ValueError: the scale is 0 or not finite, or num_channels is below 1.
    """

    norm: Norm | None = None
    num_channels: int = 24
    gate_init: Init = SLIGHT
    amount_init: Init = ZEROS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_size(num_channels=self.num_channels)
        num_channels = min(self.num_channels, self.weight.shape[1])
        self.gate = with_init(nn.Parameter(torch.empty(1, num_channels)), self.gate_init)
        self.amount = with_init(nn.Parameter(torch.empty(1)), self.amount_init)

    def forward(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the vectors of tokens, each with a share of the one before."""
        ctx = one_document(tokens) if ctx is None else ctx
        x = super().forward(tokens, ctx)
        x = x if self.norm is None else self.norm(x)
        (whole,), last = ctx.whole_rows([x]), ctx.state(self)
        first = last[0] if last else torch.zeros_like(whole[:, :1])
        before = ctx.own(torch.cat([first, whole[:, :-1]], dim=1))
        ctx.keep_state(self, [whole[:, -1:]])
        share = self.amount * torch.sigmoid(F.linear(x[..., : self.gate.shape[1]], self.gate))
        return x + share * (ctx.positions > 0).unsqueeze(-1) * before


@field_module
class ValueEmbedding(FieldModule):
    """An embedding of the tokens times a learned gate, to be added to the values of an attention.

    It passes the identity of tokens to deep layers directly (value embeddings as in Jordan et al.,
    2024, https://github.com/KellerJordan/modded-nanogpt, after Zhou et al., 2024,
    arXiv:2410.17897), at a cost in memory but hardly any in operations.

    Args:
      vocab_size: rows of the table.
      num_kv_heads: number of value heads.
      head_dim: dimensions per head.
      init: initializer of the table.
      gate_init: initializer of the gate, a scalar.

    Raises:
      ValueError: a size is below 1.
    """

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {"columns": {"weight": 1}}

    vocab_size: int
    num_kv_heads: int
    head_dim: int
    init: Init = GPT2_NORMAL
    gate_init: Init = HALF

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "num_kv_heads", "head_dim", "num_channels")
        require_size(**{name: getattr(self, name, None) for name in sizes})
        table = torch.empty(self.vocab_size, self.num_kv_heads * self.head_dim)
        self.weight = with_init(nn.Parameter(table), self.init)
        self.gate = with_init(nn.Parameter(torch.empty(self.gate_shape)), self.gate_init)

    @property
    def gate_shape(self) -> Sequence[int]:
        """The shape of the gate."""
        return (1,)

    def forward(self, tokens: Tokens | None) -> Float[Tensor, "batch seq values"]:
        """Return the summand of the values of all heads, concatenated."""
        return self.gate * _look_up(tokens, self.weight)


@field_module
class GatedValueEmbedding(ValueEmbedding):
    """A value embedding that each head gates by the input of its attention (nanochat).

    The gate is `most * sigmoid(gate x[:num_channels])`, one for each value head.

    Args:
      vocab_size: rows of the table.
      num_kv_heads: number of value heads.
      head_dim: dimensions per head.
      num_channels: first elements of the input that the gate reads.
      most: upper bound of the gate.
      init: initializer of the table.
      gate_init: initializer of the gate [num_kv_heads, num_channels].

    Raises:
      ValueError: a size is below 1.
    """

    MATRICES: ClassVar[Sequence[str]] = ("gate",)
    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {"columns": {"weight": 1, "gate": 0}}
    takes_stream: ClassVar[bool] = True

    num_channels: int = 12
    most: float = 3.0
    gate_init: Init = SLIGHT

    @property
    def gate_shape(self) -> Sequence[int]:
        """The shape of the gate."""
        return self.num_kv_heads, self.num_channels

    def forward(
        self, tokens: Tokens | None, x: Stream | None = None
    ) -> Float[Tensor, "batch seq values"]:
        """Return the summand of the values of all heads, concatenated."""
        assert x is not None, "the gate reads the input of the attention"
        gate = self.most * torch.sigmoid(F.linear(x[..., : self.gate.shape[1]], self.gate))
        values = _look_up(tokens, self.weight).unflatten(-1, (len(self.gate), -1))
        return (gate.unsqueeze(-1) * values).flatten(-2)


@field_module
class Unembedding(FieldModule):
    """Unembedding: the logits of all tokens, `scale * x W^T`.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      scale: factor of the logits.
      softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2, arXiv:2408.00118); None
        for no cap.

    Raises:
      ValueError: the scale is 0 or not finite, or the cap is not above 0.
    """

    ROLE: ClassVar[str] = "OutputLayer"

    weight: nn.Parameter = field(kw_only=False)
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        require_factor(scale=self.scale)
        require_positive(softcap=self.softcap)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        return self.finish(_product(x, self.weight))

    def finish(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Scale and cap the products with the table."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def own_split(self) -> Split:
        """Return how the rows of the table may be divided over processes."""
        return Split({"weight": Columns(len(self.weight), uneven=True)}, gathers=True)


class BiasedUnembedding(Unembedding):
    """Unembedding with a bias per token, as in GPT-J and Phi-2.

    Args:
      weight: the token table [vocab_size, hidden_dim].
      scale: factor of the logits.
      softcap: as of `Unembedding`.

    Raises:
      ValueError: the scale is 0 or not finite, or the cap is not above 0.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bias = with_init(nn.Parameter(torch.empty(len(self.weight))), ZEROS)

    def finish(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Add the bias, then scale and cap."""
        return super().finish(logits + self.bias)

    def own_split(self) -> Split:
        """Return how the rows of the table, and the bias, may be divided over processes."""
        rows = Columns(len(self.weight), uneven=True)
        return Split({"weight": rows, "bias": rows}, gathers=True)


def _look_up(tokens: Tokens | None, table: Tensor) -> Stream:
    assert tokens is not None, "embeddings need the tokens of this pass: AttentionContext(tokens=)"
    if table.itemsize <= 4 and cpu.has_own_backward(table):
        return TableLookup.apply(tokens, table)
    return F.embedding(tokens, table)


def _product(
    x: Float[Tensor, "*batch hidden"], table: Float[Tensor, "vocab hidden"]
) -> Float[Tensor, "*batch vocab"]:
    is_float32 = x.dtype == table.dtype == torch.float32
    if x.dim() == 2 and is_float32 and cpu.has_own_backward(table):
        return AlignedProduct.apply(x, table)
    return F.linear(x, table)
