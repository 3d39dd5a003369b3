"""Experts with stacked weights, and the dispatch of tokens to them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from fidgpt.model.blocks import TokenwiseModule
from fidgpt.model.init import GPT2_NORMAL, LECUN_NORMAL, ZEROS, Init, with_init
from fidgpt.model.linear import declared_flops, require_adapter
from fidgpt.model.mlp import Activation, gated_ffn_dim, gelu_tanh
from fidgpt.model.reports import RealCount, report_metric
from fidgpt.placement import Columns, Dims, Once, Split
from fidgpt.placement import Rows as SplitRows
from fidgpt.ranges import require_positive, require_size

__all__ = [
    "AdapterFactory",
    "Capacity",
    "ClampedSwiGLU",
    "Dispatch",
    "Experts",
    "Gated",
    "GatedExperts",
    "Gating",
    "Groups",
    "PlainExperts",
    "RealTokens",
    "SeparateExperts",
    "StackedExperts",
    "StackedLoRA",
    "dropless",
    "geglu",
    "swiglu",
    "weighted_inputs",
]


_ALIGNMENT = 16  # bytes to which torch's kernels require rows to be aligned
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


Rows = Float[Tensor, "rows hidden"]
Inside = Float[Tensor, "rows inside"]
Outside = Float[Tensor, "rows outside"]
Matrices = Float[Tensor, "groups outside inside"]
Biases = Float[Tensor, "groups outside"]


class Groups(NamedTuple):
    """The assignment of rows to groups.

    Attributes:
      owners: group of each row, in ascending order.
      ends: end offset of each group, exclusive.
      filled: number of rows of each group that hold a token, its first ones; None if all do.
    """

    owners: Int64[Tensor, " rows"]
    ends: Int32[Tensor, " groups"]
    filled: Int64[Tensor, " groups"] | None = None

    def sizes(self) -> list[int]:
        """Return the number of rows of each group; synchronizes with the device."""
        return _sizes(self.ends)


def grouped_linear(
    rows: Inside, weight: Matrices, groups: Groups, bias: Biases | None = None
) -> Outside:
    """Compute `y = x W_g^T + b_g` for each row x of group g; groups may be empty.

    Uses torch's grouped_mm if rows are aligned, which takes 10% to 25% less time than one product
    per group (forward and backward in float32 on one core of an AMD EPYC).
    """
    if _takes(rows, weight):
        out = F.grouped_mm(rows, weight.transpose(-2, -1), offs=groups.ends)
    else:
        out = _by_loop(rows, weight, groups.ends)
    return out if bias is None else out + bias[groups.owners]


def _takes(rows: Tensor, weight: Tensor) -> bool:
    """Return whether torch's grouped_mm supports these tensors in the current mode."""
    if any(size * rows.element_size() % _ALIGNMENT for size in weight.shape[1:]):
        return False
    if rows.is_meta or torch.compiler.is_compiling():
        return rows.dtype == torch.bfloat16  # the only dtype of its meta kernel
    return rows.dtype in _DTYPES


@torch.library.custom_op("fidgpt::grouped_linear", mutates_args=())
def _by_loop(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    # A custom operator, because group sizes are unknown to torch.compile.
    parts = zip(rows.split(_sizes(ends)), weight, strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts])


