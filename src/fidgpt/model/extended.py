"""A module that does more than its class: the same object, with the same names of parameters."""

import functools
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

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
