"""What a test does before the steps of a run."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from fidgpt.train import TrainStep


def before_steps(act: Callable[[Any, Any], object]) -> Any:
    """Patch steps so that each one begins with a call of a function, with run and state."""
    launch = TrainStep.launch

    def launching(self: TrainStep, run: Any, state: Any, *batch: Any, **options: Any) -> Any:
        act(run, state)
        return launch(self, run, state, *batch, **options)

    return patch.object(TrainStep, "launch", launching)
