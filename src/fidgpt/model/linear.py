"""Linear layers: plain and low-rank."""

import functools
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, empty, nn

from fidgpt.model.init import GPT2_NORMAL, LECUN_NORMAL, ZEROS, Init, with_init
from fidgpt.ranges import require_positive, require_probability

__all__ = ["Linear", "LinearFactory", "LoRALinear", "MachineError", "is_adapter"]


@runtime_checkable
class LinearFactory(Protocol):
    """Makes the linear maps of a part, which says their sizes, biases and starts.

    `Linear` is one; `functools.partial(LoRALinear, rank=8)` is another. What it makes maps
    [..., in_features] to [..., out_features] and has a parameter `weight`.
    """

    def __call__(
        self, in_features: int, out_features: int, *, bias: bool, init: Init
    ) -> nn.Module: ...


class Linear(nn.Linear):
    """`y = x W^T + b`, whose weight starts as `init` says and whose bias starts at zero."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, init: Init = GPT2_NORMAL
    ) -> None:
        self.init = init
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Called by torch's own constructor in place of its uniform initialisation."""
        with_init(self.weight, self.init)
        if self.bias is not None:
            with_init(self.bias, ZEROS)


def require_adapter(*, rank: int, alpha: int | float | None, dropout: float) -> None:
    """Raise ValueError if a low-rank adapter cannot have these settings."""
    require_positive("alpha", alpha)
    if rank < 1:
        raise ValueError(f"{rank=} leaves no room for adapters; use a rank of 1 or more.")
    require_probability("dropout", dropout)


class LoRALinear(Linear):
    """`y = x W^T + b + alpha / rank * x A^T B^T` (Hu et al., 2021, arXiv:2106.09685).

    B starts at zero, so the map starts as that of a plain Linear, whose weights load into it under
    the same names. `lora_a` is A, [rank, in_features], and `lora_b` is B, [out_features, rank].
    Which parameters are trained is for who trains to say: `is_adapter` tells them apart.

    Args:
      in_features: width of what goes in.
      out_features: width of what comes out.
      rank: width between the two thin matrices.
      alpha: how strongly the adapters speak, over the rank; `rank` unless said.
      dropout: probability of dropping what goes into the adapters, in training.
      bias: adds a bias.
      init: start of the weight.
      adapter_init: start of A.

    Raises:
      ValueError: the rank is below 1, or the dropout is no probability below 1.
    """

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
        heard = F.dropout(input, self.dropout, self.training) if self.dropout else input
        adapted = F.linear(F.linear(heard, self.lora_a), self.lora_b)
        return super().forward(input).add(adapted, alpha=self.scale)

    def merged_weight(self) -> Float[Tensor, "outer inner"]:
        """The weight of the plain Linear that computes the same, but for dropout."""
        return self.weight.addmm(self.lora_b, self.lora_a, alpha=self.scale)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Both thin products, beside the one with `weight` that every Linear counts."""
        return 2 * (self.lora_a.numel() + self.lora_b.numel())


def is_adapter(name: str, parameter: Tensor) -> bool:
    """Whether a parameter of this name, as in `named_parameters`, is one of an adapter's."""
    return name.rpartition(".")[2] in ("lora_a", "lora_b")


def declared_flops(module: nn.Module, *, seq_len: int) -> tuple[int, int]:
    """Return a module's forward operations per token, without those of the modules inside.

    Args:
      module: any module; those with products beside a Linear's have `own_flops_per_token(seq_len)`.
      seq_len: tokens of a sequence.

    Returns:
      The operations of a Linear's product with its weight, and the others. A multiply-add is two.
    """
    linear = 2 * module.weight.numel() if isinstance(module, nn.Linear) else 0
    own = getattr(module, "own_flops_per_token", None)
    return linear, 0 if own is None else own(seq_len)


Mixin = TypeVar("Mixin", bound=nn.Module)


def extended(module: nn.Module, mixin: type[Mixin]) -> Mixin:
    """The module, of a class that is `mixin` before what it was.

    A module around it would say the same, but rename every parameter: its start, its group and
    its place in checkpoints go by name. Torch's `fully_shard` does so too. Once is enough: a block
    that all layers share is made once and comes again and again.
    """
    if not isinstance(module, mixin):
        module.__class__ = _joined(mixin, type(module))
    assert isinstance(module, mixin)
    return module


@functools.cache
def _joined(mixin: type[nn.Module], base: type[nn.Module]) -> type[nn.Module]:
    """One class for all modules of a class, so that they stay alike."""
    return type(f"{mixin.__name__}{base.__name__}", (mixin, base), {"__module__": base.__module__})


class MachineError(RuntimeError):
    """A machine lacks what a part of the model computes with; the message names the remedy."""


@runtime_checkable
class NeedsMachine(Protocol):
    """A part that computes with what not every machine has."""

    def require_machine(self, device: torch.device, /) -> None:
        """Raises MachineError where a device, or what is installed beside it, will not do."""
        ...


def require_machine(model: nn.Module, *, device: torch.device) -> None:
    """Asks every part of a model before anything is written, and not in the first step.

    Raises:
      MachineError: the machine lacks something.
    """
    for module in model.modules():
        if isinstance(module, NeedsMachine):
            module.require_machine(device)
