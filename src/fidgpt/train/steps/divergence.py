"""What a run does about a step whose loss or gradients are no numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fidgpt.train.steps.guards import Verdict


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
