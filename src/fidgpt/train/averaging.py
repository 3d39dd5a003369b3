"""Averages of weights over the steps of a run, which are often better than the last weights."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.train.step import together


@runtime_checkable
class Average(Protocol):
    """Keeps an average of the weights that are trained.

    The words and meanings of those here are Levanter's: an average hears of the weights after every
    step that was taken, and its first value are the weights that the run began with.

    Attributes:
      has_history: whether anything was added, or restored, since it began.
    """

    has_history: bool

    def begin(self, model: nn.Module) -> None:
        """Takes memory for an average, and the model's weights as its first value."""
        ...

    def update(self, model: nn.Module, *, step: int) -> None:
        """Adds the weights after a step, counted from 0."""
        ...

    def exchange(self, model: nn.Module) -> None:
        """Puts the average in the place of the model's weights and these in its own; twice undoes.

        Raises:
          ValueError: the model has other parameters than those that are averaged.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class _Averaged:
    """Memory for an average of parameters, by their names."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self.has_history = False

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        self._weights = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.has_history = False

    @torch.no_grad()
    def exchange(self, model: nn.Module) -> None:
        # One after the other and in place: no second copy, and whoever holds a weight sees it.
        for own, parameter in zip(self._weights.values(), self._parameters(model), strict=True):
            held = parameter.detach().clone()
            parameter.copy_(own)
            own.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": dict(self._weights)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copies an average into the memory that `begin` took."""
        saved: Mapping[str, Tensor] = state["weights"]
        _require_same_names(saved, self._weights)
        for name, own in self._weights.items():
            own.copy_(saved[name])
        self.has_history = True

    @torch.no_grad()
    def _move(self, model: nn.Module, share: float) -> None:
        """Goes by a share of the way to the model's weights."""
        self.has_history = True
        own, new = [*self._weights.values()], [p.detach() for p in self._parameters(model)]
        for places in together(own):
            torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
                [own[place] for place in places], [new[place] for place in places], share
            )

    def _parameters(self, model: nn.Module) -> list[nn.Parameter]:
        trained = dict(model.named_parameters())
        missing = [name for name in self._weights if name not in trained]
        if missing or not self._weights:
            raise ValueError(f"the average is of another model: this one has no {missing[:1]}.")
        return [trained[name] for name in self._weights]


class Ema(_Averaged):
    """An exponential moving average: beta * average + (1 - beta) * weights, after every step.

    Args:
      beta: share of the average that stays, from 0 to less than 1.

    Raises:
      ValueError: beta is out of range.
    """

    def __init__(self, *, beta: float = 0.999) -> None:
        self.check_arguments(beta=beta)
        super().__init__()
        self.beta = beta

    @staticmethod
    def check_arguments(*, beta: float) -> None:
        """Raises ValueError unless beta is a share below 1."""
        _require_share(beta)

    def update(self, model: nn.Module, *, step: int) -> None:
        self._move(model, 1 - self.beta)


class EmaDecaySqrt(_Averaged):
    """An average in which steps weigh less and less after a switch.

    Weights after a step count 1 - beta before `switch_step`. From there on they count
    1 - sqrt(steps since the switch / decay_steps), after which the average stays. It is the
    weighted mean of all that was counted.

    Args:
      beta: from 0 to less than 1.
      switch_step: the first step, counted from 0, whose weights count 1.
      decay_steps: steps after the switch until weights count nothing.

    Raises:
      ValueError: beta is out of range, or steps are no counts.
    """

    def __init__(
        self, *, beta: float = 0.999, switch_step: int = 100_000, decay_steps: int = 100_000
    ) -> None:
        self.check_arguments(beta=beta, switch_step=switch_step, decay_steps=decay_steps)
        super().__init__()
        self.beta = beta
        self.switch_step = switch_step
        self.decay_steps = decay_steps
        self._total = 0.0

    @staticmethod
    def check_arguments(*, beta: float, switch_step: int, decay_steps: int) -> None:
        """Raises ValueError unless beta is a share below 1 and steps are counts."""
        _require_share(beta)
        if switch_step < 0 or decay_steps < 1:
            raise ValueError(f"{switch_step=} and {decay_steps=}: use 0 and 1 steps at least.")

    def begin(self, model: nn.Module) -> None:
        super().begin(model)
        self._total = 0.0

    def update(self, model: nn.Module, *, step: int) -> None:
        weight = self.weight(step)
        if weight:
            self._total += weight
            self._move(model, weight / self._total)

    def weight(self, step: int) -> float:
        """What the weights after a step, counted from 0, count."""
        if step < self.switch_step:
            return 1 - self.beta
        return 1 - math.sqrt(min(1.0, (step - self.switch_step) / self.decay_steps))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "total": self._total}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        super().load_state_dict(state)
        self._total = state["total"]


def _require_share(beta: float) -> None:
    if not 0 <= beta < 1:
        raise ValueError(f"{beta=} must be from 0 to less than 1.")


def _require_same_names(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    differ = sorted(saved.keys() ^ own.keys())
    if differ:
        raise ValueError(
            f"the average was saved of other parameters: {len(differ)} differ, the first is "
            f"{differ[0]}. Train the same ones, or leave the average out."
        )
