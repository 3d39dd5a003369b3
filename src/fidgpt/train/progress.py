"""What a checkpoint records of a run's progress, and whether a config continues it."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.data import BegunStage, TrainingStream
from fidgpt.train.run_directory import RunError
from fidgpt.train.state import TrainState


def progress(data: TrainingStream, state: TrainState) -> dict[str, Any]:
    """Return what a checkpoint holds of a run besides tensors."""
    return {
        "data": data.checksum,
        "full_batches": data.full_batches(state.step),
        "shift": state.shift,
        "stages": [list(stage) for stage in data.stages_begun(state.step + state.shift)],
        "settings": state.settings,
    }


def check_text(saved: Mapping[str, Any], data: TrainingStream, *, path: Path) -> None:
    """Raise RunError if the run in `path` was trained on another text than `data`."""
    if saved["data"] != data.checksum:
        raise RunError(
            f"the text of {path}, or how it is packed, has changed since the run began: restore "
            "the old one, or start a new run."
        )


def check_progress(
    saved: Mapping[str, Any],
    data: TrainingStream,
    *,
    step: int,
    shift: int | None,
    num_steps: int,
    path: Path,
) -> None:
    """Check that a run reached `step` as this config would have, and has steps left.

    Args:
      saved: what `progress` returned for the checkpoint.
      data: the training stream; its text need not be there.
      step: of the checkpoint.
      shift: how many batches the data was ahead of the step count; None if unknown.
      num_steps: of the run, by this config.
      path: the run directory.

    Raises:
      RunError: the run read its text in another way, or is past its end.
    """
    batches = data.full_batches(step)
    if saved.get("full_batches", batches) != batches:
        raise RunError(
            f"{path} has read {saved['full_batches']:g} full batches in {step} steps, which by "
            f"this config would be {batches:g}: its batch size grew in another way. Let it grow "
            "over the same number of steps, given as a count and not as a fraction of the run."
        )
    if shift is not None:
        begun = [BegunStage(*stage) for stage in saved.get("stages", [])]
        for old, new in itertools.zip_longest(begun, data.stages_begun(step + shift)):
            if old != new:
                raise RunError(
                    f"{path} has read its texts in other shares: its mixture had "
                    f"{f'a stage from {old} on' if old else 'no further stage'}, and by this "
                    f"config has {f'one from {new} on' if new else 'none there'}. Keep the stages "
                    "that have begun as they were, starting at a step: those that start at a "
                    "fraction of the run move with num_steps."
                )
    if step > num_steps:
        raise RunError(
            f"{path} has done {step} steps already, and num_steps={num_steps}: increase it, or "
            "choose an earlier --resume_step."
        )
