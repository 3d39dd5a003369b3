"""Models beside the one that is trained: references of preferences, teachers of distillation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from torch import nn

from fidgpt import cost
from fidgpt.attributes import changed
from fidgpt.model import LoRALinear, StackedLoRA
from fidgpt.model.materialization import materialize
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.train_step import StepSettings

Module = TypeVar("Module", bound=nn.Module)
Weights = Callable[[LanguageModel], None]


def blueprint_of(model: Module) -> Module:
    """Return a copy of a model without memory, which `frozen` fills."""
    copy = cost.without_memory(model)
    for own, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        vars(own).update(vars(theirs))  # such as its `init`
    return copy


def frozen(blueprint: LanguageModel, weights: Weights | None, run: StepSettings) -> LanguageModel:
    """Return a model that is not trained; every process has all of it.

    Args:
      blueprint: what `blueprint_of` returned.
      weights: initializes it; None for the random values of the run's seed.
      run: has the seed, the number format and the device.
    """
    model = blueprint_of(blueprint)
    materialize(model, device=run.parallel.device, seed=run.seed)
    if weights is not None:
        weights(model)
    return run.precision.replica(model).eval().requires_grad_(False)


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has low-rank adapters."""
    return any(isinstance(module, LoRALinear | StackedLoRA) for module in model.modules())


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Let a model compute without its low-rank adapters inside the block."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, LoRALinear | StackedLoRA):
                stack.enter_context(changed(module, scale=0.0))
        yield
