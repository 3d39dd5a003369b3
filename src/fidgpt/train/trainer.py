"""The trainer: what a run consists of, how it is set up or resumed, and its loop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from fidgpt import heap
from fidgpt.data import Batch, StreamWrapper, TrainingStream, check_vocab_size
from fidgpt.model.linear import require_machine
from fidgpt.model.materialization import materialize
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim import Schedule, decay_matrices
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_positive, require_size
from fidgpt.train import device, run_directory
from fidgpt.train.averaging import Average, EvaluationWeights
from fidgpt.train.checkpoints import Checkpoints, manifest
from fidgpt.train.checks import preflight
from fidgpt.train.divergence import Decision, Diverged, Divergence, Guard, RollBack, advice
from fidgpt.train.estimates.facts import Facts, facts_of
from fidgpt.train.evaluation import Evaluator, Samples, evaluating, require_measured
from fidgpt.train.goodput import ExpertLoads, Goodput, PlannedRun, phase_seconds
from fidgpt.train.gradients import GradientTransform
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.observers import Observer, stepping
from fidgpt.train.optimizer_groups import GroupSchedules, make_optimizer
from fidgpt.train.precision import Precision
from fidgpt.train.replay import StepReplay
from fidgpt.train.run_directory import Outcome, RunDirectory, RunError, StopSignals
from fidgpt.train.state import TrainState, check_progress, check_text, progress
from fidgpt.train.step_metrics import (
    DelayedMetrics,
    LaunchedStep,
    Row,
    StepMeters,
    StepStatus,
    seconds_of,
)
from fidgpt.train.trackers.trackers import Tracker, Trackers, require_packages
from fidgpt.train.train_step import TrainStep

__all__ = ["Trainer"]

_STEP = "step"  # the phase that encloses a step's other phases


@dataclass(eq=False, kw_only=True)
class Trainer:
    """Trains a language model; building one has no side effects, `train` has them all.

    The stream is wrapped by `batch_growth` first, then by `seq_len_growth`, then by `prefetch`.

    Args:
      vocab_size: rows of the embedding table; the tokenizer may use fewer.
      seq_len: tokens of a training sequence.
      batch_size: sequences of an optimizer step, over all processes.
      num_steps: optimizer steps of the run.
      seed: every stream of random numbers is derived from it.
      model: the model, on the meta device or with memory.
      data: the training stream.
      optimizer: makes the optimizer from parameter groups, once the model is on its device.
      schedule: multiplier of the learning rate at each step.
      step: takes an optimizer step.
      loss: maps features, unembedding and targets to a number.
      precision: number format of the computation.
      parallel: the processes of the run and how the model is placed on them.
      checkpoints: when to save, and how many to keep.
      evaluators: measure the model during the run, by name.
      trackers: where metrics go.
      samples: text that the model writes now and then, for a person to read.
      groups: splits the parameters into groups for the optimizer.
      trainable: whether a parameter is trained, by its name; None trains all.
      weights: initializes the model when the run starts, in place of random values.
      observers: accompany the run on every process, as profilers do.
      micro_batch_size: sequences that one device computes at once; None for its whole share.
      max_grad_norm: gradients are scaled down to this Euclidean norm; None leaves them.
      gradient_transform: changes gradients, such as by clipping values, before their norm is
        measured.
      guard: judges each step by its loss and gradient norm, and may skip it.
      divergence: policy for non-finite steps; None aborts.
      average: averages the weights; the average is evaluated and saved as well.
      meters: measure each group of parameters.
      schedules: multipliers of other settings of the groups by name, such as `weight_decay`.
      batch_growth: makes the stream's batches grow, as `GrowingBatch` does.
      seq_len_growth: makes the stream's sequences grow, as `GrowingSequence` does.
      prefetch: makes batches ahead of their steps, as `Prefetch` does.
      replay: computes some steps twice, to find errors of the hardware.

    Attributes:
      stream: `data` with growing batches and sequences, read ahead.

    Raises:
      ValueError: a count is below one, `max_grad_norm` is not positive, or the mesh of `parallel`
        cannot divide the model.
    """

    # What may change on resume: "live" changes no number, "restart" the numbers of later steps.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {
        "optimizer": "restart",
        "schedule": "restart",
        "step": "restart",
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
        "prefetch": "live",
        "replay": "live",
    }

    vocab_size: int
    seq_len: int
    batch_size: int
    num_steps: int
    seed: int
    model: LanguageModel
    data: TrainingStream
    optimizer: Callable[..., Optimizer]
    schedule: Schedule
    step: TrainStep
    loss: CrossEntropy
    precision: Precision
    parallel: DataParallel
    checkpoints: Checkpoints
    evaluators: Mapping[str, Evaluator]
    trackers: Sequence[Tracker]
    samples: Samples | None = None
    groups: Grouping = decay_matrices
    trainable: Callable[[str, nn.Parameter], bool] | None = None
    weights: Callable[[LanguageModel], None] | None = None
    observers: Sequence[Observer] = ()
    micro_batch_size: int | None = None
    max_grad_norm: float | None = 1.0
    gradient_transform: GradientTransform | None = None
    guard: Guard | None = None
    divergence: Divergence | None = None
    average: Average | None = None
    meters: StepMeters | None = None
    schedules: Mapping[str, Schedule] | None = None
    batch_growth: StreamWrapper | None = None
    seq_len_growth: StreamWrapper | None = None
    prefetch: StreamWrapper | None = None
    replay: StepReplay | None = None

    def __post_init__(self) -> None:
        self.stream = self.data
        for wrapper in (self.batch_growth, self.seq_len_growth, self.prefetch):
            self.stream = self.stream if wrapper is None else wrapper(self.stream)
        require_positive(max_grad_norm=self.max_grad_norm)
        require_size(vocab_size=self.vocab_size, seq_len=self.seq_len, batch_size=self.batch_size)
        require_size(num_steps=self.num_steps, micro_batch_size=self.micro_batch_size)
        if self.checkpoints.best is not None:
            metric, is_averaged = self.checkpoints.best.metric, self.average is not None
            require_measured(metric, self.evaluators, is_averaged=is_averaged)
        self.parallel.parts |= self.step.axis_parts()
        self.parallel.check(self.model, seq_len=self.seq_len)

    def train(
        self,
        run: RunDirectory,
        *,
        resume: bool = False,
        resume_step: int | None = None,
        until_step: int | None = None,
    ) -> Outcome:
        """Train from the start into a new run directory, or resume from a checkpoint in it.

        After `until_step` the run saves and ends, as on a signal.

        Raises:
          RunError: the directory cannot be used, the data has changed since the run began, there
            is not enough memory, or the loss is not finite.
          DataError: the text cannot be read or is too short.
          CheckpointError: a checkpoint is damaged, does not fit, or cannot be written.
          ParallelError: the processes would run different configs, or another one failed.
        """
        started = time.monotonic()
        heap.use_fast_memory()
        with self.parallel, ExitStack() as locks, device.within_memory():
            flags = {"--resume": str(resume), "--until_step": str(until_step)}
            self.parallel.require_same({**flags, **run.identity})
            run = self.parallel.world.broadcast(run)
            lock = partial(locks.enter_context, run.locked())
            self.parallel.world.on_main(lock if resume else run.require_free)
            self.prepare()
            facts = facts_of(self)  # before `setup` shards the model
            planned = PlannedRun(self.parallel.device, self.model)
            device.require_memory(facts.plan)
            if not resume:  # a resumed run has its copies in memory already
                self.checkpoints.require_room(facts.copies)
            state = self.setup(run, resume=resume, resume_step=resume_step)
            self.parallel.require_same({"begins after step": str(state.step)})
            if resume:
                rewind = partial(self._rewind, run, step=state.step, until_step=until_step)
                self.parallel.world.on_main(rewind)
            else:
                run.path = self.parallel.world.on_main(partial(self._create, run, lock=lock))
            self.checkpoints.start(run.path)
            if resume:  # maybe on other machines; what it had in memory was deleted
                self.checkpoints.require_room(facts.copies)
            metrics = run.path / "metrics.jsonl" if resume and self.parallel.is_main else None
            goodput = Goodput(metrics, started=started)
            end = until_step or self.num_steps
            outcome = self._loop(run, state, facts, end, goodput, planned)
            if isinstance(state.optimizer, EvaluationWeights):
                state.optimizer.swap_weights()  # leave the evaluation weights in the model
            return outcome

    def _loop(
        self,
        run: RunDirectory,
        state: TrainState,
        facts: Facts,
        until_step: int,
        goodput: Goodput,
        planned: PlannedRun,
    ) -> Outcome:
        """Take the remaining steps; evaluate, track and save between them."""
        trackers_here = self.trackers if self.parallel.is_main else []
        end, received, stopping = min(until_step, self.num_steps), None, False
        with (
            StopSignals() as signals,
            Trackers(trackers_here) as trackers,
            ExitStack() as observing,
        ):
            trackers.start(run, facts, step=state.step)
            observing.enter_context(self.checkpoints.finishing())
            for observer in self.observers:
                observing.enter_context(observer.observing(run, self.parallel))
            goodput.spent("restoring")
            loads = ExpertLoads(state.model)
            log = partial(self._log, state, facts, trackers, goodput, loads, planned)
            rows = DelayedMetrics(log, self.parallel.device)
            while state.step < end and not stopping:
                try:
                    finished = self._step(state, rows, signals, end=end)
                    signal = max((step.signal for step in finished), default=0.0)
                    if self.parallel.world_size == 1:
                        signal = signals.received or 0
                    received = Signals(int(signal)) if signal else None
                    stopping = received is not None or state.step == until_step < self.num_steps
                    self._save(state, run, rows, finished, is_stopping=stopping)
                    goodput.spent("saving")
                except Diverged as diverged:
                    stopping, step = False, rows.oldest or state.step
                    rows.clear()
                    self._roll_back(run, state, diverged, step=step)
                    self.checkpoints.start(run.path)
                    goodput.spent("restoring")
                    trackers.print(
                        f"step {step} diverged: {diverged} Rolling back to step {state.step}."
                    )
            self.checkpoints.wait()
            goodput.spent("saving")
            if stopping:
                trackers.print("\n".join([goodput.summary(), *loads.summary()]))
                command = run_directory.resume_flag(run.path)
                trackers.print(f"Stopped after step {state.step}; resume with {command}")
            elif state.step == self.num_steps:
                for text in self._sample(state):
                    trackers.print(f"\n{text}")
                differences = planned.finish(facts.plan, run.path) if self.parallel.is_main else []
                trackers.print("\n".join(["", goodput.summary(), *loads.summary(), *differences]))
                words = run_directory.shell_words(run.path, str(run.path))
                trackers.print(f"Done. Sample with: python -m fidgpt.sample {words}")
        return Outcome(run.path, step=state.step, stopped_by=received)

    def _step(
        self, state: TrainState, rows: DelayedMetrics, signals: StopSignals, *, end: int
    ) -> Sequence[LaunchedStep]:
        """Take one step and evaluate; return the steps that this finished, mostly earlier steps.

        Raises:
          Diverged: some of their metrics are not finite.
        """
        index = state.step

        def status() -> StepStatus:
            signal, is_time = float(signals.received or 0), float(self.checkpoints.is_time)
            return StepStatus(signal, is_time, state.seconds or phase_seconds({}))

        with stepping(self.observers, index + 1), state.clock.phase(_STEP):
            device.seed_torch(
                device.derive_seed(self.seed, "step", index + 1, self.parallel.tokens.rank),
                device=self.parallel.device,
            )
            batch = state.next_batch or self.step.load(self, state, index)
            launch = partial(self.step.launch, loads_next=index + 1 < end)
            if self.replay is not None and self.replay.due(index + 1):
                launch = partial(self.step.launch_twice, self.replay)
            try:
                launched = launch(self, state, index, batch, status=status)
            except Diverged:
                rows.finish()
                raise
        launched.memory = device.peak_memory(self.parallel.device)
        finished, needs_row_now = [], launched.step == end or self._needs_row_now(launched.step)
        if needs_row_now:
            finished += rows.finish()
            self.step.judge(state, launched)
        with state.clock.phase("evaluation"):
            launched.measured = self._evaluate(state)
        launched.phases = state.clock.take()  # includes the time of saving the step before
        rows.add(launched)
        return [*finished, *rows.finish(0 if needs_row_now else rows.lag)]

    def _needs_row_now(self, step: int) -> bool:
        """Whether the row of a step is needed before the next one: to evaluate or save."""
        best, num_steps = self.checkpoints.best, self.num_steps
        measures = [*self.evaluators.values(), *([] if self.samples is None else [self.samples])]
        return (
            any(measure.due(step, num_steps=num_steps) for measure in measures)
            or bool(self.checkpoints.planned(step, num_steps=num_steps))
            or (best is not None and best.metric.partition("/")[0] not in self.evaluators)
        )

    def _log(
        self,
        state: TrainState,
        facts: Facts,
        trackers: Trackers,
        goodput: Goodput,
        loads: ExpertLoads,
        planned: PlannedRun,
        launched: LaunchedStep,
    ) -> None:
        """Log the row of a step once the device has computed it.

        Raises:
          Diverged: some of its metrics are not finite.
        """
        self.step.judge(state, launched)
        timing = seconds_of(launched.phases)
        row: Row = {"step": launched.step, **launched.row}
        seconds = timing.pop(f"seconds/{_STEP}")  # without evaluation and saving
        before, after = (
            round(self.stream.full_batches(steps) * facts.tokens_per_step)
            for steps in (launched.step - 1, launched.step)
        )
        rate = (after - before) / seconds
        row |= {"tokens": after, "step_seconds": seconds, "tokens_per_second": rate}
        row["utilisation"] = rate * facts.flops_per_token / facts.peak_flops
        row["memory"] = launched.memory
        state.check_finite(row, launched.measured)
        if not launched.is_counted:
            del row["loss"]
            self._warn(f"no token of step {launched.step} counts in the loss, so that it has none.")
        row |= launched.measured | timing
        state.seconds = phase_seconds(timing)
        row |= goodput.stepped(launched.step)
        of_all = [status.seconds for status in launched.statuses]
        if any(map(any, of_all)):
            row |= goodput.slowest(of_all)
        trackers.log(row)
        planned.add(row)
        for warning in loads.add(row):
            trackers.print(warning)
        launched.logged = row

    def update(self, state: TrainState, batch: Batch) -> Row:
        """Take one optimizer step on this process's rows, and wait for its metrics.

        Returns `loss` (the mean over all processes, before the step, without what the model's
        modules add to it), `grad_norm`, `learning_rate` (of the first group), what modules report,
        and `skipped` (0 or 1) if a component may skip steps. A skipped step changes neither weights
        nor the state of the optimizer, the average and the model's modules.

        Raises:
          Diverged: loss or gradients are not finite, and the step is not to be skipped.
        """
        index = state.step
        return self.step.take(self, state, index, self.step.load(self, state, index, rows=batch))

    def prepare(self) -> None:
        """Prepare the texts, and check early for errors that would end or spoil the run later.

        Raises:
          ComponentError: a custom component does not keep what its interface promises.
          RunError: a tracker lacks its package.
          MachineError: the model cannot compute on this machine.
          DataError: a text cannot be read, or its tokens are not in the model's vocabulary.
          ParallelError: processes read different texts.
        """
        require_packages(self.trackers)
        require_machine(self.model, device=self.parallel.device)
        preflight.check_components(self)
        show_progress = self.parallel.is_main
        self.stream.prepare(show_progress=show_progress)
        self.parallel.require_same({"the text's checksum": self.stream.checksum})
        check_vocab_size(self.stream.tokenizer, vocab_size=self.vocab_size)
        for evaluator in self.evaluators.values():
            evaluator.prepare(show_progress=show_progress)
        preflight.check_stream(self)

    def setup(
        self, run: RunDirectory, *, resume: bool = False, resume_step: int | None = None
    ) -> TrainState:
        """Place the model on its device, make its optimizer, and initialize or restore both.

        Raises:
          RunError: the data has changed since the run began, or the run is past its end.
          CheckpointError: the checkpoint is damaged or does not fit.
        """
        if resume:
            self.checkpoints.fetch(run.path, step=resume_step)
        is_new = not resume or (resume_step is None and not manifest.find(run.path))
        self.parallel.shard(self.model, self.precision.dtype)
        materialize(self.model, device=self.parallel.device, seed=self.seed)
        if is_new and self.weights is not None:
            with self.parallel.filling(self.model):
                self.weights(self.model)
        train_only(self.model, self.trainable)
        state = self.init_state()
        if not is_new:
            self._restore(run, state, resume_step)
        return state

    def init_state(self) -> TrainState:
        """Return the state at step 0 of a model that has memory."""
        is_sharded = self.parallel.places.fsdp is not None  # and gathers weights in the format
        replica = self.model if is_sharded else self.precision.replica(self.model)
        self.step.begin(self)
        objective = self.step.objective(replica, self.loss)
        optimizer = make_optimizer(self.optimizer, self.groups(self.model), parallel=self.parallel)
        others = self.schedules or {}
        return TrainState(
            self.model,
            optimizer,
            schedules=GroupSchedules(optimizer, schedule=self.schedule, others=others),
            replica=replica,
            objective=objective,
            module=self.parallel.wrap(objective),
            precision=self.precision,
            guard=self.guard,
            divergence=self.divergence,
            average=self.average,
            train_step=self.step,
        )

    def _create(self, run: RunDirectory, *, lock: Callable[[], object]) -> Path:
        """Make the directory of a new run, and lock it against other processes; return its path."""

        def fill(folder: Path) -> None:
            self.stream.tokenizer.save(folder / "tokenizer.json")
            self.checkpoints.claim_mirror(folder, directory=run.path)

        run.create(fill=fill)
        lock()
        return run.path

    def _rewind(self, run: RunDirectory, *, step: int, until_step: int | None) -> None:
        """Remove from the directory of a run what it wrote after `step`."""
        if until_step is not None and until_step <= step:
            print(f"{run.path} has done {step} steps already: nothing is left until {until_step}.")
        self.checkpoints.abandon_after(run.path, step=step)
        run.record_changes(step=step)

    def _restore(self, run: RunDirectory, state: TrainState, step: int | None) -> None:
        """Restore the state from a checkpoint, the newest by default."""
        step, saved = self.checkpoints.restore(
            run.path,
            model=state.model,
            optimizer=state.optimizer,
            stateful=state.stateful,
            step=step,
            warn=self._warn if run.has_changed else None,
        )
        with manifest.naming_damage(manifest.folder_of(run.path) / manifest.name_of(step)):
            check_text(saved, self.stream, path=run.path)
            check_progress(
                saved,
                self.stream,
                step=step,
                shift=state.shift,
                num_steps=self.num_steps,
                path=run.path,
            )
            state.restored(step, saved["settings"])

    def _warn(self, line: str) -> None:
        if self.parallel.is_main:
            run_directory.print_stderr(f"warning: {line}")

    def _evaluate(self, state: TrainState) -> Row:
        """Run the evaluators that are due; return `<name>/...` and `<name>/averaged/...`.

        If samples are due, `samples` holds the texts that the model writes.
        """
        step, num_steps = state.step, self.num_steps
        due = {k: e for k, e in self.evaluators.items() if e.due(step, num_steps=num_steps)}
        row: Row = {}
        if due:
            with state.evaluation_weights():
                row = self._measure(state, due)
        if due and state.average is not None:
            with state.averaged():
                row |= self._measure(state, {f"{name}/averaged": due[name] for name in due})
        if self.samples is not None and self.samples.due(step, num_steps=num_steps):
            row["samples"] = list(self._sample(state))
        return row

    def _measure(self, state: TrainState, evaluators: Mapping[str, Evaluator]) -> Row:
        row: Row = {}
        for name, evaluator in evaluators.items():
            with preflight.left_unchanged(state.replica, evaluator, name):
                metrics = evaluator(state.replica, self.loss, self.parallel)
            row |= {f"{name}/{key}": float(value) for key, value in metrics.items()}
        return row

    def _sample(self, state: TrainState) -> Iterator[str]:
        """Yield a text for each prompt, written with averaged weights if there are any.

        Every process of the run calls this, because each may hold a shard of the model.

        Raises:
          RunError: the model's logits are not finite.
        """
        if self.samples is None:
            return
        with state.averaged(), evaluating(state.replica):
            tokenizer = self.stream.tokenizer
            try:
                yield from self.samples.write(
                    state.replica,
                    tokenizer,
                    prompts=self.samples.beginnings(self.evaluators, tokenizer),
                    context=self.seq_len,
                    seed=self.seed,
                )
            except ValueError as error:
                raise RunError(f"no sample can be written: {error}") from error

    def _save(
        self,
        state: TrainState,
        run: RunDirectory,
        rows: DelayedMetrics,
        finished: Sequence[LaunchedStep],
        *,
        is_stopping: bool,
    ) -> None:
        """Save a checkpoint if the run `is_stopping` or the policies want one.

        Raises:
          Diverged: the weights are not finite.
          CheckpointError: it cannot be written.
        """
        newest = finished[-1].logged if finished else {}
        row = newest if newest.get("step") == state.step else {}
        reasons = self.checkpoints.due(
            state.step,
            num_steps=self.num_steps,
            directory=run.path,
            row=row,
            is_time=None
            if self.parallel.world_size == 1
            else any(step.is_time for step in finished),
        )
        if not (is_stopping or reasons):
            return
        rows.finish()
        in_memory = not is_stopping and reasons == [manifest.IN_MEMORY]
        if not in_memory:
            reasons = [reason for reason in reasons if reason != manifest.IN_MEMORY]
        with state.clock.phase("saving"):
            state.check_weights()
            if not in_memory:
                self.parallel.world.on_main(run.sync)  # a checkpoint needs the rows before it
            with state.evaluation_weights():
                self.checkpoints.save(
                    run.path,
                    step=state.step,
                    model=state.model,
                    optimizer=state.optimizer,
                    stateful=state.stateful,
                    state=progress(self.stream, state),
                    reasons=reasons,
                    row=row,
                )

    def _roll_back(
        self, run: RunDirectory, state: TrainState, diverged: Diverged, *, step: int
    ) -> None:
        """Restore the last good checkpoint before the step that diverged.

        Raises:
          RunError: the policy aborts the run, or there is no good checkpoint.
        """
        policy = state.divergence
        if diverged.decision is not Decision.ROLL_BACK or not isinstance(policy, RollBack):
            raise RunError(f"step {step} diverged: {diverged} {_remedy(run)} {advice(policy)}")
        policy_state = policy.state_dict()
        self.checkpoints.wait()
        good = None
        if self.parallel.is_main:
            good = self.checkpoints.good_before(step, run.path, num_steps=self.num_steps)
        if state.average is not None:
            state.average.has_history = False  # the checkpoint may lack it
        state.next_batch = None
        if (good := self.parallel.world.broadcast(good)) is None:
            raise RunError(
                f"step {step} diverged: {diverged} There is no good checkpoint to roll back to. "
                f"{_remedy(run)} {advice(policy)}"
            )
        self._restore(run, state, good)
        policy.load_state_dict(policy_state)  # the checkpoint lacks the steps skipped since
        policy.rolled_back(step=step, to=state.step)
        self.parallel.world.on_main(
            partial(self.checkpoints.abandon_after, run.path, step=state.step)
        )


def _remedy(run: RunDirectory) -> str:
    saved = manifest.find(run.path)
    last = f"the last checkpoint is of step {max(saved)}" if saved else "there is no checkpoint yet"
    return (
        f"Nothing of it was saved; {last}. Resume with a lower learning rate: "
        f"{run_directory.resume_flag(run.path)} --config=tag:LearningRate=..."
    )