@_by_loop.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@torch.library.custom_op("fidgpt::grouped_outer", mutates_args=())
def _outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Return the sum of outer products over the rows of each group."""
    sizes = _sizes(ends)
    return torch.stack(
        [a.T @ b for a, b in zip(left.split(sizes), right.split(sizes), strict=True)]
    )


@_outer.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(len(ends), left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weight, ends = ctx.saved_tensors
    return _by_loop(gradient, weight.mT, ends), _outer(gradient, rows, ends), None


_by_loop.register_autograd(_gradients, setup_context=_keep)


@register_flop_formula(torch.ops.fidgpt.grouped_linear)
def _linear_flops(rows: Sequence[int], weight: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * rows[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.fidgpt.grouped_outer)
def _outer_flops(left: Sequence[int], right: Sequence[int], *rest: object, **more: object) -> int:
    return 2 * left[0] * left[1] * right[1]


def _sizes(ends: Tensor) -> list[int]:
    return ends.diff(prepend=ends.new_zeros(1)).tolist()


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


class Experts(nn.Module):
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

    def flops_per_row(self) -> int:
        """Return forward floating-point operations per row; a multiply-add is two."""
        return 2 * sum(p[0].numel() for p in self.parameters() if p.dim() == 3)


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
        columns = [f"{prefix}{name}" for name in ("gate", "up") for prefix in ("", "adapters.")]
        biases = ["gate_bias", "up_bias"]
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

    def __init__(self, *, num_experts: int, expert: Callable[[], TokenwiseModule]) -> None:
        super().__init__(num_experts=num_experts)
        self.each = nn.ModuleList(cast(nn.Module, expert()) for _ in range(num_experts))
        self.first_expert = 0

    def forward(self, rows: Rows, groups: Groups) -> Rows:
        parts = enumerate(rows.split(groups.sizes()), start=self.first_expert)
        return torch.cat([self.each[number](part) for number, part in parts])

    def parameters_per_expert(self) -> int:
        """Return the number of parameters of one expert."""
        return sum(parameter.numel() for parameter in self.each[0].parameters())

    def flops_per_row(self) -> int:
        """Return forward floating-point operations per row; a multiply-add is two."""
        parts = self.each[0].named_modules(remove_duplicate=False)
        return sum(sum(declared_flops(part, seq_len=1)) for _, part in parts)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Return a correction, because each module is counted as if all tokens used it."""
        return -self.num_experts * self.flops_per_row()


Chosen = Int64[Tensor, "tokens top_k"]
Weights = Float[Tensor, "tokens top_k"]


@dataclass(frozen=True, eq=False)
class RealTokens:
    """Which tokens of a pass are no padding.

    Attributes:
      count: how a mean over these tokens is weighted, as in `report_loss`.
      mask: whether each token of this process is one of them; None if all are.
      whole: the same of whole rows, of which other processes may compute a part.
    """

    count: int | RealCount
    mask: Bool[Tensor, "*batch"] | None = None
    whole: Bool[Tensor, "batch columns"] | None = None

    def mean(self, x: Float[Tensor, "tokens ..."]) -> Float[Tensor, "..."]:
        """Return the mean over tokens, the first dimension of `x`."""
        if self.mask is None:
            return x.mean(dim=0)
        return _where(self.mask.flatten(), x).sum(dim=0) / self.mask.sum().clamp_min(1)

    def mean_of_rows(self, x: Float[Tensor, "*batch vector"]) -> Float[Tensor, "..."]:
        """Return the mean of each row, to which its other processes add theirs in equal parts."""
        if self.mask is None or self.whole is None:
            return x.mean(dim=-2)
        columns = self.mask.shape[-1] / self.whole.shape[-1]
        count = self.whole.sum(dim=-1, keepdim=True).clamp_min(1) * columns
        return _where(self.mask, x).sum(dim=-2) / count


def _where(mask: Tensor, x: Tensor) -> Tensor:
    """Return zero where the mask of the first dimensions is false."""
    return torch.where(mask.view(*mask.shape, *[1] * (x.dim() - mask.dim())), x, 0.0)


@runtime_checkable
class Dispatch(Protocol):
    """Sends tokens [tokens, hidden] through their experts, and returns the weighted sums."""

    def __call__(
        self,
        x: Rows,
        chosen: Chosen,
        weights: Weights,
        experts: Experts,
        real: RealTokens | None = None,
        /,
    ) -> Rows:
        """Return a sum for each token; that of padding is arbitrary, but finite.

        Args:
          x: tokens.
          chosen: experts of each token.
          weights: of their outputs.
          experts: the experts.
          real: which tokens are no padding; None if all are.
        """
        ...


def dropless(
    x: Rows, chosen: Chosen, weights: Weights, experts: Experts, real: RealTokens | None = None
) -> Rows:
    """Send every token to all of its experts, without a capacity; padding too.

    Rows are sorted by expert (Gale et al., 2022, MegaBlocks, arXiv:2211.15841). All sums have a
    fixed order, so results are deterministic on GPUs too.
    """
    owners, order = chosen.flatten().sort(stable=True)
    bounds = torch.arange(experts.num_experts, device=x.device)
    ends = torch.searchsorted(owners, bounds, right=True, out_int32=True)
    places = order.argsort()
    rows = _Copied.apply(x, order, places)
    out = experts(rows, Groups(owners, ends)).index_select(0, places)
    return _weighted(out.unflatten(0, chosen.shape), weights)


