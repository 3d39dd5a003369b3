"""Multi-head latent attention."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.attention import ScoredAttention, SinkFactory, require_heads
from fidgpt.model.context import AttentionContext, Stream, counted
from fidgpt.model.indexer import Indexer, IndexerFactory
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.kernels import (
    Kernel,
    Keys,
    Queries,
    Scoring,
    Values,
    fastest,
    sdpa,
    weights_of_heads,
)
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.masks import Mask, ScoreChange, causal
from fidgpt.model.norm import NormFactory, RMSNorm
from fidgpt.model.positions import RoPE, Rotation
from fidgpt.model.rope_scaling import YaRN
from fidgpt.placement import Columns, Rows, Split
from fidgpt.ranges import require_factor, require_probability, require_size

__all__ = ["LatentAttention", "latent_rank", "rotary_share", "yarn_scale"]


Latents = Float[Tensor, "batch seq known_dim"]
Absorbed = Float[Tensor, "batch heads_or_one seq known_dim"]
UpWeight = Float[Tensor, "outer kv_rank"]


def latent_rank(*, head_dim: int) -> int:
    """Return the latent size of DeepSeek-V2, 4 * head_dim (arXiv:2405.04434, section 3.1.2)."""
    return 4 * head_dim


def rotary_share(*, head_dim: int) -> int:
    """Return DeepSeek-V2's number of rotary dimensions, head_dim / 2, rounded to an even number."""
    return max(2, head_dim // 4 * 2)


def yarn_scale(
    *, head_dim: int, rope_head_dim: int, factor: float, mscale_all_dim: float = 1.0
) -> float:
    """Return the attention scale of a model with YaRN, as in DeepSeek's code.

    `(0.1 * mscale_all_dim * ln(factor) + 1)^2 / sqrt(head_dim + rope_head_dim)`: this scales all
    dimensions of a head where `YaRN` would scale the rotary ones by its amplitude, which is 1 here
    (Peng et al., 2023, arXiv:2309.00071, section 3.4).

    Args:
      head_dim: dimensions of a head without rotation.
      rope_head_dim: rotary dimensions of a head.
      factor: ratio of the extended sequence length to the original one.
      mscale_all_dim: strength of the correction; 0 for none.
    """
    mscale = 0.1 * mscale_all_dim * math.log(max(1.0, factor)) + 1
    return mscale**2 / math.sqrt(head_dim + rope_head_dim)


class LatentAttention(ScoredAttention):
    """Multi-head latent attention: only a latent vector per token is cached (DeepSeek-V2).

    A key has `head_dim` dimensions per head, projected up from the latent, and `rope_head_dim`
    rotary dimensions that all heads share (2024, arXiv:2405.04434, section 2.1). With few queries
    and many cached tokens, queries are projected into the latent space instead, and per-head keys
    and values are never computed (the absorbed form of that section). RoPE pairs dimensions by
    halves, whereas published DeepSeek weights pair adjacent ones, so their rows are permuted on
    loading.

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions of a head without rotation.
      kv_rank: size of the latent of keys and values.
      query_rank: size of the latent of queries; None projects them from the stream.
      rope_head_dim: rotary dimensions of a head; defaults to the size of the RoPE, and without one
        to `rotary_share` of head_dim.
      value_head_dim: size of a head's value; defaults to head_dim.
      num_heads: number of heads; defaults to hidden_dim / head_dim.
      window: sliding-window size in tokens, including the query; None for full attention.
      scale: of the products; defaults to 1 / sqrt(head_dim + rope_head_dim), with the factor of
        `yarn_scale` if the RoPE has YaRN.
      rope: rotates the rotary dimensions by position; None leaves them as they are.
      norm: makes the norms of the latents.
      scores: changes of the scores before the softmax, in order.
      sinks: makes learned scores that belong to no key.
      mask: which tokens of its document a token may see.
      indexer: creates what selects some of these tokens, such as `Indexer`; None for all of them.
      kernel: computes attention itself, if there is no indexer.
      linear: makes the projections.
      bias: adds a bias to the down projections; the up projections have none.
      out_bias: adds a bias to the output projection; defaults to `bias`.
      dropout: probability of dropping an attention weight in training.
      init: of all projections but the last.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide hidden_dim, a size is below 1, the window is empty, or
        the RoPE has another size.
    """

    sum_over_parts: Callable[[Tensor], Tensor] | None = None  # adds up what the processes have

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        kv_rank: int,
        query_rank: int | None = None,
        rope_head_dim: int | None = None,
        value_head_dim: int | None = None,
        num_heads: int | None = None,
        window: int | None = None,
        scale: float | None = None,
        rope: Rotation | None = None,
        norm: NormFactory = RMSNorm,
        scores: Sequence[ScoreChange] = (),
        sinks: SinkFactory | None = None,
        mask: Mask = causal,
        indexer: IndexerFactory | None = None,
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
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        require_factor(scale=scale)
        require_size(kv_rank=kv_rank, query_rank=query_rank, rope_head_dim=rope_head_dim)
        require_size(value_head_dim=value_head_dim, window=window)
        rope_head_dim = _rotary_dim(rope, rope_head_dim, rotary_share(head_dim=head_dim))
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        query_dim = head_dim + rope_head_dim
        self.head_dim = head_dim
        self.rope_head_dim = rope_head_dim
        self.value_head_dim = value_head_dim
        self.kv_rank = kv_rank
        self.num_heads = num_heads
        self.window = window
        self.scale = _usual_scale(rope, head_dim, rope_head_dim) if scale is None else scale
        self.dropout = dropout
        self.mask = mask
        self.scores = tuple(scores)
        # Only a kernel that sees all keys may be exchanged.
        self.kernel = kernel if indexer is None else None
        self.rope = rope
        self.query_down = self.query_norm = None
        if query_rank is not None:
            self.query_down = linear(hidden_dim, query_rank, bias=bias, init=init)
            self.query_norm = norm(hidden_dim=query_rank)
        self.query = linear(query_rank or hidden_dim, num_heads * query_dim, bias=False, init=init)
        self.kv_down = linear(hidden_dim, kv_rank + rope_head_dim, bias=bias, init=init)
        self.kv_norm = norm(hidden_dim=kv_rank)
        self.kv_up = linear(kv_rank, num_heads * (head_dim + value_head_dim), bias=False, init=init)
        self.out = linear(
            num_heads * value_head_dim,
            hidden_dim,
            bias=bias if out_bias is None else out_bias,
            init=out_init or init,
        )
        self.sinks = None if sinks is None else sinks(num_heads=num_heads)
        self.indexer = None
        if indexer is not None:
            sizes = {"query_dim": query_rank or hidden_dim, "rotary_dim": rope_head_dim}
            self.indexer = indexer(hidden_dim=hidden_dim, **sizes)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        narrow = x
        if self.query_down is not None and self.query_norm is not None:
            narrow = self.query_norm(self.query_down(x))
        query, latent = self._project(x, narrow, ctx)
        (latent,) = ctx.update_cache(self, [latent], window=self.window)
        scoring = self.scoring(ctx)
        weight = self._absorbable(queries=query.shape[2], keys=latent.shape[1])
        if weight is None:
            query, key, value = self._plain(query, latent)
        else:
            query, key, value = self._absorbed(query, latent, weight)
        if self.indexer is not None:
            selection = self.indexer(x, narrow, self.rope, ctx, scoring.visible())
            if self.indexer.selects:
                scoring = replace(scoring, selected=selection.keys)
            self._report(self.indexer, selection.scores, query, key, scoring)
        mixed = (self.kernel or sdpa)(query, key, value, scoring)
        if weight is not None:
            mixed = mixed[..., : self.kv_rank] @ self._by_head(weight)[1].mT
        return self.out(mixed.transpose(1, 2).flatten(2))

    def own_split(self) -> Split:
        """Return how heads may be divided over processes, each of which has all latents."""
        heads = Columns(self.num_heads)
        parts = {"query": heads, "kv_up": heads, "sinks": heads, "out": Rows(self.num_heads)}
        return Split(parts, returns="out")

    def _project(self, x: Stream, narrow: Tensor, ctx: AttentionContext) -> tuple[Queries, Latents]:
        """Return the queries, and the latent and the shared key of each token, side by side."""
        query = (
            self.query(narrow)
            .unflatten(-1, (-1, self.head_dim + self.rope_head_dim))
            .transpose(1, 2)
        )
        latent, key = self.kv_down(x).split([self.kv_rank, self.rope_head_dim], dim=-1)
        if self.rope is not None:
            still, turning = query.split([self.head_dim, self.rope_head_dim], dim=-1)
            turned, shared = self.rope(turning, key.unsqueeze(1), ctx)
            query, key = torch.cat([still, turned], dim=-1), shared.squeeze(1)
        return query, torch.cat([self.kv_norm(latent), key], dim=-1)

    def _plain(self, query: Queries, known: Latents) -> tuple[Queries, Keys, Values]:
        """Return the queries, and the keys and values of every head."""
        latent, shared = known.split([self.kv_rank, self.rope_head_dim], dim=-1)
        sizes = (-1, self.head_dim + self.value_head_dim)
        made = self.kv_up(latent).unflatten(-1, sizes).transpose(1, 2)
        key, value = made.split([self.head_dim, self.value_head_dim], dim=-1)
        shared = shared.unsqueeze(1).expand(-1, made.shape[1], -1, -1)
        return query, torch.cat([key, shared], dim=-1), value

    def _absorbed(
        self, query: Queries, known: Latents, weight: UpWeight
    ) -> tuple[Tensor, Absorbed, Absorbed]:
        """Return `q W` for `(q W) c` in place of `q (W c)`, and c as one key head for all of them.

        The values contain the shared key, whose result is dropped: kernels are faster with keys and
        values of one size; torch's CPU kernel would copy both for every head.
        """
        still, turned = query.split([self.head_dim, self.rope_head_dim], dim=-1)
        absorbed = torch.cat([still @ self._by_head(weight)[0], turned], dim=-1)
        one = known.unsqueeze(1)
        return absorbed, one, one

    def _by_head(self, weight: UpWeight) -> Sequence[Tensor]:
        """Return the weights of the up projections of keys and of values, of each head."""
        sizes = [self.head_dim, self.value_head_dim]
        return weight.unflatten(0, (-1, sum(sizes))).split(sizes, dim=1)

    def _report(
        self, indexer: Indexer, scores: Tensor, query: Queries, key: Keys, scoring: Scoring
    ) -> None:
        """Report the loss of the indexer in training."""
        if not self.training or indexer.objective is None or scoring.ctx.cache is not None:
            return
        weights = weights_of_heads(query, key, scoring)
        weights = weights if self.sum_over_parts is None else self.sum_over_parts(weights)
        scores = scores.masked_fill(~scoring.visible(), torch.finfo(scores.dtype).min)
        indexer.objective(weights, scores, scoring.ctx, parts=self.split_place[1])

    def _absorbable(self, *, queries: int, keys: int) -> UpWeight | None:
        """Return the weights of the up projection if absorbing them saves operations."""
        if keys <= queries:
            return None
        each = self.kv_rank * (self.head_dim + self.value_head_dim)
        of_pair = self.head_dim + self.rope_head_dim + self.value_head_dim
        plain = keys * (each + queries * of_pair)
        absorbed = queries * (each + keys * 2 * (self.kv_rank + self.rope_head_dim))
        return _weight_of(self.kv_up) if absorbed < plain else None


def _rotary_dim(rope: Rotation | None, rope_head_dim: int | None, default: int) -> int:
    """Return the rotary dimensions of a head: the size of the RoPE if there is one."""
    if not isinstance(rope, RoPE):
        return default if rope_head_dim is None else rope_head_dim
    if rope_head_dim is not None and rope_head_dim != rope.head_dim:
        raise ValueError(f"{rope_head_dim=} must equal the RoPE's head_dim={rope.head_dim}.")
    return rope.head_dim


def _usual_scale(rope: Rotation | None, head_dim: int, rope_head_dim: int) -> float:
    """Return 1 / sqrt(query size), corrected for YaRN."""
    scaling = rope.scaling if isinstance(rope, RoPE) else None
    if not isinstance(scaling, YaRN):
        return (head_dim + rope_head_dim) ** -0.5
    return yarn_scale(
        head_dim=head_dim,
        rope_head_dim=rope_head_dim,
        factor=scaling.factor,
        mscale_all_dim=scaling.sharpness,
    )


def _weight_of(linear: nn.Module) -> Tensor | None:
    """Return W of a layer that computes `x W^T`; None if it may compute something else."""
    merged = getattr(linear, "merged_weight", None)
    if merged is not None:
        return merged()
    if isinstance(linear, nn.Linear) and type(linear).forward is nn.Linear.forward:
        return linear.weight
    return None
