"""Gated delta nets: linear attention that overwrites what its state holds under a key."""

from collections import OrderedDict
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.attention import require_heads
from fidgpt.model.context import AttentionContext, Stream, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.norm import NormFactory, RMSNorm
from fidgpt.model.recurrent.decay import Decay, LogOfUniform
from fidgpt.model.recurrent.filters import CausalFilter
from fidgpt.model.recurrent.kernels import fastest_recurrence
from fidgpt.model.recurrent.recurrence import Recurrence, Steps, recur
from fidgpt.placement import Columns, OnHeads, Rows, Split
from fidgpt.ranges import require_size

__all__ = ["GatedDeltaNet", "KimiDeltaNet"]

SLOW = LogOfUniform(low=0.01)


class GatedDeltaNet(ExtensibleModule):
    """Gated delta net (Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464), as in Qwen3-Next.

    Queries, keys and values pass a short convolution and SiLU; queries and keys are normalized to
    length 1, and queries divided by sqrt(head_dim). A state S of each head is updated by `S_t = a_t
    S_(t-1) + b_t k_t (v_t - (a_t S_(t-1))^T k_t)` and read by `S_t^T q_t`, with a decay a and a
    rate b of each token. The result is normalized, multiplied with a gate and projected.

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions of a query and key head.
      num_heads: number of heads, each with values, a gate, a decay and a rate; defaults to
        hidden_dim / head_dim.
      num_key_heads: number of query and key heads, which consecutive heads share; defaults to
        num_heads.
      value_head_dim: dimensions of a value; defaults to head_dim.
      filter_size: length of the convolutions in tokens.
      max_rate: the largest rate b; above 1, what a key reads may change its sign (Grazzi et al.,
        2024, arXiv:2411.12537).
      norm: makes the norm of a head's result.
      recurrence: computes the states.
      linear: makes the projections.
      init: of all projections but the last.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide hidden_dim, num_key_heads does not divide num_heads, or a
        size is below 1.
    """

    ROLE: ClassVar[str] = "Mixer"
    decays_rows: ClassVar[bool] = False  # whether each row of a state has a decay

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        num_heads: int | None = None,
        num_key_heads: int | None = None,
        value_head_dim: int | None = None,
        filter_size: int = 4,
        max_rate: float = 1.0,
        norm: NormFactory = RMSNorm,
        recurrence: Recurrence = fastest_recurrence,
        linear: LinearFactory = Linear,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        require_size(num_key_heads=num_key_heads, value_head_dim=value_head_dim)
        num_key_heads = num_key_heads or num_heads
        value_head_dim = value_head_dim or head_dim
        if num_heads % num_key_heads:
            raise ValueError(f"{num_heads=} must be a multiple of {num_key_heads=}.")
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_key_heads = num_key_heads
        self.value_head_dim = value_head_dim
        self.max_rate = max_rate
        self.recurrence = recurrence
        keys, values = num_key_heads * head_dim, num_heads * value_head_dim
        self.query = linear(hidden_dim, keys, bias=False, init=init)
        self.key = linear(hidden_dim, keys, bias=False, init=init)
        self.value = linear(hidden_dim, values, bias=False, init=init)

        def by_head_dim(width: int) -> nn.Module:
            down = linear(hidden_dim, head_dim, bias=False, init=init)
            up = linear(head_dim, width, bias=False, init=init)
            return nn.Sequential(OrderedDict(down=down, up=up))

        gates = partial(linear, hidden_dim, bias=False, init=init)
        gates, size, rates = (by_head_dim, head_dim, None) if self.decays_rows else (gates, 1, SLOW)
        self.gate = gates(values)
        self.beta = linear(hidden_dim, num_heads, bias=False, init=init)
        self.timestep = gates(num_heads * size)
        self.query_filter = CausalFilter(keys, size=filter_size)
        self.key_filter = CausalFilter(keys, size=filter_size)
        self.value_filter = CausalFilter(values, size=filter_size)
        self.decay = Decay(num_heads=num_heads, size=size, init=rates)
        self.norm = norm(hidden_dim=value_head_dim)
        self.out = linear(values, hidden_dim, bias=False, init=out_init or init)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        projections = (self.query, self.key, self.value, self.timestep, self.beta)
        query, key, value, timestep, beta = ctx.whole_rows([project(x) for project in projections])
        rows = ctx.rows
        query = unit_heads(self.query_filter(query, rows), self.head_dim) * self.head_dim**-0.5
        key = unit_heads(self.key_filter(key, rows), self.head_dim)
        value = F.silu(self.value_filter(value, rows)).unflatten(-1, (-1, self.value_head_dim))
        log_decay = self.decay(timestep)
        query, key, value, beta = (x.to(log_decay.dtype) for x in (query, key, value, beta))
        steps = Steps(query, key, value, log_decay, self.max_rate * beta.sigmoid())
        mixed = recur(self, self.recurrence, ctx, steps)
        mixed = self.norm(ctx.own(mixed).to(x.dtype)).flatten(2)
        return self.out(mixed * self._gate(x))

    def _gate(self, x: Stream) -> Float[Tensor, "batch seq values"]:
        """Return the factors of the normalized results of all heads."""
        return F.silu(self.gate(x))

    def own_split(self) -> Split:
        """Return how heads may be divided over processes."""
        keys, heads = Columns(self.num_key_heads, repeats=True), Columns(self.num_heads)
        names = ("value", "gate", "beta", "timestep", "value_filter", "decay")
        parts = dict.fromkeys(("query", "key", "query_filter", "key_filter"), keys)
        parts |= dict.fromkeys(names, heads)
        others = {"norm": OnHeads(self.num_heads), "out": Rows(self.num_heads)}
        return Split({**parts, **others}, returns="out")


class KimiDeltaNet(GatedDeltaNet):
    """Gated delta net with a decay for each row of the state (Kimi Linear, 2025, arXiv:2510.26692).

    Decays and gates are projected by way of `head_dim` dimensions, and gates are sigmoids.

    It takes the arguments of `GatedDeltaNet`.
    """

    decays_rows = True

    def _gate(self, x: Stream) -> Float[Tensor, "batch seq values"]:
        return torch.sigmoid(self.gate(x))

    def own_split(self) -> Split:
        """Return how heads may be divided, where each process has all down projections."""
        parts = dict(super().own_split().parts)
        parts |= {f"{name}.up": parts.pop(name) for name in ("timestep", "gate")}
        return Split(parts, returns="out")


def unit_heads(x: Float[Tensor, "batch seq channels"], head_dim: int) -> Tensor:
    """Return SiLU of filtered channels, with heads of length 1, in float32 or wider."""
    heads = F.silu(x).unflatten(-1, (-1, head_dim))
    heads = heads.to(torch.promote_types(x.dtype, torch.float32))
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)
