"""Averages of weights over the steps of a run, often better than the last weights."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.placement import placed_like
from fidgpt.ranges import require_not_negative, require_probability, require_size
from fidgpt.train.gradients import by_mesh

__all__ = ["Average", "Ema", "EmaDecaySqrt", "EvaluationWeights"]


@runtime_checkable
class EvaluationWeights(Protocol):
    """An optimizer that trains other weights than it evaluates, as `ScheduleFreeAdamW` does.

    The trainer evaluates, samples and saves with the weights to evaluate, so that a checkpoint's
    model is ready to be used, and leaves them in the model at the end of a run.
    """

    def swap_weights(self) -> None:
        """Swap the trained weights in the parameters with those to evaluate.

        A second call restores the trained ones bit for bit, also if it follows `load_state_dict` of
        a state that was saved between the two.
        """
        ...


@runtime_checkable
class Average(Protocol):
    """Keeps an average of the trained weights.

    Names and meanings follow Levanter: an average is updated after every step that was applied, and
    starts from the initial weights.

    Attributes:
      has_history: whether it was updated, or restored, since `begin`.
    """

    has_history: bool

    def begin(self, model: nn.Module) -> None:
        """Allocate the average, and start it from the model's weights."""

    def update(self, model: nn.Module, *, step: int) -> None:
        """Add the weights after a step, counted from 0."""

    def exchange(self, model: nn.Module) -> None:
        """Swap the average with the model's weights; calling it twice restores both."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def _learned(model: nn.Module) -> dict[str, Tensor]:
    """Return trained parameters, and the saved buffers of finite numbers, by name.

    Of a constant such as a mask of -inf, a mean would be NaN.
    """
    saved = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {
        **{name: p for name, p in model.named_parameters() if p.requires_grad},
        **{k: b for k, b in buffers.items() if b.is_floating_point() and b.isfinite().all()},
    }


class Ema:
    """An exponential moving average: beta * average + (1 - beta) * weights, after every step.

    Args:
      beta: weight of the old average, from 0 to less than 1.

    Raises:
      ValueError: beta is out of range.
    """

    def __init__(self, *, beta: float = 0.999) -> None:
        require_probability(beta=beta)
        self.beta = beta
        self._weights: dict[str, Tensor] = {}
        self.has_history = False

    def update(self, model: nn.Module, *, step: int) -> None:
        self._move(model, 1 - self.beta)

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        self._weights = {
            name: placed_like(parameter.detach().clone(), parameter)
            for name, parameter in _learned(model).items()
        }
        self.has_history = False

    @torch.no_grad()
    def exchange(self, model: nn.Module) -> None:
        # One by one and in place: without a second copy, and seen by whoever holds a weight.
        for own, parameter in zip(self._weights.values(), self._parameters(model), strict=True):
            held = parameter.detach().clone()
            parameter.copy_(own)
            own.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": dict(self._weights)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy a saved average into the one that `begin` allocated."""
        saved: Mapping[str, Tensor] = state["weights"]
        for name, own in self._weights.items():
            own.copy_(saved[name])
        self.has_history = True

    @torch.no_grad()
    def _move(self, model: nn.Module, share: float) -> None:
        """Move by a share of the way to the model's weights."""
        self.has_history = True
        weights = [p.detach() for p in self._parameters(model)]
        for own, new in by_mesh([*self._weights.values()], weights):
            torch._foreach_lerp_(own, new, share)  # pyright: ignore[reportPrivateImportUsage]

    def _parameters(self, model: nn.Module) -> list[Tensor]:
        trained = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        return [trained[name] for name in self._weights]


class EmaDecaySqrt(Ema):
    """A weighted mean in which later steps count less and less after a switch.

    Weights after a step count 1 - beta before `switch_step`. From there on they count
    1 - sqrt(steps since the switch / decay_steps), and after that nothing.

    Args:
      beta: from 0 to less than 1.
      switch_step: the first step, counted from 0, whose weights count 1.
      decay_steps: steps after the switch until weights count nothing.

    Raises:
      ValueError: beta is out of range, or steps are negative.
    """

    def __init__(
        self, *, beta: float = 0.999, switch_step: int = 100_000, decay_steps: int = 100_000
    ) -> None:
        require_not_negative(switch_step=switch_step)
        require_size(decay_steps=decay_steps)
        super().__init__(beta=beta)
        self.switch_step = switch_step
        self.decay_steps = decay_steps
        self._total = 0.0

    def begin(self, model: nn.Module) -> None:
        super().begin(model)
        self._total = 0.0

    def update(self, model: nn.Module, *, step: int) -> None:
        weight = self.weight(step)
        if weight:
            self._total += weight
            self._move(model, weight / self._total)

    def weight(self, step: int) -> float:
        """Return the weight of a step, counted from 0."""
        if step < self.switch_step:
            return 1 - self.beta
        return 1 - math.sqrt(min(1.0, (step - self.switch_step) / self.decay_steps))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "total": self._total}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        super().load_state_dict(state)
        self._total = state["total"]
