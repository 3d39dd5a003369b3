"""The optimizer step as a component: rows, gradients, judgement and update, in this order."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fidgpt.data import Batch, TrainingStream
from fidgpt.model.reports import collecting
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import AxisPart, DataParallel
from fidgpt.parallel.gradients import reduce_gradients
from fidgpt.processes.fused import FusedAllReduce, Handle
from fidgpt.train.delayed_metrics import AsyncMetrics, LaunchedStep, Row, StepStatus
from fidgpt.train.divergence import Decision
from fidgpt.train.gradients import GradientNorms, GradientTransform
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.micro_batches import (
    BatchShares,
    MicroBatch,
    PassShare,
    micro_batches,
    pad_with_idle,
)
from fidgpt.train.optimizer_groups import step_optimizer
from fidgpt.train.precision import Precision
from fidgpt.train.replay import StepReplay
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import StepMeters, StepReports

__all__ = ["StepSettings", "TrainStep"]


@runtime_checkable
class StepSettings(Protocol):
    """What a step uses of a run; see the attributes of `Trainer`."""

    seed: int
    weights: Callable[[LanguageModel], None] | None
    stream: TrainingStream
    batch_size: int
    micro_batch_size: int | None
    precision: Precision
    parallel: DataParallel
    max_grad_norm: float | None
    gradient_transform: GradientTransform | None
    meters: StepMeters | None


class TrainStep:
    """Takes one optimizer step; the trainer calls `load` and then `launch` for each.

    A step with another objective, such as two losses, overrides `objective`; one with other
    gradients, such as a pipeline, overrides `backward`. `index` is the number of the step from 0,
    which chooses its rows and its learning rate.
    """

    def begin(self, run: StepSettings) -> None:
        """Prepare what else `objective` needs of a run, such as other models."""

    def objective(self, model: LanguageModel, loss: CrossEntropy) -> NextToken:
        """Return the module whose forward pass is the loss of a micro-batch.

        It is called as `NextToken` is, and wrapped for data parallelism.

        Args:
          model: computes, in the number format of the run.
          loss: maps features, unembedding and targets to a number.
        """
        return NextToken(model, loss)

    def axis_parts(self) -> Mapping[str, AxisPart]:
        """Return what divides the model along axes that the step computes on, by their names."""
        return {}

    def load(
        self,
        run: StepSettings,
        state: TrainState,
        index: int,
        *,
        rows: Batch | None = None,
        fused: FusedAllReduce | None = None,
    ) -> BatchShares:
        """Copy the batch of a step to the device, and let processes add up its targets.

        Args:
          run: settings of the run.
          state: of the run.
          index: of the step.
          rows: of this process; None for those of the run's stream.
          fused: of the step before, which is not started yet; None for one of its own.
        """
        parallel = run.parallel
        with state.clock.phase("data"):
            if rows is None:
                rows = run.stream.batch(
                    index + state.shift, rank=parallel.data_rank, world_size=parallel.data_size
                )
            parts = micro_batches(
                rows,
                size=run.micro_batch_size,
                device=parallel.device,
                division=state.replica.division,
                columns=state.replica.computed_columns(rows.tokens.shape[1] - 1),
            )
        number = self._most_micro_batches(run, index + state.shift, len(parts))
        parts = self.padded(run, parts, number)
        own = parallel.fuse()
        batch = BatchShares(parts, fused or own, parallel, accumulates=max(number, len(parts)) > 1)
        if batch.is_shared and not state.replica.counts_computed:
            batch.count(state.objective, fused or own)
        own.start()
        return batch

    def padded(
        self, run: StepSettings, parts: Sequence[MicroBatch], number: int
    ) -> Sequence[MicroBatch]:
        """Return micro-batches with the idle ones that processes compute together.

        Args:
          run: settings of the run.
          parts: of this process.
          number: the most that a process has.
        """
        return pad_with_idle(parts, number) if run.parallel.places.passes_together else parts

    def _most_micro_batches(self, run: StepSettings, batch_index: int, own: int) -> int:
        """Return the largest number of micro-batches that a process has of a batch."""
        if run.micro_batch_size is None or run.parallel.tokens.size == 1:
            return own
        batches = run.stream.full_batches(batch_index + 1) - run.stream.full_batches(batch_index)
        # Of equal shares, of which some have a row more.
        rows = -(-round(batches * run.batch_size) // run.parallel.data_size)
        return max(1, -(-rows // run.micro_batch_size))

    def launch(
        self,
        run: StepSettings,
        state: TrainState,
        index: int,
        batch: BatchShares,
        *,
        status: Callable[[], StepStatus] | None = None,
        loads_next: bool = False,
    ) -> LaunchedStep:
        """Queue the work of a step.

        The device is not waited for, except where a component may skip the step. Processes
        exchange all numbers of the step by one all-reduce beside the optimizer's work.

        Args:
          run: settings of the run.
          state: of the run before the step; afterwards it is that after the step.
          index: of the step.
          batch: its rows.
          status: returns what all processes are to know of this one; None if that is nothing.
          loads_next: whether to load the batch of the next step while this one is computed.

        Raises:
          Diverged: loss or gradients are not finite, and a component had to know before the update.
        """
        parallel = run.parallel
        state.step, state.ahead = index + 1, None
        reports, fused = self.backward(run, state, batch), parallel.fuse()
        is_divided = parallel.places.mesh.num_parts > 1
        reports.join(fused, parallel)
        statuses = _exchange(status, fused, parallel)
        if loads_next and (parallel.tokens.size > 1 or parallel.device.type != "cpu"):
            state.ahead = self.load(run, state, index + 1, fused=fused)
        if not is_divided:
            fused.start()
        with state.clock.phase("optimizer"):
            norms = self.collect_gradients(run, state, fused if is_divided else None)
            if is_divided:
                fused.start()
            state.schedules.apply(index)
            rate = float(state.optimizer.param_groups[0]["lr"])
            # A step that cannot be skipped does not wait for its numbers.
            measured: Row = {} if state.may_skip else self.apply(run, state, index, norms)
            means = reports.means()
            row: Row = {"loss": means["loss"], "grad_norm": norms.total, "learning_rate": rate}
            row |= means
            if state.scaling is not None:
                row["loss_scale"] = state.scaling.scale
            if state.may_skip:
                judged = {name: row[name] for name in ("loss", "grad_norm", "learning_rate")}
                decision = state.decide(AsyncMetrics(judged, parallel.device).read(), norms)
                row["skipped"] = int(decision is Decision.SKIP)
                if decision is Decision.APPLY:
                    measured = self.apply(run, state, index, norms)
            state.optimizer.zero_grad()
            if not row.get("skipped"):
                row |= reports.settle() | measured
        row["statuses"] = [status.value for status in statuses]
        row["is_counted"] = batch.is_counted
        return LaunchedStep(
            step=index + 1,
            metrics=AsyncMetrics(row, parallel.device),
            norms=None if state.may_skip else norms,
        )

    def backward(self, run: StepSettings, state: TrainState, batch: BatchShares) -> StepReports:
        """Add up the gradients of micro-batches, in float32; return what modules reported."""
        reports_of_step, parallel = StepReports(), run.parallel
        self.count(run, state, batch)
        for number, part in enumerate(batch.parts, start=1):
            is_last, share = number == len(batch.parts), batch.of(part)
            # The wrapper of data parallelism all-reduces the gradients that the replica has.
            if is_last and parallel.tokens.size > 1:
                run.precision.return_gradients(state.model, state.replica)
            with contextlib.nullcontext() if is_last else parallel.accumulating(state.module):
                with state.clock.phase("forward"), collecting() as reports:
                    loss = self.loss_of(state, part, share)
                    loss = loss * 0 if part.is_idle else loss
                with state.clock.phase("backward"):
                    (loss if state.scaling is None else state.scaling.scaled(loss)).backward()
            if not part.is_idle:
                reports_of_step.add(reports, share)
            if not is_last:
                run.precision.pull_gradients(state.model, state.replica)
        return reports_of_step

    def count(self, run: StepSettings, state: TrainState, batch: BatchShares) -> None:
        """Count what losses must know of all micro-batches, if the model has to compute it."""
        if batch.accumulates and state.replica.counts_computed:
            with state.clock.phase("forward"):
                counting = run.parallel.fuse()
                batch.count(state.objective, counting)
                counting.start()

    def loss_of(
        self, state: TrainState, part: MicroBatch, share: PassShare | None
    ) -> Float[Tensor, ""]:
        """Return the loss of a micro-batch, whose metric `loss` its modules report.

        Args:
          state: of the run.
          part: the micro-batch.
          share: by which losses are scaled; None if the micro-batch is the whole batch.
        """
        batch = part.batch
        real = () if batch.real is None else (batch.real,)
        return state.module(batch.tokens, batch.counted, share, *real)

    def collect_gradients(
        self, run: StepSettings, state: TrainState, fused: FusedAllReduce | None
    ) -> GradientNorms:
        """Make the model's gradients those of the step; return their norms.

        Args:
          run: settings of the run.
          state: of the run, after the backward passes.
          fused: as in `GradientNorms`.
        """
        run.precision.pull_gradients(state.model, state.replica)
        reduce_gradients(state.model.parameters(), run.parallel.places)
        if state.scaling is not None:
            state.scaling.unscale(state.model.parameters())
        if run.gradient_transform is not None:
            run.gradient_transform(state.model.parameters())
        return GradientNorms(state.model.parameters(), fused, run.parallel.places)

    def apply(self, run: StepSettings, state: TrainState, index: int, norms: GradientNorms) -> Row:
        """Clip the gradients and update the weights; return the metrics of groups if they are due.

        Args:
          run: settings of the run.
          state: of the run, whose optimizer has the settings of the step.
          index: of the step.
          norms: of the gradients.
        """
        measuring = contextlib.nullcontext(dict[str, float | Tensor]())
        if run.meters is not None and run.meters.due(index + 1):
            measuring = run.meters.measuring(state.optimizer.param_groups, norms)
        with measuring as measured:
            norms.clip(run.max_grad_norm)
            step_optimizer(state.optimizer)
        state.optimizer.zero_grad()
        run.precision.push_weights(state.model, state.replica)
        if state.average is not None:
            state.average.update(state.model, step=index)
        return measured

    def judge(self, state: TrainState, launched: LaunchedStep) -> None:
        """Read whether loss and gradients of a launched step were finite.

        Raises:
          Diverged: they were not.
        """
        norms, launched.norms = launched.norms, None
        if norms is not None:
            state.decide(launched.read(), norms)

    def take(self, run: StepSettings, state: TrainState, index: int, batch: BatchShares) -> Row:
        """Take a step and wait for its metrics; see `Trainer.update`."""
        launched = self.launch(run, state, index, batch)
        self.judge(state, launched)
        return launched.read()

    def launch_twice(
        self,
        replay: StepReplay,
        run: StepSettings,
        state: TrainState,
        index: int,
        batch: BatchShares,
        *,
        status: Callable[[], StepStatus],
    ) -> LaunchedStep:
        """Take a step twice and compare all bits, as `replay` does; see `launch`."""
        row = replay(lambda: self.take(run, state, index, batch), state, run.parallel)
        fused = run.parallel.fuse()
        statuses = _exchange(status, fused, run.parallel)
        fused.start()
        row |= {"statuses": [status.value for status in statuses], "is_counted": batch.is_counted}
        metrics = AsyncMetrics(row, run.parallel.device)
        return LaunchedStep(step=index + 1, metrics=metrics, norms=None)


def _exchange(
    status: Callable[[], StepStatus] | None, fused: FusedAllReduce, parallel: DataParallel
) -> list[Handle]:
    """Let processes learn the status of each of them; nothing is exchanged by a single one."""
    if status is None or parallel.world_size == 1:
        return []
    return [fused.each(number) for number in status().numbers()]
