"""Mamba 2: state spaces whose decay is one number for each head."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.attention import require_heads
from fidgpt.model.context import AttentionContext, Stream, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Constant, Init, with_init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.recurrent.decay import Decay
from fidgpt.model.recurrent.filters import CausalFilter
from fidgpt.model.recurrent.kernels import fastest_recurrence
from fidgpt.model.recurrent.recurrence import Recurrence, Steps, recur
from fidgpt.placement import Columns, OnHeads, Rows, Split
from fidgpt.ranges import require_not_negative, require_size

__all__ = ["Mamba2"]


class Mamba2(ExtensibleModule):
    """Mamba 2 (Dao and Gu, 2024, arXiv:2405.21060, section 7).

    Values, keys and queries (x, B and C there) pass a short convolution and SiLU. A state S of each
    head is updated by `S_t = exp(-rate * d_t) S_(t-1) + d_t k_t v_t` with a timestep d of each
    token, and read by `S_t^T q_t + skip * v_t`. The result is multiplied with a gate, normalized
    among the heads that share keys, and projected.

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions of a head's values.
      num_heads: number of heads; defaults to hidden_dim / head_dim.
      num_groups: number of query and key heads, which consecutive heads share.
      state_dim: dimensions of queries and keys.
      filter_size: length of the convolution in tokens.
      min_timestep: smallest timestep.
      eps: added to the mean of squares of a group; None for no norm (Falcon-H1).
      factors: of the outputs of some projections, by the names `gate`, `value`, `key`, `query` and
        `timestep`.
      recurrence: computes the states.
      linear: makes the projections.
      bias: adds a bias to the projections.
      filter_bias: adds a bias to the convolution.
      init: of all projections but the last.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide hidden_dim, num_groups does not divide num_heads, or a
        size is below 1.
    """

    ROLE: ClassVar[str] = "Mixer"

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        num_heads: int | None = None,
        num_groups: int = 1,
        state_dim: int = 128,
        filter_size: int = 4,
        min_timestep: float = 0.0,
        eps: float | None = 1e-5,
        factors: Mapping[str, float] | None = None,
        recurrence: Recurrence = fastest_recurrence,
        linear: LinearFactory = Linear,
        bias: bool = False,
        filter_bias: bool = True,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        require_size(num_groups=num_groups, state_dim=state_dim)
        if num_heads % num_groups:
            raise ValueError(f"{num_heads=} must be a multiple of {num_groups=}.")
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_groups = num_groups
        self.state_dim = state_dim
        self.min_timestep = min_timestep
        self.factors = dict(factors or {})
        self.recurrence = recurrence
        values, keys = num_heads * head_dim, num_groups * state_dim
        self.gate = linear(hidden_dim, values, bias=bias, init=init)
        self.value = linear(hidden_dim, values, bias=bias, init=init)
        self.key = linear(hidden_dim, keys, bias=bias, init=init)
        self.query = linear(hidden_dim, keys, bias=bias, init=init)
        self.timestep = linear(hidden_dim, num_heads, bias=bias, init=init)
        self.value_filter = CausalFilter(values, size=filter_size, bias=filter_bias)
        self.key_filter = CausalFilter(keys, size=filter_size, bias=filter_bias)
        self.query_filter = CausalFilter(keys, size=filter_size, bias=filter_bias)
        self.decay = Decay(num_heads=num_heads)
        self.skip = with_init(nn.Parameter(torch.empty(num_heads)), Constant(1.0))
        self.norm: nn.Module = nn.Identity()
        if eps is not None:
            self.norm = GroupRMSNorm(hidden_dim=values, num_groups=num_groups, eps=eps)
        self.out = linear(values, hidden_dim, bias=bias, init=out_init or init)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        names = ("query", "key", "value", "timestep")
        query, key, value, timestep = ctx.whole_rows([self._projected(n, x) for n in names])
        rows = ctx.rows
        timestep = self.decay.timestep(timestep).clamp_min(self.min_timestep)
        wide = timestep.dtype
        query, key, value = (
            F.silu(filtered(part, rows)).unflatten(-1, (-1, size)).to(wide)
            for part, filtered, size in (
                (query, self.query_filter, self.state_dim),
                (key, self.key_filter, self.state_dim),
                (value, self.value_filter, self.head_dim),
            )
        )
        written, log_decay = value * timestep.unsqueeze(-1), self.decay.of_timestep(timestep)
        mixed = recur(self, self.recurrence, ctx, Steps(query, key, written, log_decay))
        mixed = ctx.own(mixed + self.skip.to(wide).unsqueeze(-1) * value).to(x.dtype)
        gate = F.silu(self._projected("gate", x)).unflatten(-1, (-1, self.head_dim))
        return self.out(self.norm(mixed * gate).flatten(2))

    def _projected(self, name: str, x: Stream) -> Tensor:
        """Return a projection of the stream, times its factor."""
        out, factor = getattr(self, name)(x), self.factors.get(name, 1.0)
        return out if factor == 1.0 else out * factor

    def own_split(self) -> Split:
        """Return how heads may be divided over processes."""
        keys, heads = Columns(self.num_groups, repeats=True), Columns(self.num_heads)
        names = ("gate", "value", "timestep", "value_filter", "decay", "skip")
        parts = dict.fromkeys(("query", "key", "query_filter", "key_filter"), keys)
        parts |= dict.fromkeys(names, heads)
        others = {"norm": OnHeads(self.num_heads), "out": Rows(self.num_heads)}
        return Split({**parts, **others}, returns="out")


class GroupRMSNorm(nn.Module):
    """RMSNorm of groups of consecutive heads, with a weight for each dimension of all heads.

    Args:
      hidden_dim: width of all heads.
      num_groups: number of groups.
      eps: added to the mean of squares.

    Raises:
      ValueError: eps is negative or infinite.
    """

    def __init__(self, *, hidden_dim: int, num_groups: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_not_negative(eps=eps)
        self.num_groups = num_groups
        self.eps = eps
        self.weight = with_init(nn.Parameter(torch.empty(hidden_dim)), Constant(1.0))

    def forward(
        self, x: Float[Tensor, "*batch heads head_dim"]
    ) -> Float[Tensor, "*batch heads head_dim"]:
        groups = x.flatten(-2).unflatten(-1, (self.num_groups, -1))
        normalized = F.rms_norm(groups, groups.shape[-1:], None, self.eps).flatten(-2)
        return (normalized * self.weight).view_as(x)
