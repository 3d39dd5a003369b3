"""What looks at a step's loss and gradients before weights move, and may leave the step out."""

import enum
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

_LONGEST = 1_000_000  # steps; each adds to what every step reads and every checkpoint holds


class Verdict(enum.Enum):
    """What becomes of a step."""

    TAKE = "take"
    SKIP = "skip"
    ROLL_BACK = "roll back"
    ABORT = "abort"


@runtime_checkable
class Guard(Protocol):
    """Says whether a step is worth taking, whose loss and gradient norm are finite.

    Both numbers are those of all processes, so that all of them hear the same.
    """

    def __call__(self, *, loss: float, grad_norm: float) -> Verdict: ...


class SkipOutliers:
    """Leaves out a step whose loss or gradient norm is far above those of the steps before it.

    Above the mean of the last `window` steps by more than `num_deviations` standard deviations. The
    numbers of steps that were left out are in the window too, so that a run whose loss has risen
    for good goes on (OLMo's SkipStepOptimizer; Team OLMo, 2025, arXiv:2501.00656). No step is left
    out before half a window is full.

    Args:
      window: steps that a step is compared with.
      num_deviations: standard deviations above the mean from which on a step is an outlier.

    Raises:
      ValueError: the window holds fewer than two steps or too many, or the deviations are below 0.
    """

    def __init__(self, *, window: int = 128, num_deviations: float = 6.0) -> None:
        self.check_arguments(window=window, num_deviations=num_deviations)
        self.window = window
        self.num_deviations = num_deviations
        self._losses: deque[float] = deque(maxlen=window)
        self._grad_norms: deque[float] = deque(maxlen=window)

    @staticmethod
    def check_arguments(*, window: int, num_deviations: float) -> None:
        """Raises ValueError unless there is a deviation to be measured, and to be exceeded."""
        if window < 2:
            raise ValueError(f"{window=} must be 2 or more steps, or nothing deviates.")
        if window > _LONGEST:
            raise ValueError(f"{window=} must be at most {_LONGEST} steps, all of which are kept.")
        if num_deviations < 0:
            raise ValueError(f"{num_deviations=} must be 0 or more standard deviations.")

    def __call__(self, *, loss: float, grad_norm: float) -> Verdict:
        judged = [(loss, self._losses), (grad_norm, self._grad_norms)]
        is_known = len(self._losses) >= max(2, self.window // 2)
        is_outlier = any(value > self._threshold(before) for value, before in judged if is_known)
        for value, before in judged:
            before.append(value)
        return Verdict.SKIP if is_outlier else Verdict.TAKE

    def _threshold(self, values: Iterable[float]) -> float:
        numbers = [*values]
        mean = math.fsum(numbers) / len(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        return mean + self.num_deviations * math.sqrt(squares / (len(numbers) - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": [*self._losses], "grad_norms": [*self._grad_norms]}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Takes the newest numbers that fit into the window."""
        self._losses = deque(state["losses"], maxlen=self.window)
        self._grad_norms = deque(state["grad_norms"], maxlen=self.window)
