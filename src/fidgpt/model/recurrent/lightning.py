"""Lightning attention: linear attention whose heads forget at fixed rates."""

from typing import ClassVar

import torch
import torch.nn.functional as F

from fidgpt.model.attention import require_heads
from fidgpt.model.context import AttentionContext, Stream, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.norm import AcrossHeads, NormFactory, RMSNorm
from fidgpt.model.recurrent.kernels import fastest_recurrence
from fidgpt.model.recurrent.recurrence import Recurrence, Steps, recur
from fidgpt.placement import Columns, OnHeads, Rows, Split

__all__ = ["LightningAttention"]


class LightningAttention(ExtensibleModule):
    """Lightning attention (Qin et al., 2024, arXiv:2401.04658; MiniMax-01, 2025, arXiv:2501.08313).

    Queries, keys and values are SiLUs. A state S of each head is updated by `S_t = exp(-rate)
    S_(t-1) + k_t v_t` and read by `S_t^T q_t`. The rate of head h of n, from 1 on, is `2^(-8 h /
    n)` in the first layer, as slopes of ALiBi are, and falls over the depth to nearly 0.
    The results of all heads are normalized together, and multiplied with a sigmoid gate.

    Args:
      hidden_dim: width of the residual stream.
      head_dim: dimensions per head.
      num_heads: number of heads; defaults to hidden_dim / head_dim.
      norm: makes the norm of all heads together.
      recurrence: computes the states.
      linear: makes the projections.
      init: of all projections but the last.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: head_dim does not divide hidden_dim.
    """

    ROLE: ClassVar[str] = "Mixer"
    split_place = (0, 1)  # which part of the heads this process computes, of how many
    layer_place = (0, 1)  # which layer this is, of how many; set by the model

    def __init__(
        self,
        *,
        hidden_dim: int,
        head_dim: int,
        num_heads: int | None = None,
        norm: NormFactory = RMSNorm,
        recurrence: Recurrence = fastest_recurrence,
        linear: LinearFactory = Linear,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        num_heads = require_heads(hidden_dim=hidden_dim, head_dim=head_dim, num_heads=num_heads)
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.recurrence = recurrence
        width = num_heads * head_dim
        self.query = linear(hidden_dim, width, bias=False, init=init)
        self.key = linear(hidden_dim, width, bias=False, init=init)
        self.value = linear(hidden_dim, width, bias=False, init=init)
        self.gate = linear(hidden_dim, width, bias=False, init=init)
        self.norm = AcrossHeads(norm(hidden_dim=width))
        self.out = linear(width, hidden_dim, bias=False, init=out_init or init)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        parts = [F.silu(project(x)) for project in (self.query, self.key, self.value)]
        wide = torch.promote_types(x.dtype, torch.float32)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).to(wide) for part in ctx.whole_rows(parts)
        )
        steps = Steps(query, key, value, self._log_decay(value))
        mixed = recur(self, self.recurrence, ctx, steps)
        mixed = self.norm(ctx.own(mixed).to(x.dtype)).flatten(2)
        return self.out(mixed * torch.sigmoid(self.gate(x)))

    def _log_decay(self, value: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the decays of this process's heads, for each token."""
        batch, seq, heads = value.shape[:3]
        first = self.split_place[0] * heads + 1
        numbers = torch.arange(first, first + heads, device=value.device, dtype=value.dtype)
        layer, num_layers = self.layer_place
        depth = 1 - layer / (num_layers - 1 + 1e-5) + 1e-5  # as in the code of MiniMax-01
        rates = depth * torch.exp2(-8 / self.num_heads * numbers)
        return -rates.view(1, 1, -1, 1).expand(batch, seq, -1, -1)

    def own_split(self) -> Split:
        """Return how heads may be divided over processes."""
        heads = dict.fromkeys(("query", "key", "value", "gate"), Columns(self.num_heads))
        parts = {**heads, "norm": OnHeads(self.num_heads), "out": Rows(self.num_heads)}
        return Split(parts, returns="out")
