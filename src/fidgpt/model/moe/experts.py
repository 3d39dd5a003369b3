"""Experts of equal shape: with stacked weights, or as separate modules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.blocks import FeedForward
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, LECUN_NORMAL, ZEROS, Init, with_init
from fidgpt.model.linear import require_adapter
from fidgpt.model.mlp import Activation, gated_ffn_dim, gelu_tanh
from fidgpt.model.moe.grouped import Groups, Inside, Matrices, Outside, grouped_linear
from fidgpt.placement import Columns, Dims, Once, Split
from fidgpt.placement import Rows as SplitRows
from fidgpt.ranges import require_size

__all__ = [
    "AdapterFactory",
    "ClampedSwiGLU",
    "Experts",
    "Gated",
    "GatedExperts",
    "Gating",
    "PlainExperts",
    "SeparateExperts",
    "StackedExperts",
    "StackedLoRA",
    "geglu",
    "swiglu",
]

Rows = Float[Tensor, "rows hidden"]


class StackedLoRA(nn.Module):
    """`alpha / rank * x A_e^T B_e^T` for each row x of expert e: a `LoRALinear` for each expert.

    `lora_a` is A, [num_experts, rank, inside], and `lora_b` is B, [num_experts, outside, rank],
    initialized to zero (Hu et al., 2021, arXiv:2106.09685).

    Args:
      num_experts: number of experts.
      outside: width of the output.
      inside: width of the input.
      rank: rank of the adapters.
      alpha: scale of the adapters times `rank`; defaults to `rank`.
      dropout: probability of dropping an input of the adapters in training.
      adapter_init: initializer of A.

    Raises:
      ValueError: the rank is below 1, or dropout is not in [0, 1).
    """

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {"columns": {"lora_b": 1}, "rows": {"lora_a": 2}}
    MATRICES: ClassVar[Sequence[str]] = ("lora_a", "lora_b")
    PER_EXPERT: ClassVar[Sequence[str]] = ("lora_a", "lora_b")

    def __init__(
        self,
        num_experts: int,
        outside: int,
        inside: int,
        *,
        rank: int,
        alpha: int | float | None = None,
        dropout: float = 0.0,
        adapter_init: Init = LECUN_NORMAL,
    ) -> None:
        super().__init__()
        require_adapter(rank=rank, alpha=alpha, dropout=dropout)
        self.scale = 1.0 if alpha is None else alpha / rank
        self.dropout = dropout
        self.lora_a = with_init(nn.Parameter(torch.empty(num_experts, rank, inside)), adapter_init)
        self.lora_b = with_init(nn.Parameter(torch.empty(num_experts, outside, rank)), ZEROS)

    def forward(self, rows: Inside, groups: Groups) -> Outside:
        kept = F.dropout(rows, self.dropout, self.training) if self.dropout else rows
        thin = grouped_linear(kept, self.lora_a, groups)
        return self.scale * grouped_linear(thin, self.lora_b, groups)

    def merged_into(self, weight: Matrices) -> Matrices:
        """Return the equivalent matrices without adapters, ignoring dropout."""
        return weight.baddbmm(self.lora_b, self.lora_a, alpha=self.scale)


@runtime_checkable
class AdapterFactory(Protocol):
    """Creates adapters of stacked matrices, such as `functools.partial(StackedLoRA, rank=8)`."""

    def __call__(self, num_experts: int, outside: int, inside: int, /) -> StackedLoRA: ...


class Experts(ExtensibleModule):
    """Base class of experts of equal shape.

    If their class names in `PER_EXPERT` what there is of each expert, they may be divided over
    processes. Each computes some of them then: these are its groups, and the rows of its stacks.
    """

    def __init__(self, *, num_experts: int) -> None:
        super().__init__()
        require_size(num_experts=num_experts)
        self.num_experts = num_experts

    def forward(self, rows: Rows, groups: Groups) -> Rows:
        """Send each row through the expert of its group."""
        raise NotImplementedError

    def parameters_per_expert(self) -> int:
        """Return the number of parameters of one expert."""
        return sum(parameter[0].numel() for parameter in self.parameters())


class StackedExperts(Experts):
    """Experts with stacked matrices, [num_experts, outside, inside], and their adapters."""

    MATRICES: ClassVar[Sequence[str]] = ("gate", "up", "down")
    PER_EXPERT: ClassVar[Sequence[str]] = (
        *MATRICES,
        *("gate_bias", "up_bias", "down_bias"),
    )
    adapters: nn.ModuleDict

    def _split(self) -> Split:
        """Return how the intermediate width of every expert may be divided over processes."""
        width = self.get_parameter("up").shape[1]
        wide, narrow = Columns(width, dim=1), SplitRows(width, dim=2)
        names = [name for name in ("gate", "up") if hasattr(self, name)]
        columns = [f"{prefix}{name}" for name in names for prefix in ("", "adapters.")]
        biases = [f"{name}_bias" for name in names]
        return Split(
            dict.fromkeys([*columns, *biases], wide)
            | dict.fromkeys(["down", "adapters.down"], narrow)
            | {"down_bias": Once()}
        )

    def merged_weight(self, name: str) -> Matrices:
        """Return the equivalent matrices without their adapter, ignoring dropout."""
        weight = self.get_parameter(name)
        if name not in self.adapters:
            return weight
        return cast(StackedLoRA, self.adapters[name]).merged_into(weight)

    def _stacked(self, outside: int, inside: int, init: Init) -> nn.Parameter:
        return with_init(nn.Parameter(torch.empty(self.num_experts, outside, inside)), init)

    def _biases(self, outside: int, bias: bool) -> nn.Parameter | None:
        shape = self.num_experts, outside
        return with_init(nn.Parameter(torch.empty(shape)), ZEROS) if bias else None

    def _adapt(self, adapter: AdapterFactory | None, *names: str) -> None:
        """Add an adapter to each of the named matrices."""
        self.adapters = nn.ModuleDict()
        if adapter is not None:
            self.adapters.update({name: adapter(*self.get_parameter(name).shape) for name in names})

    def _linear(self, rows: Inside, name: str, groups: Groups) -> Outside:
        """Apply the named matrix of its expert to each row, with bias and adapter."""
        out = grouped_linear(rows, getattr(self, name), groups, getattr(self, f"{name}_bias"))
        return out + self.adapters[name](rows, groups) if name in self.adapters else out


Gating = Callable[[Tensor, Tensor], Tensor]
Wide = Float[Tensor, "*batch ffn"]


def swiglu(gate: Wide, up: Wide) -> Wide:
    """`silu(gate) * up` (Shazeer, 2020, arXiv:2002.05202)."""
    return F.silu(gate) * up


def geglu(gate: Wide, up: Wide) -> Wide:
    """`gelu(gate) * up` with the tanh form of GELU."""
    return gelu_tanh(gate) * up


@dataclass(eq=False, kw_only=True)
class Gated:
    """`activation(gate) * up` with any activation."""

    activation: Activation

    def __call__(self, gate: Wide, up: Wide) -> Wide:
        return self.activation(gate) * up


@dataclass(eq=False, kw_only=True)
class ClampedSwiGLU:
    """gpt-oss's gating (OpenAI, 2025, arXiv:2508.10925): `(up + 1) * gate * sigmoid(alpha * gate)`.

    First, the gate is clamped to at most `limit`, and `up` to [-limit, limit].
    """

    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, gate: Wide, up: Wide) -> Wide:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


class PlainExperts(StackedExperts):
    """Experts that compute `down(activation(up(x)))`.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: number of experts.
      ffn_dim: intermediate width; defaults to 4 * hidden_dim.
      activation: elementwise function.
      adapter: makes adapters of the projections, such as `StackedLoRA`.
      bias: adds a bias to both projections.
      init: of the up projection.
      out_init: of the down projection; defaults to `init`.
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
        require_size(hidden_dim=hidden_dim, ffn_dim=ffn_dim)
        ffn_dim = 4 * hidden_dim if ffn_dim is None else ffn_dim
        self.activation = activation
        self.up = self._stacked(ffn_dim, hidden_dim, init)
        self.down = self._stacked(hidden_dim, ffn_dim, out_init or init)
        self.up_bias = self._biases(ffn_dim, bias)
        self.down_bias = self._biases(hidden_dim, bias)
        self._adapt(adapter, "up", "down")

    def forward(self, rows: Rows, groups: Groups) -> Rows:
        inside = self.activation(self._linear(rows, "up", groups))
        return self._linear(inside, "down", groups)

    def own_split(self) -> Split:
        """Return how the intermediate width of every expert may be divided over processes."""
        return self._split()


