"""What the trainer asks of everything that is measured from time to time during a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import nn

from fidgpt.model.language_model import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train.losses.loss import CrossEntropy


@runtime_checkable
class Evaluator(Protocol):
    """Something that is measured from time to time during a run."""

    def prepare(self, *, show_progress: bool = True) -> None:
        """Makes ready what is measured on, and finds mistakes before training begins."""
        ...

    def due(self, step: int, *, num_steps: int) -> bool:
        """Whether it is measured after a step."""
        ...

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """What was measured, by name, the same on every process; called on all of them."""
        ...


class Periodic:
    """An evaluator's times: every so many steps, and after the last.

    Args:
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, *, every: int | None = None) -> None:
        self.check_arguments(every=every)
        self.every = every

    @staticmethod
    def check_arguments(*, every: int | None) -> None:
        """Raises ValueError unless `every` is at least 1."""
        if every is not None and every < 1:
            raise ValueError(f"{every=} must be 1 or more steps, or None for the last step only.")

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps or (self.every is not None and step % self.every == 0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as for somebody who uses it, without dropout for one."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
