"""What a run saves of itself, and when."""

from typing import TYPE_CHECKING, Any

from fidgpt.train.learner import Learner
from fidgpt.train.recovery import refuse_spoilt
from fidgpt.train.run import RunDirectory
from fidgpt.train.tracking.trackers import Row

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def save_where_due(
    trainer: "Trainer", learner: Learner, run: RunDirectory, row: Row, *, is_due: bool
) -> None:
    """Saves a checkpoint of the step that a row is of, if the policies want one or `is_due`.

    Raises:
      Diverged: the weights are spoilt.
      CheckpointError: it cannot be written.
    """
    reasons = trainer.checkpoints.due(
        row["step"],
        num_steps=trainer.num_steps,
        directory=run.path,
        row=row,
        agree=trainer.parallel.agree,
    )
    if not (is_due or reasons):
        return
    with learner.clock.phase("saving"):
        refuse_spoilt(learner)
        trainer.parallel.on_main(run.sync)  # a checkpoint without the rows before it is half of one
        trainer.checkpoints.save(
            run.path,
            step=row["step"],
            model=learner.model,
            optimizer=learner.optimizer,
            stateful=learner.stateful,
            state=progress(trainer, learner, row["step"]),
            reasons=reasons,
            row=row,
        )


def progress(trainer: "Trainer", learner: Learner, step: int) -> dict[str, Any]:
    """What a checkpoint holds of a run besides tensors; `restore` compares it."""
    return {
        "data": trainer.data.checksum,
        "full_batches": trainer.data.full_batches(step),
        "shift": learner.shift,
        "stages": [list(one) for one in trainer.data.stages_begun(step + learner.shift)],
        "settings": learner.settings,
    }
