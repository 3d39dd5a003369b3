"""Policies for steps that diverge."""

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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


class Diverged(Exception):
    """The run cannot go on from a step; the message says what is no number.

    Attributes:
      verdict: what is to be done.
    """

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


def report(numbers: Mapping[str, float], *, spoilt: Sequence[str], num_parameters: int) -> str:
    """What a person should know of a step whose loss or gradients are no numbers.

    Args:
      numbers: what was measured, by name.
      spoilt: names of the parameters whose gradients are not finite, in the model's order.
      num_parameters: of how many.
    """
    wrong = {name: value for name, value in numbers.items() if not math.isfinite(value)}
    told = ", ".join(f"{name} is {value}" for name, value in wrong.items())
    told += f" at a learning rate of {numbers['learning_rate']:.4g}"
    if not spoilt:
        return f"{told}. All gradients are finite."
    # Backward passes go from the last parameter to the first: what is spoilt spoils the rest.
    return (
        f"{told}. The gradients of {len(spoilt)} of {num_parameters} parameters are not finite; "
        f"the backward pass came first to {spoilt[-1]}."
    )


@runtime_checkable
class Divergence(Protocol):
    """Says what becomes of a step whose loss or gradient norm is not finite.

    Attributes:
      shift: how many batches further on in their order the run reads than its steps say.
    """

    shift: int

    def __call__(self, *, is_finite: bool) -> Verdict:
        """Hears of every step, before it is taken; one that is finite is to be taken."""
        ...


class SkipDiverged:
    """Leaves the step out: its batch is read, and weights stay as they are.

    Args:
      most: such steps in a row; the run ends at the next one.

    Raises:
      ValueError: `most` is below 1.
    """

    shift = 0

    def __init__(self, *, most: int = 10) -> None:
        self.check_arguments(most=most)
        self.most = most
        self._in_a_row = 0

    @staticmethod
    def check_arguments(*, most: int) -> None:
        """Raises ValueError unless a step may be left out."""
        _require_some(most, "steps in a row")

    def __call__(self, *, is_finite: bool) -> Verdict:
        self._in_a_row = 0 if is_finite else self._in_a_row + 1
        if is_finite:
            return Verdict.TAKE
        return Verdict.SKIP if self._in_a_row <= self.most else Verdict.ABORT

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._in_a_row = state["in_a_row"]


class RollBack:
    """Goes back to the last good checkpoint, and reads other batches from there on.

    It goes on with the batch after the one that did harm, or with a later one, as PaLM was trained
    (Chowdhery et al., 2022, arXiv:2204.02311, section 5.1).

    Args:
      most: times in a run; it ends at the next one.
      skip_batches: how many more batches are left out each time.

    Attributes:
      shift: how many batches were left out so far.
      num_roll_backs: how often the run went back.

    Raises:
      ValueError: `most` is below 1, or fewer than 0 batches are left out.
    """

    def __init__(self, *, most: int = 3, skip_batches: int = 0) -> None:
        self.check_arguments(most=most, skip_batches=skip_batches)
        self.most = most
        self.skip_batches = skip_batches
        self.shift = 0
        self.num_roll_backs = 0

    @staticmethod
    def check_arguments(*, most: int, skip_batches: int) -> None:
        """Raises ValueError unless the run may go back, and batches are a count."""
        _require_some(most, "times")
        if skip_batches < 0:
            raise ValueError(f"{skip_batches=} must be 0 or more batches.")

    def __call__(self, *, is_finite: bool) -> Verdict:
        if is_finite:
            return Verdict.TAKE
        return Verdict.ROLL_BACK if self.num_roll_backs < self.most else Verdict.ABORT

    def went_back(self, *, step: int, to: int) -> None:
        """To be called once the run went back from a step to a checkpoint of step `to`."""
        self.shift += step - to + self.skip_batches
        self.num_roll_backs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"shift": self.shift, "num_roll_backs": self.num_roll_backs}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.shift = state["shift"]
        self.num_roll_backs = state["num_roll_backs"]


def _require_some(most: int, what: str) -> None:
    if most < 1:
        raise ValueError(f"{most=} must be 1 or more {what}; leave the part out to end at once.")
