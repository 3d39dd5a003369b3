"""Policies for steps that diverge: skip them, roll back to a checkpoint, or abort."""

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fidgpt.ranges import require_not_negative, require_size

__all__ = ["Decision", "Divergence", "Guard", "RollBack", "SkipDiverged", "SkipOutliers"]


class Decision(enum.Enum):
    """What to do with a step."""

    APPLY = "apply"
    SKIP = "skip"
    ROLL_BACK = "roll back"
    ABORT = "abort"


@runtime_checkable
class Guard(Protocol):
    """Decides whether to apply a step whose loss and gradient norm are finite.

    Both are over all processes, so that every process decides alike.
    """

    def __call__(self, *, loss: float, grad_norm: float) -> Decision: ...


class SkipOutliers:
    """Skips a step whose loss or gradient norm is far above those of recent steps.

    Above the mean of the last `window` steps by more than `num_deviations` standard deviations. The
    numbers of skipped steps enter the window too, so that a run whose loss has risen for good
    continues (OLMo's SkipStepOptimizer; Team OLMo, 2025, arXiv:2501.00656). No step is skipped
    before half a window is full.

    Args:
      window: steps that a step is compared with.
      num_deviations: standard deviations above the mean that make a step an outlier.

    Raises:
      ValueError: the window holds fewer than two steps, or the deviations are below 0.
    """

    def __init__(self, *, window: int = 128, num_deviations: float = 6.0) -> None:
        if window < 2:
            raise ValueError(f"{window=} must be 2 or more steps to have a deviation.")
        require_not_negative(num_deviations=num_deviations)
        self.window = window
        self.num_deviations = num_deviations
        self._losses: deque[float] = deque(maxlen=window)
        self._grad_norms: deque[float] = deque(maxlen=window)

    def __call__(self, *, loss: float, grad_norm: float) -> Decision:
        judged = [(loss, self._losses), (grad_norm, self._grad_norms)]
        is_known = len(self._losses) >= max(2, self.window // 2)
        is_outlier = any(value > self._threshold(recent) for value, recent in judged if is_known)
        for value, recent in judged:
            recent.append(value)
        return Decision.SKIP if is_outlier else Decision.APPLY

    def _threshold(self, values: Iterable[float]) -> float:
        numbers = [*values]
        mean = math.fsum(numbers) / len(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        return mean + self.num_deviations * math.sqrt(squares / (len(numbers) - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": [*self._losses], "grad_norms": [*self._grad_norms]}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore the newest numbers that fit into the window."""
        self._losses = deque(state["losses"], maxlen=self.window)
        self._grad_norms = deque(state["grad_norms"], maxlen=self.window)


class Diverged(Exception):
    """A step that can be neither applied nor skipped; the message names what is not finite.

    Attributes:
      decision: ROLL_BACK or ABORT.
    """

    def __init__(self, decision: Decision, message: str) -> None:
        super().__init__(message)
        self.decision = decision


def report(numbers: Mapping[str, float], *, bad: Sequence[str], num_parameters: int) -> str:
    """Describe a step whose loss or gradients are not finite.

    Args:
      numbers: its metrics by name.
      bad: names of the parameters whose gradients are not finite, in the model's order.
      num_parameters: how many parameters the model has.
    """
    wrong = {name: value for name, value in numbers.items() if not math.isfinite(value)}
    text = ", ".join(f"{name} is {value}" for name, value in wrong.items())
    text += f" at a learning rate of {numbers['learning_rate']:.4g}"
    if not bad:
        return f"{text}. All gradients are finite."
    # The backward pass runs from the last parameter to the first, and NaN spreads on its way.
    return (
        f"{text}. The gradients of {len(bad)} of {num_parameters} parameters are not finite; "
        f"the backward pass reached {bad[-1]} first."
    )


@runtime_checkable
class Divergence(Protocol):
    """Decides about steps whose loss or gradient norm is not finite.

    Attributes:
      shift: how many batches the data is ahead of the step count.
    """

    shift: int

    def __call__(self, *, is_finite: bool) -> Decision:
        """Called once a step; a finite step must be applied."""
        ...


class SkipDiverged:
    """Skips the step: its batch is consumed, and the weights stay as they are.

    Args:
      most: skipped steps in a row; the run aborts at the next one.

    Raises:
      ValueError: `most` is below 1.
    """

    shift = 0

    def __init__(self, *, most: int = 10) -> None:
        require_size(most=most)
        self.most = most
        self._in_a_row = 0

    def __call__(self, *, is_finite: bool) -> Decision:
        self._in_a_row = 0 if is_finite else self._in_a_row + 1
        if is_finite:
            return Decision.APPLY
        return Decision.SKIP if self._in_a_row <= self.most else Decision.ABORT

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._in_a_row = state["in_a_row"]


class RollBack:
    """Rolls back to the last good checkpoint and continues from there with other batches.

    It continues with the batch after the one that diverged, or with a later one, as PaLM was
    trained (Chowdhery et al., 2022, arXiv:2204.02311, section 5.1).

    Args:
      most: roll-backs in a run; it aborts at the next one.
      skip_batches: how many more batches are skipped each time.

    Attributes:
      shift: how many batches were skipped so far.
      num_roll_backs: how often the run was rolled back.

    Raises:
      ValueError: `most` is below 1, or `skip_batches` below 0.
    """

    def __init__(self, *, most: int = 3, skip_batches: int = 0) -> None:
        require_size(most=most)
        require_not_negative(skip_batches=skip_batches)
        self.most = most
        self.skip_batches = skip_batches
        self.shift = 0
        self.num_roll_backs = 0

    def __call__(self, *, is_finite: bool) -> Decision:
        if is_finite:
            return Decision.APPLY
        return Decision.ROLL_BACK if self.num_roll_backs < self.most else Decision.ABORT

    def rolled_back(self, *, step: int, to: int) -> None:
        """Record that the run went from `step` back to the checkpoint of step `to`."""
        self.shift += step - to + self.skip_batches
        self.num_roll_backs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"shift": self.shift, "num_roll_backs": self.num_roll_backs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.shift = state["shift"]
        self.num_roll_backs = state["num_roll_backs"]


def advice(policy: Divergence | None) -> str:
    """Name the policies that a run which diverged could use instead of its own."""
    back = "roll back automatically and continue with other batches: --config=fiddler:use_roll_back"
    skip = "skip such steps: --config=fiddler:use_divergence_skip"
    if isinstance(policy, RollBack):
        return f"The run rolls back at most divergence.most={policy.most} times. Or {skip}"
    if isinstance(policy, SkipDiverged):
        return f"At most divergence.most={policy.most} steps in a row are skipped. Or {back}"
    return f"Or {back}; or {skip}"
