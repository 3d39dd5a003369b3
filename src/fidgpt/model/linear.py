"""Linear layers: plain and low-rank."""

import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, empty, nn

from fidgpt.model.init import GPT2_NORMAL, LECUN_NORMAL, ZEROS, Init, with_init
from fidgpt.placement import LINEAR_DIMS, Dims
from fidgpt.ranges import require_positive, require_probability, require_size

__all__ = [
    "AdaptersOf",
    "Linear",
    "LinearFactory",
    "LoRALinear",
    "MachineError",
    "is_adapter",
]


@runtime_checkable
class LinearFactory(Protocol):
    """Creates the linear layers of a component from their sizes, bias and init.

    Examples are `Linear` and `functools.partial(LoRALinear, rank=8)`. The layers map [...,
    in_features] to [..., out_features] and have a parameter `weight`.
    """

    def __call__(
        self, in_features: int, out_features: int, *, bias: bool, init: Init
    ) -> nn.Module: ...


class Linear(nn.Linear):
    """`y = x W^T + b`, with the weight initialized by `init` and the bias to zero."""

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = LINEAR_DIMS

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, init: Init = GPT2_NORMAL
    ) -> None:
        self.init = init
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Initialize the parameters; called by torch's constructor."""
        with_init(self.weight, self.init)
        if self.bias is not None:
            with_init(self.bias, ZEROS)


def require_adapter(*, rank: int, alpha: int | float | None, dropout: float) -> None:
    """Raise ValueError if settings of a low-rank adapter are out of range."""
    require_positive(alpha=alpha)
    require_size(rank=rank)
    require_probability(dropout=dropout)


class LoRALinear(Linear):
    """`y = x W^T + b + alpha / rank * x A^T B^T` (Hu et al., 2021, arXiv:2106.09685).

    `lora_a` is A, [rank, in_features], and `lora_b` is B, [out_features, rank]. B is initialized to
    zero, so the layer starts as a plain Linear, whose weights can be loaded under the same names.
    The trainer decides which parameters are trained; see `is_adapter`.

    Args:
      in_features: width of the input.
      out_features: width of the output.
      rank: rank of the adapter.
      alpha: scale of the adapter times `rank`; defaults to `rank`.
      dropout: probability of dropping an input of the adapter in training.
      bias: adds a bias.
      init: initializer of the weight.
      adapter_init: initializer of A.

    Raises:
      ValueError: the rank is below 1, or dropout is not in [0, 1).
    """

    MATRICES: ClassVar[Sequence[str]] = ("lora_a", "lora_b")
    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {
        "columns": {**LINEAR_DIMS["columns"], "lora_b": 0},
        "rows": {**LINEAR_DIMS["rows"], "lora_a": 1},
    }

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int,
        alpha: int | float | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        adapter_init: Init = LECUN_NORMAL,
    ) -> None:
        require_adapter(rank=rank, alpha=alpha, dropout=dropout)
        super().__init__(in_features, out_features, bias=bias, init=init)
        self.scale = 1.0 if alpha is None else alpha / rank
        self.dropout = dropout
        self.lora_a = with_init(nn.Parameter(empty(rank, in_features)), adapter_init)
        self.lora_b = with_init(nn.Parameter(empty(out_features, rank)), ZEROS)

    def forward(self, input: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        kept = F.dropout(input, self.dropout, self.training) if self.dropout else input
        narrow, out = F.linear(kept, self.lora_a), self.product(input)
        # In one operation: the adapter's output would be another tensor of this size.
        rows, thin = out.reshape(-1, out.shape[-1]), narrow.reshape(-1, narrow.shape[-1])
        return torch.addmm(rows, thin, self.lora_b.t(), alpha=self.scale).view_as(out)

    def product(self, input: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        """Return the output without the adapter's."""
        return super().forward(input)

    def merged_weight(self) -> Float[Tensor, "outer inner"]:
        """Return the weight of the equivalent Linear, ignoring dropout."""
        return self.weight.addmm(self.lora_b, self.lora_a, alpha=self.scale)


def is_adapter(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter, by its name in `named_parameters`, belongs to an adapter."""
    return name.rpartition(".")[2] in ("lora_a", "lora_b")


class AdaptersOf:
    """Whether a parameter belongs to an adapter of some modules; the others stay zero.

    Args:
      modules: the last parts of their paths, such as `query`.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def __call__(self, name: str, parameter: Tensor) -> bool:
        return is_adapter(name, parameter) and name.split(".")[-2] in self.modules

    def require_each(self, model: nn.Module) -> None:
        """Raise ValueError if there is a module without an adapter among those to train."""
        adapters = (name for name, one in model.named_parameters() if is_adapter(name, one))
        held = {name.split(".")[-2]: None for name in adapters}
        for module in self.modules:
            if module not in held:
                raise ValueError(f"modules: {module} has no adapter; {', '.join(held)} have.")


Mixin = TypeVar("Mixin", bound=nn.Module)


def extended(module: nn.Module, mixin: type[Mixin]) -> Mixin:
    """Add `mixin` to the bases of a module's class, and return the module; no-op if it has it.

    A wrapper module would rename every parameter, which changes its initialization, parameter group
    and checkpoint entry. torch's `fully_shard` changes the class in the same way.
    """
    if not isinstance(module, mixin):
        module.__class__ = _joined(mixin, type(module))
    assert isinstance(module, mixin)
    return module


@functools.cache
def _joined(mixin: type[nn.Module], base: type[nn.Module]) -> type[nn.Module]:
    """Return the class with both bases, cached so that modules of one class keep a common class."""
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), {"__module__": base.__module__})


class MachineError(RuntimeError):
    """The machine lacks something that a component requires; the message names the remedy."""


@runtime_checkable
class NeedsMachine(Protocol):
    """A component that does not run on every machine."""

    def require_machine(self, device: torch.device, /) -> None:
        """Raise MachineError if the device or an installed library is not supported."""


def require_machine(model: nn.Module, *, device: torch.device) -> None:
    """Check that all components of a model can run, before the run writes anything.

    Raises:
      MachineError: a component cannot run on this machine.
    """
    for module in model.modules():
        if isinstance(module, NeedsMachine):
            module.require_machine(device)
