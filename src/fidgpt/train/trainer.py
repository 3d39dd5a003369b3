"""The root of a run: a trainer holds the parts, and its loop fits on a screen."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from shlex import quote
from typing import ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.data import TrainingStream, check_vocab_size
from fidgpt.model.language_model import LanguageModel
from fidgpt.model.materialize import materialize
from fidgpt.optim.groups import decay_matrices
from fidgpt.optim.schedules import Schedule
from fidgpt.parallel import DataParallel
from fidgpt.train.checkpoint import Checkpoints, has_checkpoints
from fidgpt.train.device import machine_at_hand
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.facts import Facts, gather_facts
from fidgpt.train.learner import Groups, Learner
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.memory import keep_freed_memory
from fidgpt.train.precision import Precision
from fidgpt.train.rng import derive_seed
from fidgpt.train.run import Outcome, RunDirectory, RunError, resume_flag
from fidgpt.train.samples import Samples
from fidgpt.train.stop import StopSignals
from fidgpt.train.trackers import Row, Tracker, Trackers


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
      samples: text that the model writes at the end, for a person to read.
      groups: deals the parameters into groups for the optimizer.
      trainable: whether a parameter is trained, by its name; all are unless said.
      weights: fills the model when the run begins, in place of what was drawn.
      micro_batch_size: sequences that one device computes at once; all of its share unless said.
      max_grad_norm: gradients are scaled down to this Euclidean norm; None leaves them.

    Raises:
      ValueError: a count is below one.
    """

    # What a run may go on with another of: "live" where no number depends on it, "restart" where
    # those that follow do.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {
        "optimizer": "restart",
        "schedule": "restart",
        "max_grad_norm": "restart",
        "loss": "restart",
        "precision": "restart",
        "parallel": "restart",
        "micro_batch_size": "restart",
        "checkpoints": "live",
        "evaluators": "live",
        "trackers": "live",
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
        groups: Groups = decay_matrices,
        trainable: Callable[[str, nn.Parameter], bool] | None = None,
        weights: Callable[[LanguageModel], None] | None = None,
        micro_batch_size: int | None = None,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        self.check_arguments(
            vocab_size=vocab_size,
            seq_len=seq_len,
            batch_size=batch_size,
            num_steps=num_steps,
            micro_batch_size=micro_batch_size,
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
        self.micro_batch_size = micro_batch_size
        self.max_grad_norm = max_grad_norm

    @staticmethod
    def check_arguments(
        *,
        vocab_size: int,
        seq_len: int,
        batch_size: int,
        num_steps: int,
        micro_batch_size: int | None,
    ) -> None:
        """Raises ValueError where a count is below one."""
        for name, count in locals().items():
            if count is not None and count < 1:
                raise ValueError(f"{name}={count} must be at least 1.")

    def facts(self) -> Facts:
        """What will run; on the meta device too, so that any size can be looked at anywhere."""
        return gather_facts(self, machine_at_hand(self.parallel, self.precision.dtype))

    def train(
        self, run: RunDirectory, *, resume: bool = False, resume_step: int | None = None
    ) -> Outcome:
        """Trains from the beginning into a new run directory, or on from a checkpoint in it.

        Raises:
          RunError: the directory cannot be used, the data is not what the run began with, or the
            loss is no number any more.
          DataError: the text cannot be read or is too short.
          CheckpointError: a checkpoint is damaged, does not fit, or cannot be written.
          ParallelError: the processes would run different configs, or another one failed.
        """
        keep_freed_memory()
        with self.parallel, ExitStack() as leases:
            self.parallel.require_same({"--resume": str(resume), **run.identity})
            self._prepare()
            run = self.parallel.agree(run)
            hold = partial(leases.enter_context, run.held())
            if resume:
                self.parallel.on_main(hold)
            learner, begin = self._learner(run, resume=resume, resume_step=resume_step)
            self.parallel.require_same({"begins after step": str(begin)})
            enter = partial(self._go_on, run, begin) if resume else partial(self._create, run, hold)
            self.parallel.on_main(enter)
            facts = self.facts()
            listeners = self.trackers if self.parallel.is_main else []
            with StopSignals() as stop, Trackers(listeners) as trackers:
                trackers.start(run, facts, step=begin)
                for step in range(begin + 1, self.num_steps + 1):
                    row = self._step(learner, step, facts)
                    row |= self._evaluate(learner, step)
                    _refuse_divergence(row, run)
                    trackers.log(row)
                    stopping = self.parallel.any(stop.received is not None)
                    if stopping or self.checkpoints.due(step, num_steps=self.num_steps):
                        self._save(learner, run, step)
                    if stopping:
                        trackers.say(
                            f"Stopped after step {step}; go on with {resume_flag(run.path)}"
                        )
                        return Outcome(run.path, step=step, stopped_by=stop.received)
                self._write_samples(learner, trackers)
                trackers.say(f"\nDone. More text: python -m fidgpt.sample {quote(str(run.path))}")
        return Outcome(run.path, step=self.num_steps, stopped_by=None)

    def _prepare(self) -> None:
        """Everything that a mistake in the data could end, before anything is written."""
        speak = self.parallel.is_main
        self.data.prepare(show_progress=speak)
        self.parallel.require_same({"the text's checksum": self.data.checksum})
        check_vocab_size(self.data.tokenizer, vocab_size=self.vocab_size)
        for evaluator in self.evaluators.values():
            evaluator.prepare(show_progress=speak)

    def _create(self, run: RunDirectory, hold: Callable[[], object]) -> None:
        run.create(fill=lambda folder: self.data.tokenizer.save(folder / "tokenizer.json"))
        hold()

    def _go_on(self, run: RunDirectory, step: int) -> None:
        self.checkpoints.go_on(run.path, step=step)
        run.go_on(step=step)

    def _learner(
        self, run: RunDirectory, *, resume: bool, resume_step: int | None
    ) -> tuple[Learner, int]:
        """The model on its device and its optimizer, at the beginning or as a checkpoint says."""
        begins = not resume or (resume_step is None and not has_checkpoints(run.path))
        materialize(self.model, device=self.parallel.device, seed=self.seed)
        if begins and self.weights is not None:
            self.weights(self.model)
        if self.trainable is not None:
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(self.trainable(name, parameter))
        learner = Learner(
            self.model,
            optimizer=self.optimizer,
            groups=self.groups,
            schedule=self.schedule,
            loss=self.loss,
            precision=self.precision,
            parallel=self.parallel,
            micro_batch_size=self.micro_batch_size,
            max_grad_norm=self.max_grad_norm,
        )
        if begins:
            return learner, 0
        step, state = self.checkpoints.restore(
            run.path, model=self.model, optimizer=learner.optimizer, step=resume_step
        )
        if state["data"] != self.data.checksum:
            raise RunError(
                f"the text of {run.path} is not what it was when the run began: bring the old "
                "text back, or begin a new run."
            )
        learner.restored(state["settings"])
        return learner, step

    def _step(self, learner: Learner, step: int, facts: Facts) -> Row:
        """Step number `step`, counted from 1, and what was measured of it."""
        begin = time.perf_counter()
        torch.manual_seed(derive_seed(self.seed, "step", step, self.parallel.rank))
        batch = self.data.batch(
            step - 1, rank=self.parallel.rank, world_size=self.parallel.world_size
        )
        row: Row = {"step": step, **learner.update(batch.to(self.parallel.device), step=step - 1)}
        rate = facts.tokens_per_step / (time.perf_counter() - begin)
        row["tokens"] = step * facts.tokens_per_step
        row["tokens_per_second"] = rate
        row["utilisation"] = rate * facts.flops_per_token / facts.peak_flops
        return row

    def _evaluate(self, learner: Learner, step: int) -> Row:
        return {
            f"{name}/{key}": value
            for name, evaluator in self.evaluators.items()
            if evaluator.due(step, num_steps=self.num_steps)
            for key, value in evaluator(learner.replica, self.loss, self.parallel).items()
        }

    def _save(self, learner: Learner, run: RunDirectory, step: int) -> None:
        self.parallel.on_main(
            lambda: self.checkpoints.save(
                run.path,
                step=step,
                model=learner.model,
                optimizer=learner.optimizer,
                state={"data": self.data.checksum, "settings": learner.settings},
            )
        )

    def _write_samples(self, learner: Learner, trackers: Trackers) -> None:
        if self.samples is not None and self.parallel.is_main:
            learner.replica.eval()
            for text in self.samples.write(
                learner.replica, self.data.tokenizer, context=self.seq_len, seed=self.seed
            ):
                trackers.say(f"\n{text}")


def _refuse_divergence(row: Row, run: RunDirectory) -> None:
    """Ends a run whose weights are spoilt, before its good checkpoints make room for bad ones."""
    wrong = [f"{k} is {v}" for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
    if wrong:
        raise RunError(
            f"step {row['step']} diverged: {', '.join(wrong)}. Nothing of it was saved; go on with "
            f"a lower learning rate: {resume_flag(run.path)} --config=tag:LearningRate=..."
        )
