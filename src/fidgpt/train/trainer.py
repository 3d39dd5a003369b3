"""How a run begins or goes on: its text, its directory, its model and optimizer."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.cost import (
    TRAINING_PASSES,
    count_parameters,
    flops_per_token,
    says_all_flops,
    shared_parameters,
    unsaid_flops,
    with_zeros,
    without_memory,
)
from fidgpt.data import BegunStage, TrainingStream, check_vocab_size
from fidgpt.model.linear import require_machine
from fidgpt.model.materialization import materialize
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim import Schedule, decay_matrices
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_size
from fidgpt.train.averaging import Average
from fidgpt.train.checkpoints import Checkpoints, check_fit, has_checkpoints, manifest
from fidgpt.train.device import Machine, derive_seed, machine_at_hand, seed_torch
from fidgpt.train.divergence import Diverged, Divergence, Guard, RollBack, SkipDiverged, Verdict
from fidgpt.train.evaluation import Evaluator, evaluating
from fidgpt.train.facts import Facts
from fidgpt.train.footprint import NEEDS_NUMBERS, footprint
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.meters import StepMeters, keep_freed_memory, peak_memory, within_memory
from fidgpt.train.observers import Observer, require_devices, stepping
from fidgpt.train.parameter_groups import trainable_copy
from fidgpt.train.precision import Precision
from fidgpt.train.run_directory import (
    Outcome,
    RunDirectory,
    RunError,
    StopSignals,
    resume_flag,
    shell_words,
    tell,
)
from fidgpt.train.samples import Samples
from fidgpt.train.state import TrainState
from fidgpt.train.step import GradientTransform, norms_of, require_bound
from fidgpt.train.trackers.background import Trackers, require_packages
from fidgpt.train.trackers.trackers import Row, Tracker


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
) -> tuple[TrainState, int]:
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
    learner = TrainState(
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


def restore(trainer: "Trainer", run: RunDirectory, learner: TrainState, step: int | None) -> int:
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


def evaluate(trainer: "Trainer", learner: TrainState, step: int) -> Row:
    """What is due once a step is done: `<name>/...` of the weights, `<name>/averaged/...` too.

    And under `samples` the texts that the model writes, if it is time for some.
    """
    due = {
        name: evaluator
        for name, evaluator in trainer.evaluators.items()
        if evaluator.due(step, num_steps=trainer.num_steps)
    }
    row = _measured(trainer, learner, due)
    if due and learner.average is not None:
        with learner.averaged():
            row |= _measured(trainer, learner, {f"{name}/averaged": due[name] for name in due})
    if trainer.samples is not None and trainer.samples.due(step, num_steps=trainer.num_steps):
        row["samples"] = list(sample_texts(trainer, learner))
    return row


def speed(trainer: "Trainer", facts: Facts, step: int, *, seconds: float) -> Row:
    """How fast a step was, that took so many `seconds`, and what the run is at after it.

    Returns `tokens`, read since the run began; `tokens_per_second`; `utilisation`, the share of the
    devices' peak; and `memory`, the bytes that this process had at most.
    """
    before, after = (
        round(trainer.data.full_batches(steps) * facts.tokens_per_step)
        for steps in (step - 1, step)
    )
    rate = (after - before) / seconds
    return {
        "tokens": after,
        "tokens_per_second": rate,
        "utilisation": rate * facts.flops_per_token / facts.peak_flops,
        "memory": peak_memory(trainer.parallel.device),
    }


def sample_texts(trainer: "Trainer", learner: TrainState) -> Iterator[str]:
    """What the model writes, a text for each prompt; by averaged weights if there are.

    On every process, of which each may hold a part of the model; only the main one shows it.

    Raises:
      RunError: the model's logits are no numbers.
    """
    if trainer.samples is None:
        return
    averaged = contextlib.nullcontext() if learner.average is None else learner.averaged()
    with averaged, evaluating(learner.replica):
        texts = trainer.samples.write(
            learner.replica,
            trainer.data.tokenizer,
            context=trainer.seq_len,
            seed=trainer.seed,
        )
        try:
            yield from texts
        except ValueError as error:
            raise RunError(f"no sample can be written: {error}") from error


def _measured(trainer: "Trainer", learner: TrainState, evaluators: Mapping[str, Evaluator]) -> Row:
    return {
        f"{name}/{key}": value
        for name, evaluator in evaluators.items()
        for key, value in evaluator(learner.replica, trainer.loss, trainer.parallel).items()
    }


def recover(
    trainer: "Trainer", run: RunDirectory, learner: TrainState, diverged: Diverged, *, step: int
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
    row: Mapping[str, Any], measured: Mapping[str, Any], learner: TrainState
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


def check_finite(learner: TrainState) -> None:
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


def _spoilt(learner: TrainState) -> list[str]:
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


def save_where_due(
    trainer: "Trainer", learner: TrainState, run: RunDirectory, row: Row, *, is_due: bool
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
        check_finite(learner)
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


def progress(trainer: "Trainer", learner: TrainState, step: int) -> dict[str, Any]:
    """What a checkpoint holds of a run besides tensors; `restore` compares it."""
    return {
        "data": trainer.data.checksum,
        "full_batches": trainer.data.full_batches(step),
        "shift": learner.shift,
        "stages": [list(one) for one in trainer.data.stages_begun(step + learner.shift)],
        "settings": learner.settings,
    }


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


def gather_facts(
    trainer: "Trainer", machine: Machine, *, unsaid: Mapping[str, int] | None = None
) -> Facts:
    """Counts a run whose model has memory or has none.

    Args:
      trainer: what runs.
      machine: what it would run on.
      unsaid: what `measured_flops` gave, for who knows it already.
    """
    model, seq_len = trainer.model, trainer.seq_len
    parameters = count_parameters(model)
    if unsaid is None:
        unsaid = measured_flops(model, seq_len=seq_len) or {}
    forward = flops_per_token(model, seq_len=seq_len) + sum(unsaid.values())
    tokens_per_step = trainer.batch_size * seq_len
    return Facts(
        parameters=parameters.total,
        trained_parameters=_trained(trainer),
        active_parameters=parameters.active,
        shared=shared_parameters(model),
        flops_per_token=TRAINING_PASSES * forward,
        tokens=round(trainer.data.full_batches(trainer.num_steps) * tokens_per_step),
        num_steps=trainer.num_steps,
        tokens_per_step=tokens_per_step,
        device=machine.device,
        world_size=machine.world_size,
        precision=type(trainer.precision).__name__,
        peak_flops=machine.peak_flops,
        memory=footprint(
            model,
            seq_len=seq_len,
            num_sequences=-(-trainer.batch_size // machine.world_size),
            micro_batch_size=trainer.micro_batch_size,
            optimizer=trainer.optimizer,
            groups=trainer.groups,
            trainable=trainer.trainable,
            loss=trainer.loss,
            precision=trainer.precision,
            average=trainer.average,
            device=machine.device,
        ).sharded(trainer.parallel.shards_of(machine.world_size)),
        memory_there=machine.memory,
        weights=None if trainer.weights is None else _call_text(trainer.weights),
        evaluators=tuple(trainer.evaluators),
    )


def _trained(trainer: "Trainer") -> int:
    """Numbers of the parameters that `train_only` would let learn; the model stays as it is."""
    learns = trainer.trainable or (lambda name, parameter: parameter.requires_grad)
    named = trainer.model.named_parameters()
    return sum(parameter.numel() for name, parameter in named if learns(name, parameter))


def _call_text(function: Callable[..., object]) -> str:
    """A function and what it will be called with, as one would write it."""
    if isinstance(function, partial):
        said = ", ".join(f"{name}={value!r}" for name, value in function.keywords.items())
        return f"{_call_text(function.func)}({said})"
    return getattr(function, "__name__", type(function).__name__)


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """What parts compute that say nothing of it, by module; None where the model needs numbers."""
    device = torch.device("cpu")  # where it is counted says nothing of what is
    try:
        small = with_zeros(model, num_tokens=seq_len, device=device)
        if small is not None and says_all_flops(small, seq_len=seq_len):
            return {}
    except NEEDS_NUMBERS:
        pass
    try:
        return unsaid_flops(without_memory(model), seq_len=seq_len)
    except NEEDS_NUMBERS:
        return None


class Trainer:
    """Trains a language model; building one touches nothing, `train` does it all.

    Args:
      vocab_size: rows of the token table; the tokenizer may use fewer.
      seq_len: tokens of a training sequence.
      batch_size: sequences of an optimizer step, over all processes.
      num_steps: optimizer steps of the run.
      seed: every stream of random numbers is derived from it.
      model: the model, on the meta device or with memory.
      data: the training stream.
      optimizer: makes the optimizer from parameter groups, once the model has its place.
      schedule: multiplier of the learning rate at each step.
      loss: from features, unembedding and targets to a number.
      precision: the number format of the computation.
      parallel: the processes of the run and where the model lives.
      checkpoints: when to save, and how many to keep.
      evaluators: what is measured, by name.
      trackers: where the numbers go.
      samples: text that the model writes now and then, for a person to read.
      groups: deals the parameters into groups for the optimizer.
      trainable: whether a parameter is trained, by its name; all are unless said.
      weights: fills the model when the run begins, in place of what was drawn.
      observers: what accompanies the run on every process, as profilers do.
      micro_batch_size: sequences that one device computes at once; all of its share unless said.
      max_grad_norm: gradients are scaled down to this Euclidean norm; None leaves them.
      gradient_transform: changes gradients before their norm is measured, as clipping by value.
      guard: judges each step by its loss and gradient norm, and may leave it out.
      divergence: what becomes of a step that is no number; without it, the run ends there.
      average: of the weights, which is measured and saved as well.
      meters: what is measured of each group of parameters.
      schedules: multipliers of other settings of the groups, by name, as `weight_decay`.

    Raises:
      ValueError: a count is below one, or gradients are bounded to nothing.
    """

    # What may be another when a run goes on: "live" changes no number, "restart" those that follow.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {
        "optimizer": "restart",
        "schedule": "restart",
        "max_grad_norm": "restart",
        "gradient_transform": "restart",
        "guard": "restart",
        "divergence": "restart",
        "average": "live",
        "meters": "live",
        "schedules": "restart",
        "loss": "restart",
        "precision": "restart",
        "parallel": "restart",
        "micro_batch_size": "restart",
        "checkpoints": "live",
        "evaluators": "live",
        "trackers": "live",
        "observers": "live",
        "samples": "live",
    }

    def __init__(
        self,
        *,
        vocab_size: int,
        seq_len: int,
        batch_size: int,
        num_steps: int,
        seed: int,
        model: LanguageModel,
        data: TrainingStream,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        loss: CrossEntropy,
        precision: Precision,
        parallel: DataParallel,
        checkpoints: Checkpoints,
        evaluators: Mapping[str, Evaluator],
        trackers: Sequence[Tracker],
        samples: Samples | None = None,
        groups: Grouping = decay_matrices,
        trainable: Callable[[str, nn.Parameter], bool] | None = None,
        weights: Callable[[LanguageModel], None] | None = None,
        observers: Sequence[Observer] = (),
        micro_batch_size: int | None = None,
        max_grad_norm: float | None = 1.0,
        gradient_transform: GradientTransform | None = None,
        guard: Guard | None = None,
        divergence: Divergence | None = None,
        average: Average | None = None,
        meters: StepMeters | None = None,
        schedules: Mapping[str, Schedule] | None = None,
    ) -> None:
        self.check_arguments(
            vocab_size=vocab_size,
            seq_len=seq_len,
            batch_size=batch_size,
            num_steps=num_steps,
            micro_batch_size=micro_batch_size,
            max_grad_norm=max_grad_norm,
        )
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.seed = seed
        self.model = model
        self.data = data
        self.optimizer = optimizer
        self.schedule = schedule
        self.loss = loss
        self.precision = precision
        self.parallel = parallel
        self.checkpoints = checkpoints
        self.evaluators = evaluators
        self.trackers = trackers
        self.samples = samples
        self.groups = groups
        self.trainable = trainable
        self.weights = weights
        self.observers = observers
        self.micro_batch_size = micro_batch_size
        self.max_grad_norm = max_grad_norm
        self.gradient_transform = gradient_transform
        self.guard = guard
        self.divergence = divergence
        self.average = average
        self.meters = meters
        self.schedules = schedules

    @staticmethod
    def check_arguments(
        *,
        vocab_size: int,
        seq_len: int,
        batch_size: int,
        num_steps: int,
        micro_batch_size: int | None,
        max_grad_norm: float | None,
    ) -> None:
        """Raises ValueError where a count is below one, or a bound of gradients leaves none."""
        require_bound(max_grad_norm)
        require_size("vocab_size", vocab_size)
        require_size("seq_len", seq_len)
        require_size("batch_size", batch_size)
        require_size("num_steps", num_steps)
        require_size("micro_batch_size", micro_batch_size)

    def facts(self) -> Facts:
        """What will run; on the meta device too, so that any size can be looked at anywhere."""
        return gather_facts(self, machine_at_hand(self.parallel, self.precision.dtype))

    def train(
        self,
        run: RunDirectory,
        *,
        resume: bool = False,
        resume_step: int | None = None,
        until_step: int | None = None,
    ) -> Outcome:
        """Trains from the beginning into a new run directory, or on from a checkpoint in it.

        After `until_step` it saves and ends, as it does when a signal asks for that.

        Raises:
          RunError: the directory cannot be used, the data is not what the run began with, the
            memory does not suffice, or the loss is no number any more.
          DataError: the text cannot be read or is too short.
          CheckpointError: a checkpoint is damaged, does not fit, or cannot be written.
          ParallelError: the processes would run different configs, or another one failed.
        """
        keep_freed_memory()
        with self.parallel, ExitStack() as leases, within_memory():
            told = {"--resume": str(resume), "--until_step": str(until_step), **run.identity}
            self.parallel.require_same(told)
            run = self.parallel.agree(run)
            hold = partial(leases.enter_context, run.held())
            self.parallel.on_main(hold if resume else run.require_free)
            prepare(self)
            facts = self.facts()  # before the processes take the model apart
            learner, begin = make_learner(self, run, resume=resume, resume_step=resume_step)
            self.parallel.require_same({"begins after step": str(begin)})
            creating = partial(create, self, run, hold=hold)
            going_on = partial(go_on, self, run, step=begin, until_step=until_step)
            self.parallel.on_main(going_on if resume else creating)
            return self._loop(run, learner, facts, begin, until_step or self.num_steps)

    def _loop(
        self, run: RunDirectory, learner: TrainState, facts: Facts, begin: int, until_step: int
    ) -> Outcome:
        """The steps after step `begin`, with what is measured, written and saved between them."""
        listeners = self.trackers if self.parallel.is_main else []
        with StopSignals() as stop, Trackers(listeners) as trackers, ExitStack() as observed:
            trackers.start(run, facts, step=begin)
            observed.enter_context(self.checkpoints.finishing())
            for observer in self.observers:
                observed.enter_context(observer.observing(run, self.parallel))
            step = begin
            while step < min(until_step, self.num_steps):
                step += 1
                try:
                    row = self._step(learner, step, facts)
                    trackers.log(row)
                    told = stop.agreed(self.parallel.largest)
                    stopping = told is not None or step == until_step < self.num_steps
                    save_where_due(self, learner, run, row, is_due=stopping)
                except Diverged as diverged:
                    left, step = step, recover(self, run, learner, diverged, step=step)
                    trackers.say(f"step {left} diverged: {diverged} Going back to step {step}.")
                    continue
                if stopping:
                    self.checkpoints.wait()
                    trackers.say(f"Stopped after step {step}; go on with {resume_flag(run.path)}")
                    return Outcome(run.path, step=step, stopped_by=told)
            self.checkpoints.wait()
            if step == self.num_steps:
                for text in sample_texts(self, learner):
                    trackers.say(f"\n{text}")
                words = shell_words(run.path, str(run.path))
                trackers.say(f"\nDone. More text: python -m fidgpt.sample {words}")
        return Outcome(run.path, step=step, stopped_by=None)

    def _step(self, learner: TrainState, step: int, facts: Facts) -> Row:
        """Step number `step`, counted from 1, and what was measured of it.

        Raises:
          Diverged: that is no number.
        """
        with stepping(self.observers, step):
            begin = time.perf_counter()
            rank, world_size = self.parallel.rank, self.parallel.world_size
            seed_torch(derive_seed(self.seed, "step", step, rank), device=self.parallel.device)
            with learner.clock.phase("data"):
                batch = self.data.batch(step - 1 + learner.shift, rank=rank, world_size=world_size)
            row: Row = {"step": step, **learner.update(batch, step=step - 1)}
            row |= speed(self, facts, step, seconds=time.perf_counter() - begin)
        with learner.clock.phase("evaluation"):
            measured = evaluate(self, learner, step)
        refuse_divergence(row, measured, learner)
        return row | measured | learner.clock.take()  # with what saving the step before took
