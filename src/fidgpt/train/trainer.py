"""The root of a run: a trainer holds the parts, and its loop fits on a screen."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from fidgpt.data import TrainingStream
from fidgpt.model.language_model import LanguageModel
from fidgpt.optim import Schedule, decay_matrices
from fidgpt.optim.groups import Grouping
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_size
from fidgpt.train.beginning import create, go_on, make_learner, prepare
from fidgpt.train.checkpoints import Checkpoints
from fidgpt.train.device import machine_at_hand
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.facts.facts import Facts
from fidgpt.train.facts.gathering import gather_facts
from fidgpt.train.learner import Learner
from fidgpt.train.losses.loss import CrossEntropy
from fidgpt.train.measures import evaluate, sample_texts, speed
from fidgpt.train.memory import keep_freed_memory, within_memory
from fidgpt.train.observers.observers import Observer, stepping
from fidgpt.train.precision import Precision
from fidgpt.train.progress import save_where_due
from fidgpt.train.recovery import recover, refuse_divergence
from fidgpt.train.rng import derive_seed, seed_torch
from fidgpt.train.run import Outcome, RunDirectory, resume_flag, shell_words
from fidgpt.train.samples import Samples
from fidgpt.train.steps.averaging import Average
from fidgpt.train.steps.divergence import Diverged, Divergence
from fidgpt.train.steps.gradients import GradientTransform, require_bound
from fidgpt.train.steps.guards import Guard
from fidgpt.train.steps.step_meters import StepMeters
from fidgpt.train.stop import StopSignals
from fidgpt.train.tracking import Trackers
from fidgpt.train.tracking.trackers import Row, Tracker


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
        self, run: RunDirectory, learner: Learner, facts: Facts, begin: int, until_step: int
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

    def _step(self, learner: Learner, step: int, facts: Facts) -> Row:
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
