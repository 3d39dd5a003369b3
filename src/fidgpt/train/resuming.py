"""Whether a run can go on, told before its text is opened and its model has memory."""

import contextlib
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from fidgpt.train.beginning import require_same_way
from fidgpt.train.checkpoints import check_fit, has_checkpoints
from fidgpt.train.facts.footprint import NEEDS_NUMBERS
from fidgpt.train.facts.group_facts import trainable_copy
from fidgpt.train.run import RunDirectory

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def check_resumable(trainer: "Trainer", run: RunDirectory, *, step: int | None = None) -> None:
    """Raises what to go on would raise, as far as names, shapes and counts tell it.

    What is not known without reading it is not told of: another text, or a damaged file.

    Args:
      trainer: what goes on; its model may be on the meta device, and stays there.
      run: its directory; nothing is written.
      step: of the checkpoint; the newest unless said.

    Raises:
      CheckpointError: there is no such checkpoint, or it does not fit the model or the optimizer.
      RunError: the run read its text otherwise than by this config, is past its end, or its
        directory cannot be written.
    """
    run.require_writable()
    has_any = has_checkpoints(run.path)
    if not has_any and (step is None or trainer.checkpoints.mirror is not None):
        return  # it begins anew, or with what the mirror has
    model = trainable_copy(trainer)
    found, state = check_fit(run.path, step, model=model, optimizer=_optimizer(trainer, model))
    shift = 0 if trainer.divergence is None else state.get("shift")
    require_same_way(trainer, run, step=found, state=state, shift=shift)


def _optimizer(trainer: "Trainer", model: nn.Module) -> Optimizer | None:
    """The optimizer of a model without memory; None where it asks for numbers."""
    with contextlib.suppress(*NEEDS_NUMBERS):
        return trainer.optimizer(trainer.groups(model))
    return None
