"""How a run begins or goes on: its text, its directory, its model and optimizer."""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fidgpt.data import BegunStage, check_vocab_size
from fidgpt.model.extended import require_machine
from fidgpt.model.materialize import materialize
from fidgpt.optim.predicates import train_only
from fidgpt.train.checkpoints import has_checkpoints
from fidgpt.train.learner import Learner
from fidgpt.train.observers.observers import require_devices
from fidgpt.train.run import RunDirectory, RunError
from fidgpt.train.telling import tell
from fidgpt.train.tracking import require_packages

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def prepare(trainer: "Trainer") -> None:
    """Makes the texts ready, and asks what would end the run later, before its directory is made.

    Raises:
      RunError: a tracker's package is not installed, or an observer cannot see this device.
      MachineError: the model cannot compute on this machine.
      DataError: a text cannot be read, or its tokens are not in the model's vocabulary.
      ParallelError: processes read different texts.
    """
    require_packages(trainer.trackers)
    require_devices(trainer.observers, trainer.parallel.device)
    require_machine(trainer.model, device=trainer.parallel.device)
    speak = trainer.parallel.is_main
    trainer.data.prepare(show_progress=speak)
    trainer.parallel.require_same({"the text's checksum": trainer.data.checksum})
    check_vocab_size(trainer.data.tokenizer, vocab_size=trainer.vocab_size)
    for evaluator in trainer.evaluators.values():
        evaluator.prepare(show_progress=speak)


def create(trainer: "Trainer", run: RunDirectory, *, hold: Callable[[], object]) -> None:
    """Makes the directory of a new run, and holds it against other processes."""
    run.create(fill=lambda folder: trainer.data.tokenizer.save(folder / "tokenizer.json"))
    hold()


def go_on(
    trainer: "Trainer", run: RunDirectory, *, step: int, until_step: int | None = None
) -> None:
    """Makes a run's directory read as if nothing had happened after `step`."""
    if until_step is not None and until_step <= step:
        print(f"{run.path} has done {step} steps already: nothing is left until {until_step}.")
    trainer.checkpoints.go_on(run.path, step=step)
    run.go_on(step=step)


def make_learner(
    trainer: "Trainer", run: RunDirectory, *, resume: bool, resume_step: int | None
) -> tuple[Learner, int]:
    """The model on its device and its optimizer, at the beginning or as a checkpoint says.

    Returns them with the steps that are done.

    Raises:
      RunError: the data is not what the run began with, or the run is past its end.
      CheckpointError: the checkpoint is damaged or does not fit.
    """
    if resume:
        trainer.checkpoints.fetch(run.path, step=resume_step)
    else:
        trainer.checkpoints.begin()
    begins = not resume or (resume_step is None and not has_checkpoints(run.path))
    trainer.parallel.shard(trainer.model, trainer.precision)
    materialize(trainer.model, device=trainer.parallel.device, seed=trainer.seed)
    if begins and trainer.weights is not None:
        with trainer.parallel.filling():
            trainer.weights(trainer.model)
    train_only(trainer.model, trainer.trainable)
    learner = Learner(
        trainer.model,
        optimizer=trainer.optimizer,
        groups=trainer.groups,
        schedule=trainer.schedule,
        loss=trainer.loss,
        precision=trainer.precision,
        parallel=trainer.parallel,
        micro_batch_size=trainer.micro_batch_size,
        max_grad_norm=trainer.max_grad_norm,
        gradient_transform=trainer.gradient_transform,
        guard=trainer.guard,
        divergence=trainer.divergence,
        average=trainer.average,
        meters=trainer.meters,
        schedules=trainer.schedules,
    )
    return learner, 0 if begins else restore(trainer, run, learner, resume_step)


def restore(trainer: "Trainer", run: RunDirectory, learner: Learner, step: int | None) -> int:
    """Makes a learner what it was at a checkpoint, the newest unless said; returns its step."""
    step, state = trainer.checkpoints.restore(
        run.path,
        model=learner.model,
        optimizer=learner.optimizer,
        stateful=learner.stateful,
        step=step,
        tell=_tell(trainer.parallel.is_main) if run.has_changed else None,
    )
    if state["data"] != trainer.data.checksum:
        raise RunError(
            f"the text of {run.path}, or what packs it, is not what it was when the run began: "
            "bring the old one back, or begin a new run."
        )
    require_same_way(trainer, run, step=step, state=state, shift=learner.shift)
    learner.restored(state["settings"])
    return step


def require_same_way(
    trainer: "Trainer", run: RunDirectory, *, step: int, state: dict[str, Any], shift: int | None
) -> None:
    """Sees that a run came to `step` by what this config says, and has steps left.

    Args:
      trainer: what goes on.
      run: its directory.
      step: of the checkpoint.
      state: what that holds of the run, as `progress` gave it.
      shift: the learner's; None where it is not known.

    Raises:
      RunError: it read its text otherwise, or is past its end.
    """
    read = trainer.data.full_batches(step)
    if state.get("full_batches", read) != read:
        raise RunError(
            f"{run.path} has read {state['full_batches']:g} full batches in {step} steps, which "
            f"by this config would be {read:g}: its batches grew otherwise. Let them grow over as "
            "many steps as they did, said as a count and not as a part of the run."
        )
    if shift is not None:
        begun = [BegunStage(*one) for one in state.get("stages", [])]
        _require_stages(begun, trainer.data.stages_begun(step + shift), run=run)
    if step > trainer.num_steps:
        raise RunError(
            f"{run.path} has done {step} steps already, and num_steps={trainer.num_steps}: say "
            "more steps, or an earlier --resume_step."
        )


def _require_stages(olds: list[BegunStage], news: list[BegunStage], *, run: RunDirectory) -> None:
    """Raises RunError where what a run has read would be of other shares by its config now."""
    for old, new in itertools.zip_longest(olds, news):
        if old != new:
            raise RunError(
                f"{run.path} has read its texts in other shares: its mixture had "
                f"{f'a stage from {old} on' if old else 'no stage more'}, and by this config has "
                f"{f'one from {new} on' if new else 'none there'}. Say the stages that it has "
                "begun as they were, from a step on: those said as parts of a run move with "
                "num_steps."
            )


def _tell(speak: bool) -> Callable[[str], None]:
    return lambda line: tell(f"warning: {line}") if speak else None
