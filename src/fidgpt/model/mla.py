"""Multi-head latent attention."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.attention import Rotation, SinkFactory, require_heads, require_window
from fidgpt.model.context import AttentionContext, counted
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.kernels import Kernel, Scoring, fastest
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.masks import Mask, ScoreChange, causal
from fidgpt.model.norm import NormFactory, RMSNorm
from fidgpt.model.positions import RoPE, YaRN
from fidgpt.ranges import require_factor, require_probability

__all__ = ["LatentAttention", "latent_rank", "rotary_share", "yarn_scale"]


def latent_rank(*, head_dim: int) -> int:
    """Size of the latent, 4 * head_dim as in DeepSeek-V2 (arXiv:2405.04434, section 3.1.2)."""
    return 4 * head_dim


def rotary_share(*, head_dim: int) -> int:
    """Dimensions that turn beside those of a head: half as many, as there, and an even number."""
    return max(2, head_dim // 4 * 2)


def yarn_scale(
    *, head_dim: int, rope_head_dim: int, factor: float, mscale_all_dim: float = 1.0
) -> float:
    """The scale of a model whose RoPE is stretched by YaRN, as DeepSeek's own code has it.

    `(0.1 * mscale_all_dim * ln(factor) + 1)^2 / sqrt(head_dim + rope_head_dim)`: what `YaRN`
    would do by an amplitude to the dimensions that turn is done here to all of a head (Peng et
    al., 2023, arXiv:2309.00071, section 3.4). The amplitude is then 1.

    Args:
      head_dim: dimensions of a head that do not turn.
      rope_head_dim: those that turn.
      factor: how many times as long the new sequences are.
      mscale_all_dim: how much of the sharpening is wanted; 0 for none.
    """
    sharper = 0.1 * mscale_all_dim * math.log(max(1.0, factor)) + 1
    return sharper**2 / math.sqrt(head_dim + rope_head_dim)


class LatentAttention(nn.Module):
    """Attention whose keys and values are made of a latent vector, which is all that is cached.

    A key is `head_dim` dimensions of its head's own, made of the latent, and `rope_head_dim` that
    know the position and that all heads share (DeepSeek-V2, 2024, arXiv:2405.04434, section 2.1).
    Where few queries meet many cached tokens, queries are brought into the latent space and no key
    or value of a head is ever made (the absorbed form of that section). RoPE pairs dimensions by
    halves; published DeepSeek weights pair neighbours, so their rows are sorted when loaded.

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions of a head that do not turn.
      kv_rank: size of the latent that keys and values are made of.
      query_rank: size of the latent that queries are made of; None makes them of the stream.
      rope_head_dim: dimensions of a head that turn, of a key that all heads share; as many as the
        RoPE turns unless said, and `rotary_share` of head_dim without a RoPE.
      value_head_dim: size of a head's value; head_dim unless said.
      num_heads: as many as fit the width, by head_dim, unless said.
      window: a token looks at so many tokens at most, itself among them; at all unless said.
      scale: of the products; 1 / sqrt(head_dim + rope_head_dim) unless said, times what a YaRN of
        the RoPE has for whole heads (`yarn_scale`).
      rope: turns the parts that turn by their positions; None leaves them as they are.
      norm: makes the norms of the latents.
      scores: what is done to scores before the softmax, in turn.
      sinks: makes the learned scores of looking at nothing.
      mask: which tokens a token may look at, where they are of one document.
      kernel: computes attention itself.
      linear: makes the projections.
      bias: adds a bias to the projections down to latents; queries, keys and values have none.
      out_bias: adds a bias to the output projection; as `bias` unless said.
      dropout: probability of dropping an attention weight in training.
      init: start of all projections but the last.
      out_init: start of the output projection, `init` unless said.

    Raises:
      ValueError: the width is not a whole number of heads, a size is below 1, the window is
        empty, or the RoPE is for heads of another size.
    """

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
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        require_window(window)
        require_factor("scale", scale)
        sizes = {"kv_rank": kv_rank, "query_rank": query_rank, "rope_head_dim": rope_head_dim}
        sizes |= {"value_head_dim": value_head_dim}
        empty = [f"{name}={size}" for name, size in sizes.items() if size is not None and size < 1]
        if empty:
            raise ValueError(f"{', '.join(empty)} leaves no dimension: use 1 or more.")
        rope_head_dim = _turning(rope, rope_head_dim, rotary_share(head_dim=head_dim))
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
        self.kernel = kernel
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

    def forward(
        self, x: Float[Tensor, "batch seq hidden"], ctx: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        query, latent = self._project(x, ctx)
        (latent,) = ctx.update_cache(self, [latent], window=self.window)
        scoring = Scoring(
            ctx=ctx,
            scale=self.scale,
            mask=self.mask,
            window=self.window,
            changes=self.scores,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
        )
        weight = self._absorbable(queries=query.shape[2], keys=latent.shape[1])
        if weight is None:
            mixed = self._plain(query, latent, scoring)
        else:
            mixed = self._absorbed(query, latent, scoring, weight)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def own_flops_per_token(self, seq_len: int) -> int:
        """Scores and their weighted sum, beside the projections; the causal half is not taken off.

        That is of the plain form, which training computes; see `Attention` for the convention.
        """
        seen = seq_len if self.window is None else min(seq_len, self.window)
        return 2 * seen * self.num_heads * self._size_of_a_pair

    @property
    def _size_of_a_pair(self) -> int:
        """Multiply-adds of a head for one query and one key."""
        return self.head_dim + self.rope_head_dim + self.value_head_dim

    def _project(
        self, x: Float[Tensor, "batch seq hidden"], ctx: AttentionContext
    ) -> tuple[Float[Tensor, "batch heads seq query_dim"], Float[Tensor, "batch seq known_dim"]]:
        """Queries, and what is kept of a token: its latent and the key that all heads share."""
        narrow = x
        if self.query_down is not None and self.query_norm is not None:
            narrow = self.query_norm(self.query_down(x))
        query = self.query(narrow).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        latent, key = self.kv_down(x).split([self.kv_rank, self.rope_head_dim], dim=-1)
        if self.rope is not None:
            still, turning = query.split([self.head_dim, self.rope_head_dim], dim=-1)
            turned, shared = self.rope(turning, key.unsqueeze(1), ctx)
            query, key = torch.cat([still, turned], dim=-1), shared.squeeze(1)
        return query, torch.cat([self.kv_norm(latent), key], dim=-1)

    def _plain(
        self,
        query: Float[Tensor, "batch heads queries query_dim"],
        known: Float[Tensor, "batch keys known_dim"],
        scoring: Scoring,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Attention with the keys and values of every head."""
        latent, shared = known.split([self.kv_rank, self.rope_head_dim], dim=-1)
        made = self.kv_up(latent).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = made.split([self.head_dim, self.value_head_dim], dim=-1)
        shared = shared.unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        return self.kernel(query, torch.cat([key, shared], dim=-1), value, scoring)

    def _absorbed(
        self,
        query: Float[Tensor, "batch heads queries query_dim"],
        known: Float[Tensor, "batch keys known_dim"],
        scoring: Scoring,
        weight: Float[Tensor, "outer kv_rank"],
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """The same, `(q W) c` for `q (W c)`: all heads look at what is known, as at one head."""
        sizes = [self.head_dim, self.value_head_dim]
        key_up, value_up = weight.unflatten(0, (self.num_heads, -1)).split(sizes, dim=1)
        still, turned = query.split([self.head_dim, self.rope_head_dim], dim=-1)
        asked = torch.cat([still @ key_up, turned], dim=-1)
        # The shared key is mixed too, for nothing: kernels are quick where keys and values are
        # of one size, and torch's on a CPU otherwise copies both for every head.
        one = known.unsqueeze(1)
        mixed = self.kernel(asked, one, one, scoring)[..., : self.kv_rank]
        return mixed @ value_up.mT

    def _absorbable(self, *, queries: int, keys: int) -> Float[Tensor, "outer kv_rank"] | None:
        """The weights that keys and values are made with, where absorbing them saves work."""
        if keys <= queries:
            return None
        each = self.kv_rank * (self.head_dim + self.value_head_dim)
        plain = keys * (each + queries * self._size_of_a_pair)
        absorbed = queries * (each + keys * 2 * (self.kv_rank + self.rope_head_dim))
        return _weight_of(self.kv_up) if absorbed < plain else None


def _turning(rope: Rotation | None, said: int | None, share: int) -> int:
    """How many dimensions of a head turn: as many as the RoPE is for, if it is one."""
    if not isinstance(rope, RoPE):
        return share if said is None else said
    if said is not None and said != rope.head_dim:
        raise ValueError(
            f"rope_head_dim={said}, but the RoPE is for head_dim={rope.head_dim}: make them one "
            "number, or leave rope_head_dim out."
        )
    return rope.head_dim


def _usual_scale(rope: Rotation | None, head_dim: int, rope_head_dim: int) -> float:
    """One over the square root of a query's size, sharpened as the RoPE is stretched."""
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
    """The matrix of a linear map that is `x W^T`; None where nobody can tell."""
    merged = getattr(linear, "merged_weight", None)
    if merged is not None:
        return merged()
    if isinstance(linear, nn.Linear) and type(linear).forward is nn.Linear.forward:
        return linear.weight
    return None
