"""How a run ends that diverged, or goes back to its last good checkpoint."""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fidgpt.train.beginning import restore
from fidgpt.train.checkpoints import manifest
from fidgpt.train.learner import Learner
from fidgpt.train.run import RunDirectory, RunError, resume_flag
from fidgpt.train.steps.divergence import Diverged, Divergence, RollBack, SkipDiverged
from fidgpt.train.steps.gradients import norms_of
from fidgpt.train.steps.guards import Verdict

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def recover(
    trainer: "Trainer", run: RunDirectory, learner: Learner, diverged: Diverged, *, step: int
) -> int:
    """Goes back from a step to the last good checkpoint; returns the step that it is of.

    Of checkpoints that were saved by the clock or for a signal, none is taken as long as there is
    one that was planned: a run that nobody disturbed has none, and is to go back alike.

    Raises:
      RunError: the run is not to go back any more, or there is no good checkpoint.
    """
    policy = learner.divergence
    if diverged.verdict is not Verdict.ROLL_BACK or not isinstance(policy, RollBack):
        raise RunError(f"step {step} diverged: {diverged} {_remedy(run)} {_policies(policy)}")
    memory = policy.state_dict()
    trainer.checkpoints.wait()
    is_main = trainer.parallel.is_main
    good = _good_checkpoints(trainer, run, before=step) if is_main else None
    learner.begin_anew()  # a checkpoint may be older than some parts of the run are
    for candidate in trainer.parallel.agree(good):
        restore(trainer, run, learner, candidate)
        if not _spoilt(learner):
            break
    else:
        raise RunError(
            f"step {step} diverged: {diverged} There is no good checkpoint to go back to. "
            f"{_remedy(run)} {_policies(policy)}"
        )
    # What the run has learned of its batches is not in the checkpoint.
    policy.load_state_dict(memory)
    policy.went_back(step=step, to=candidate)
    trainer.parallel.on_main(partial(trainer.checkpoints.go_on, run.path, step=candidate))
    return candidate


def refuse_divergence(
    row: Mapping[str, Any], measured: Mapping[str, Any], learner: Learner
) -> None:
    """Lets no run go on that measures what is no number: good checkpoints would make room for bad.

    Of a step that was left out only what was `measured` counts, which is of weights that stay.

    Raises:
      Diverged: says what it is.
    """
    numbers = measured if row.get("skipped") else {**row, **measured}
    wrong = [
        f"{k} is {v}" for k, v in numbers.items() if isinstance(v, float) and not math.isfinite(v)
    ]
    if wrong:
        raise Diverged(_verdict(learner.divergence), f"{', '.join(wrong)}.")


def refuse_spoilt(learner: Learner) -> None:
    """Lets no run save weights from which nothing can go on.

    The step's own loss and gradients were numbers; what the optimizer made of them shows only when
    these weights are read, which may be after the last good checkpoint made room.

    Raises:
      Diverged: says which weights.
    """
    if spoilt := _spoilt(learner):
        num_parameters = len([*learner.model.parameters()])
        raise Diverged(
            _verdict(learner.divergence),
            f"after it {len(spoilt)} of {num_parameters} parameters hold what is no number or too "
            f"large, first {spoilt[0]}.",
        )


def _verdict(policy: Divergence | None) -> Verdict:
    """Where it is the weights that are spoilt, no step can be left out: only going back helps."""
    return policy(is_finite=False) if isinstance(policy, RollBack) else Verdict.ABORT


def _spoilt(learner: Learner) -> list[str]:
    """Names of the parameters whose norm is not finite, in the model's order."""
    named = dict(learner.model.named_parameters())
    finite = norms_of([*named.values()]).isfinite().tolist()
    return [name for name, is_finite in zip(named, finite, strict=True) if not is_finite]


def _remedy(run: RunDirectory) -> str:
    saved = manifest.find(run.path)
    last = f"the last checkpoint is of step {max(saved)}" if saved else "there is no checkpoint yet"
    return (
        f"Nothing of it was saved; {last}. Go on with a lower learning rate: "
        f"{resume_flag(run.path)} --config=tag:LearningRate=..."
    )


def _policies(policy: Divergence | None) -> str:
    """What else a run may do about such steps than it did."""
    back = (
        "let the run go back by itself and read other batches, with --config=fiddler:use_roll_back"
    )
    skip = "leave such steps out, with --config=fiddler:use_divergence_skip"
    if isinstance(policy, RollBack):
        return f"The run goes back divergence.most={policy.most} times at most. Or {skip}."
    if isinstance(policy, SkipDiverged):
        return f"At most divergence.most={policy.most} steps in a row are left out. Or {back}."
    return f"Or {back}, or {skip}."


def _good_checkpoints(trainer: "Trainer", run: RunDirectory, *, before: int) -> list[int]:
    """Steps of checkpoints, in the order in which they are to be tried."""
    newest_first = [
        step
        for step, path in reversed(manifest.find(run.path).items())
        if step < before and manifest.damage(path) is None
    ]
    planned = [
        s for s in newest_first if trainer.checkpoints.planned(s, num_steps=trainer.num_steps)
    ]
    return planned + [step for step in newest_first if step not in planned]
