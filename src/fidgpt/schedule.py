"""What a schedule is to the optimizer, to batches that grow and to mixtures of data."""

from typing import Protocol, runtime_checkable

__all__ = ["Schedule"]


@runtime_checkable
class Schedule(Protocol):
    """Multiplier of the learning rate, or of another quantity, at a step counted from 0."""

    def __call__(self, step: int, /) -> float: ...