def weighted_inputs(
    x: Rows, chosen: Chosen, weights: Weights, experts: Experts, real: RealTokens | None = None
) -> Rows:
    """Send every token to its experts, with the weights on their inputs (Llama 4, Meta, 2025).

    Otherwise as `dropless`, which weights the outputs.
    """
    rows = (x.unsqueeze(1) * weights.to(x.dtype).unsqueeze(-1)).flatten(0, 1)
    alone = chosen.reshape(-1, 1)
    ones = torch.ones_like(alone, dtype=weights.dtype)
    return dropless(rows, alone, ones, experts).unflatten(0, chosen.shape).sum(1)


class Capacity(nn.Module):
    """Dispatch with a maximum number of tokens per expert in training; the rest are dropped.

    The capacity of an expert is `factor` times its even share; padding takes no place. All shapes
    are static. First choices take priority over second ones, then earlier tokens over later ones
    (Lepikhin et al., 2020, GShard, arXiv:2006.16668; Fedus et al., 2021, Switch, arXiv:2101.03961).
    The metric `moe/dropped` is the fraction of dropped choices.

    Which tokens are dropped depends on the whole batch, including later tokens. In evaluation
    nothing is dropped (the papers use a larger capacity), so that outputs do not depend on the
    batch or the cache.

    Args:
      factor: capacity of an expert relative to its even share.

    Raises:
      ValueError: the factor is not above zero.
    """

    def __init__(self, *, factor: float = 1.25) -> None:
        super().__init__()
        require_positive(factor=factor)
        self.factor = factor

    def forward(
        self,
        x: Rows,
        chosen: Chosen,
        weights: Weights,
        experts: Experts,
        real: RealTokens | None = None,
    ) -> Rows:
        if not self.training:
            return dropless(x, chosen, weights, experts)
        real = RealTokens(len(chosen)) if real is None else real
        capacity = math.ceil(min(self.factor * chosen.numel() / experts.num_experts, len(chosen)))
        slots = self._slots(chosen, experts.num_experts, capacity=capacity, mask=real.mask)
        num_slots = experts.num_experts * capacity  # an additional slot holds dropped choices
        dropped = (slots == num_slots).float()
        fraction = dropped.mean() if real.mask is None else real.mean(dropped).mean()
        report_metric("moe/dropped", fraction, count=real.count)
        copies = x.unsqueeze(1).expand(-1, chosen.shape[1], -1).flatten(0, 1)
        rows = x.new_zeros(num_slots + 1, x.shape[1]).index_copy(0, slots.flatten(), copies)
        owners = torch.arange(experts.num_experts, device=x.device).repeat_interleave(capacity)
        ends = torch.arange(capacity, num_slots + 1, capacity, device=x.device, dtype=torch.int32)
        filled = torch.zeros_like(rows[:, 0], dtype=torch.int64).index_fill(0, slots.flatten(), 1)
        out = experts(rows[:-1], Groups(owners, ends, filled[:-1].view(-1, capacity).sum(1)))
        out = torch.cat([out, out.new_zeros(1, out.shape[1])]).index_select(0, slots.flatten())
        return _weighted(out.unflatten(0, chosen.shape), weights)

    def _slots(
        self, chosen: Chosen, num_experts: int, *, capacity: int, mask: Tensor | None
    ) -> Chosen:
        """Return the slot of each choice; dropped choices, and padding, get the last slot."""
        room: int | Tensor = capacity
        if mask is not None:  # that of the tokens that are no padding
            chosen = chosen.masked_fill(~mask.flatten().unsqueeze(-1), num_experts)
            number = mask.sum()
            shares = self.factor * (number * chosen.shape[1]).double() / num_experts
            room = shares.minimum(number).ceil()
        queue = chosen.T.flatten()  # all first choices, then all second choices
        owners, order = queue.sort(stable=True)
        heads = torch.searchsorted(owners, owners)
        waiting = torch.arange(len(queue), device=queue.device) - heads
        has_slot = (waiting < room) & (owners < num_experts)
        slots = torch.where(has_slot, owners * capacity + waiting, num_experts * capacity)
        return torch.empty_like(queue).scatter(0, order, slots).view_as(chosen.T).T.contiguous()


def _weighted(out: Float[Tensor, "tokens top_k hidden"], weights: Weights) -> Rows:
    return torch.bmm(weights.to(out.dtype).unsqueeze(1), out).squeeze(1)


class _Copied(torch.autograd.Function):
    """Copies rows per choice; the gradient of torch's index_select sums in no fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.top_k = len(order) // len(x)
        return x.index_select(0, order // ctx.top_k)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return outer[0].index_select(0, places).unflatten(0, (-1, ctx.top_k)).sum(1), None, None
