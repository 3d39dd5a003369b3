"""Experts: many MLPs as one, each weight stacked over them, for rows sorted by expert."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.activations import Activation, gelu_tanh
from fidgpt.model.cost import flops_per_token
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.mlp import gated_ffn_dim
from fidgpt.model.moe.adapters import AdapterFactory
from fidgpt.model.moe.grouped import Groups
from fidgpt.model.moe.stacked import Experts, StackedExperts
from fidgpt.ranges import require_size

Gating = Callable[[Tensor, Tensor], Tensor]


def swiglu(
    gate: Float[Tensor, "*batch ffn"], up: Float[Tensor, "*batch ffn"]
) -> Float[Tensor, "*batch ffn"]:
    """`silu(gate) * up` (Shazeer, 2020, arXiv:2002.05202)."""
    return F.silu(gate) * up


def geglu(
    gate: Float[Tensor, "*batch ffn"], up: Float[Tensor, "*batch ffn"]
) -> Float[Tensor, "*batch ffn"]:
    """`gelu(gate) * up` with the tanh form of GELU."""
    return gelu_tanh(gate) * up


class Gated:
    """`activation(gate) * up`, for an activation that has no function of its own here."""

    def __init__(self, *, activation: Activation) -> None:
        self.activation = activation

    def __call__(
        self, gate: Float[Tensor, "*batch ffn"], up: Float[Tensor, "*batch ffn"]
    ) -> Float[Tensor, "*batch ffn"]:
        return self.activation(gate) * up


class ClampedSwiGLU:
    """gpt-oss's gating (OpenAI, 2025, arXiv:2508.10925): `(up + 1) * gate * sigmoid(alpha * gate)`.

    Before, both are cut at `limit`: the gate above, `up` on either side.
    """

    def __init__(self, *, alpha: float = 1.702, limit: float = 7.0) -> None:
        self.alpha = alpha
        self.limit = limit

    def __call__(
        self, gate: Float[Tensor, "*batch ffn"], up: Float[Tensor, "*batch ffn"]
    ) -> Float[Tensor, "*batch ffn"]:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


class _FeedForwardExperts(StackedExperts):
    """Experts that go out to a width inside and back again."""

    @staticmethod
    def check_arguments(*, hidden_dim: int, num_experts: int, ffn_dim: int | None) -> None:
        """Raises ValueError unless there are experts, and all widths are 1 or more."""
        require_size("hidden_dim", hidden_dim)
        require_size("num_experts", num_experts)
        require_size("ffn_dim", ffn_dim)


class PlainExperts(_FeedForwardExperts):
    """Experts that compute `down(activation(up(x)))`.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: how many there are.
      ffn_dim: width inside each; 4 * hidden_dim unless said.
      activation: what happens inside, number by number.
      adapter: makes what is trained beside the matrices of a projection, such as `StackedLoRA`.
      bias: adds a bias to both projections.
      init: start of the projection up.
      out_init: start of the projection down, `init` unless said.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_experts: int,
        ffn_dim: int | None = None,
        activation: Activation = gelu_tanh,
        adapter: AdapterFactory | None = None,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__(num_experts=num_experts)
        self.check_arguments(hidden_dim=hidden_dim, num_experts=num_experts, ffn_dim=ffn_dim)
        ffn_dim = 4 * hidden_dim if ffn_dim is None else ffn_dim
        self.activation = activation
        self.up = self._stacked(ffn_dim, hidden_dim, init)
        self.down = self._stacked(hidden_dim, ffn_dim, out_init or init)
        self.up_bias = self._biases(ffn_dim, bias)
        self.down_bias = self._biases(hidden_dim, bias)
        self._adapt(adapter, "up", "down")

    def forward(
        self, rows: Float[Tensor, "rows hidden"], groups: Groups
    ) -> Float[Tensor, "rows hidden"]:
        inside = self.activation(self._linear(rows, "up", groups))
        return self._linear(inside, "down", groups)


class GatedExperts(_FeedForwardExperts):
    """Experts that compute `down(gating(gate(x), up(x)))`.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: how many there are.
      ffn_dim: width inside each; `gated_ffn_dim` of the width unless said.
      gating: joins the two projections inside.
      adapter: makes what is trained beside the matrices of a projection, such as `StackedLoRA`.
      bias: adds a bias to all three projections.
      init: start of the gate and the projection up.
      out_init: start of the projection down, `init` unless said.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_experts: int,
        ffn_dim: int | None = None,
        gating: Gating = swiglu,
        adapter: AdapterFactory | None = None,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        out_init: Init | None = None,
    ) -> None:
        super().__init__(num_experts=num_experts)
        self.check_arguments(hidden_dim=hidden_dim, num_experts=num_experts, ffn_dim=ffn_dim)
        ffn_dim = gated_ffn_dim(hidden_dim=hidden_dim) if ffn_dim is None else ffn_dim
        self.gating = gating
        self.gate = self._stacked(ffn_dim, hidden_dim, init)
        self.up = self._stacked(ffn_dim, hidden_dim, init)
        self.down = self._stacked(hidden_dim, ffn_dim, out_init or init)
        self.gate_bias = self._biases(ffn_dim, bias)
        self.up_bias = self._biases(ffn_dim, bias)
        self.down_bias = self._biases(hidden_dim, bias)
        self._adapt(adapter, "gate", "up", "down")

    def forward(
        self, rows: Float[Tensor, "rows hidden"], groups: Groups
    ) -> Float[Tensor, "rows hidden"]:
        gate, up = (self._linear(rows, name, groups) for name in ("gate", "up"))
        return self._linear(self.gating(gate, up), "down", groups)


class SeparateExperts(Experts):
    """Experts of any kind, each a module of its own and computed by itself: slow, but general.

    Args:
      num_experts: how many there are.
      expert: makes one, a module from [rows, hidden] to [rows, hidden].
    """

    def __init__(self, *, num_experts: int, expert: Callable[[], nn.Module]) -> None:
        super().__init__(num_experts=num_experts)
        self.each = nn.ModuleList(expert() for _ in range(num_experts))

    def forward(
        self, rows: Float[Tensor, "rows hidden"], groups: Groups
    ) -> Float[Tensor, "rows hidden"]:
        parts = zip(self.each, rows.split(groups.sizes()), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    def parameters_per_expert(self) -> int:
        """Numbers to learn that one expert holds."""
        return sum(parameter.numel() for parameter in self.each[0].parameters())

    def flops_per_row(self) -> int:
        """Forward floating-point operations of a row, a multiply-add counted as two."""
        return flops_per_token(self.each[0], seq_len=1)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Takes back what counts each of these modules as if every token went through it."""
        return -self.num_experts * self.flops_per_row()
