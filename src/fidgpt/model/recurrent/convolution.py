"""Short convolution between gates."""

from typing import ClassVar

from fidgpt.model.context import AttentionContext, Stream, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.model.recurrent.filters import CausalFilter
from fidgpt.placement import Columns, Rows, Split

__all__ = ["ShortConvolution"]


class ShortConvolution(ExtensibleModule):
    """`W_out (c * filter(b * x))`, with b, c and x projected from the stream (LFM2, 2025).

    The filters of all channels are causal and a few tokens long.

    Args:
      hidden_dim: width of the residual stream, and number of channels.
      filter_size: length of the filters in tokens.
      linear: makes the projections.
      bias: adds a bias to projections and filters.
      init: of all projections but the last.
      out_init: of the output projection; defaults to `init`.

    Raises:
      ValueError: a size is below 1.
    """

    ROLE: ClassVar[str] = "Mixer"

    def __init__(
        self,
        *,
        hidden_dim: int,
        filter_size: int = 3,
        linear: LinearFactory = Linear,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__()
        self.channels = hidden_dim
        self.in_gate = linear(hidden_dim, hidden_dim, bias=bias, init=init)
        self.out_gate = linear(hidden_dim, hidden_dim, bias=bias, init=init)
        self.value = linear(hidden_dim, hidden_dim, bias=bias, init=init)
        self.filter = CausalFilter(hidden_dim, size=filter_size, bias=bias)
        self.out = linear(hidden_dim, hidden_dim, bias=bias, init=out_init or init)

    def forward(self, x: Stream, ctx: AttentionContext | None = None) -> Stream:
        """Mix tokens; without a context every row is one document."""
        ctx = counted(x.shape[1], x.device) if ctx is None else ctx
        (gated,) = ctx.whole_rows([self.in_gate(x) * self.value(x)])
        return self.out(self.out_gate(x) * ctx.own(self.filter(gated, ctx.rows)))

    def own_split(self) -> Split:
        """Return how channels may be divided over processes."""
        names = ("in_gate", "out_gate", "value", "filter")
        columns = dict.fromkeys(names, Columns(self.channels))
        return Split({**columns, "out": Rows(self.channels)}, returns="out")