class GatedExperts(StackedExperts):
    """Experts that compute `down(gating(gate(x), up(x)))`.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: number of experts.
      ffn_dim: intermediate width; defaults to `gated_ffn_dim` of hidden_dim.
      gating: combines the gate and up projections.
      adapter: makes adapters of the projections, such as `StackedLoRA`.
      bias: adds a bias to all three projections.
      init: of the gate and up projections.
      out_init: of the down projection; defaults to `init`.
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
        require_size(hidden_dim=hidden_dim, ffn_dim=ffn_dim)
        ffn_dim = gated_ffn_dim(hidden_dim=hidden_dim) if ffn_dim is None else ffn_dim
        self.gating = gating
        self.gate = self._stacked(ffn_dim, hidden_dim, init)
        self.up = self._stacked(ffn_dim, hidden_dim, init)
        self.down = self._stacked(hidden_dim, ffn_dim, out_init or init)
        self.gate_bias = self._biases(ffn_dim, bias)
        self.up_bias = self._biases(ffn_dim, bias)
        self.down_bias = self._biases(hidden_dim, bias)
        self._adapt(adapter, "gate", "up", "down")

    def forward(self, rows: Rows, groups: Groups) -> Rows:
        gate, up = (self._linear(rows, name, groups) for name in ("gate", "up"))
        return self._linear(self.gating(gate, up), "down", groups)

    def own_split(self) -> Split:
        """Return how the intermediate width of every expert may be divided over processes."""
        return self._split()


class SeparateExperts(Experts):
    """Experts that are separate modules of any kind: general, but slow.

    Args:
      num_experts: number of experts.
      expert: creates an expert, a module from [rows, hidden] to [rows, hidden].

    Attributes:
      first_expert: the first one that this process computes.
    """

    PER_EXPERT: ClassVar[Sequence[str]] = ("each",)

    def __init__(self, *, num_experts: int, expert: Callable[[], FeedForward]) -> None:
        super().__init__(num_experts=num_experts)
        self.each = nn.ModuleList(cast(nn.Module, expert()) for _ in range(num_experts))
        self.first_expert = 0

    def forward(self, rows: Rows, groups: Groups) -> Rows:
        parts = enumerate(rows.split(groups.sizes()), start=self.first_expert)
        return torch.cat([self.each[number](part) for number, part in parts])

    def parameters_per_expert(self) -> int:
        """Return the number of parameters of one expert."""
        return sum(parameter.numel() for parameter in self.each[0].parameters())
