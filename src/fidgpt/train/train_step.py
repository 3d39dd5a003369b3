"""The optimizer step as a component: it loads rows, computes gradients and updates the weights."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fidgpt import plan
from fidgpt.data import Batch, TrainingStream
from fidgpt.model.reports import collecting
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.optimizers import AdamW
from fidgpt.parallel import AxisPart, DataParallel
from fidgpt.processes.collectives import FusedAllReduce, Handle
from fidgpt.train.divergence import Decision
from fidgpt.train.gradients import GradientNorms, GradientTransform, reduce_gradients
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.micro_batches import (
    BatchShares,
    MicroBatch,
    PassShare,
    pad_with_idle,
    split_batch,
)
from fidgpt.train.optimizer_groups import grouped_by_mesh
from fidgpt.train.precision import Precision
from fidgpt.train.replay import StepReplay
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import (
    AsyncMetrics,
    LaunchedStep,
    Row,
    StepMeters,
    StepReports,
    StepStatus,
)

__all__ = ["StepSettings", "TrainStep"]


@runtime_checkable
class StepSettings(plan.Recipe, Protocol):
    """What a step uses of a run; see the attributes of `Trainer`."""

    seed: int
    weights: Callable[[LanguageModel], None] | None
    stream: TrainingStream
    precision: Precision
    max_grad_norm: float | None
    gradient_transform: GradientTransform | None
    meters: StepMeters | None


class TrainStep:
    """Takes one optimizer step; the trainer calls `load` and then `launch` for each.

    A step with another objective, such as two losses, overrides `objective`; one with other
    gradients, such as a pipeline, overrides `backward`. `index` is the number of the step from 0,
    which chooses its rows and its learning rate.

    Attributes:
      sequences_per_row: sequences of `seq_len` + 1 tokens in a row of a batch.
    """

    sequences_per_row: ClassVar[int] = 1

    def begin(self, run: StepSettings) -> None:
        """Prepare what else `objective` needs of a run, such as the models of `others`."""

    def others(self) -> Sequence[LanguageModel]:
        """Return the other models that `objective` computes with, without memory."""
        return ()

    def rehearse(self, others: Sequence[LanguageModel]) -> None:
        """Use these models in place of those that `begin` makes, to measure a step before a run."""

    def objective(self, model: LanguageModel, loss: CrossEntropy) -> NextToken:
        """Return the module whose forward pass is the loss of a micro-batch.

        It is called as `NextToken` is, and wrapped for data parallelism.

        Args:
          model: computes, in the number format of the run.
          loss: maps features, unembedding and targets to a number.
        """
        return NextToken(model, loss)

    @property
    def fits_pipeline(self) -> bool:
        """Whether stages of a pipeline can compute its objective, which only predicts tokens."""
        return type(self).objective is TrainStep.objective

    def axis_parts(self) -> Mapping[str, AxisPart]:
        """Return the parts that divide the model along axes of the step, by the axes' names."""
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
          state: state of the run.
          index: number of the step.
          rows: rows of this process; None to read the rows of the run's stream.
          fused: all-reduce of the step before, if it is not started yet; None to start another one.
        """
        parallel = run.parallel
        with state.clock.phase("data"):
            if rows is None:
                rows = run.stream.batch(
                    index + state.shift, rank=parallel.data_rank, world_size=parallel.data_size
                )
            micro_batches = split_batch(
                rows,
                state.replica,
                size=run.micro_batch_size,
                device=parallel.device,
                sequences=self.sequences_per_row,
            )
        number = self._most_micro_batches(run, index + state.shift, len(micro_batches))
        micro_batches = self.padded(run, micro_batches, number)
        separate = parallel.new_all_reduce()
        accumulates = max(number, len(micro_batches)) > 1
        batch = BatchShares(micro_batches, fused or separate, parallel, accumulates=accumulates)
        if batch.is_shared and not state.replica.counts_computed:
            batch.count(state.objective, fused or separate)
        separate.start()
        return batch

    def padded(
        self, run: StepSettings, micro_batches: Sequence[MicroBatch], number: int
    ) -> Sequence[MicroBatch]:
        """Pad with idle micro-batches where all processes must compute the same number.

        Args:
          run: settings of the run.
          micro_batches: micro-batches of this process.
          number: the largest number of micro-batches that a process has.
        """
        if run.parallel.places.passes_together:
            return pad_with_idle(micro_batches, number)
        return micro_batches

    def _most_micro_batches(self, run: StepSettings, batch_index: int, number_here: int) -> int:
        """Return the largest number of micro-batches that any process has."""
        if run.micro_batch_size is None or run.parallel.tokens.size == 1:
            return number_here
        batches = run.stream.full_batches(batch_index + 1) - run.stream.full_batches(batch_index)
        # Some processes have a row more than others.
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

        Python waits for the device only where a component may skip the step. Processes exchange
        all numbers of the step by one all-reduce beside the optimizer's work.

        Args:
          run: settings of the run.
          state: state of the run before the step, which this changes to the state after it.
          index: number of the step.
          batch: rows of the step.
          status: returns the status that this process sends to the others; None to send nothing.
          loads_next: whether to load the batch of the next step while this step is computed.

        Raises:
          Diverged: loss or gradients are not finite, and a component had to know before the update.
        """
        parallel = run.parallel
        state.step, state.next_batch = index + 1, None
        if isinstance(state.optimizer, AdamW) and not state.optimizer.state:
            state.optimizer.begin()  # before the first gradients, so that they may use its memory
        reports, fused = self.backward(run, state, batch), parallel.new_all_reduce()
        norms_need_sum = parallel.places.mesh.num_parts > 1
        reports.join(fused, parallel)
        statuses = _exchange(status, fused, parallel)
        if loads_next and (parallel.tokens.size > 1 or parallel.device.type != "cpu"):
            state.next_batch = self.load(run, state, index + 1, fused=fused)
        if not norms_need_sum:
            fused.start()
        with state.clock.phase("optimizer"):
            norms = self.collect_gradients(run, state, fused if norms_need_sum else None)
            if norms_need_sum:
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
                judged["is_counted"] = batch.is_counted
                decision = state.decide(AsyncMetrics(judged, parallel.device).read(), norms)
                row["skipped"] = int(decision is Decision.SKIP)
                if decision is Decision.APPLY:
                    measured = self.apply(run, state, index, norms)
            state.optimizer.zero_grad()
            if not row.get("skipped"):
                row |= reports.settle() | measured
        row["statuses"] = [status() for status in statuses]
        row["is_counted"] = batch.is_counted
        return LaunchedStep(
            step=index + 1,
            metrics=AsyncMetrics(row, parallel.device),
            norms=None if state.may_skip else norms,
        )

    def backward(self, run: StepSettings, state: TrainState, batch: BatchShares) -> StepReports:
        """Add up the gradients of micro-batches in float32; return the reports of modules."""
        reports_of_step, parallel = StepReports(), run.parallel
        self.count(run, state, batch)
        for number, micro_batch in enumerate(batch.micro_batches, start=1):
            is_last, share = number == len(batch.micro_batches), batch.share_of(micro_batch)
            # The wrapper of data parallelism all-reduces the gradients that the replica has.
            if is_last and parallel.tokens.size > 1:
                run.precision.return_gradients(state.model, state.replica)
            with contextlib.nullcontext() if is_last else parallel.accumulating(state.module):
                with state.clock.phase("forward"), collecting() as reports:
                    loss = self.loss_of(state, micro_batch, share)
                    loss = loss * 0 if micro_batch.is_idle else loss
                with state.clock.phase("backward"):
                    (loss if state.scaling is None else state.scaling.scaled(loss)).backward()
                del loss  # or its graph would lie among the tensors of the next forward pass
            if not micro_batch.is_idle:
                reports_of_step.add(reports, share)
            if not is_last:
                run.precision.pull_gradients(state.model, state.replica)
        return reports_of_step

    def count(self, run: StepSettings, state: TrainState, batch: BatchShares) -> None:
        """Count over all micro-batches what losses need, if the model must compute the counts."""
        if batch.accumulates and state.replica.counts_computed:
            with state.clock.phase("forward"):
                counting = run.parallel.new_all_reduce()
                batch.count(state.objective, counting)
                counting.start()

    def loss_of(
        self, state: TrainState, micro_batch: MicroBatch, share: PassShare | None
    ) -> Float[Tensor, ""]:
        """Return the loss of a micro-batch, whose metric `loss` its modules report.

        Args:
          state: state of the run.
          micro_batch: the micro-batch.
          share: scales the losses; None if the micro-batch is the whole batch.
        """
        batch = micro_batch.batch
        real = () if batch.real is None else (batch.real,)
        return state.module(batch.tokens, batch.counted, share, *real)

    def collect_gradients(
        self, run: StepSettings, state: TrainState, fused: FusedAllReduce | None
    ) -> GradientNorms:
        """Reduce the gradients over processes and transform them; return their norms.

        Args:
          run: settings of the run.
          state: state of the run after the backward passes.
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
          state: state of the run, whose optimizer has the settings of the step.
          index: number of the step.
          norms: norms of the gradients.
        """
        measuring = contextlib.nullcontext(dict[str, float | Tensor]())
        if run.meters is not None and run.meters.due(index + 1):
            measuring = run.meters.measuring(state.optimizer.param_groups, norms)
        with measuring as measured:
            norms.clip(run.max_grad_norm)
            with grouped_by_mesh(state.optimizer):
                state.optimizer.step()
        state.optimizer.zero_grad()
        run.precision.push_weights(state.model, state.replica)
        if state.average is not None:
            state.average.update(state.model, step=index)
        return measured

    def judge(self, state: TrainState, launched: LaunchedStep) -> None:
        """Raise an error unless loss and gradients of a launched step were finite.

        Raises:
          Diverged: they were not.
        """
        norms, launched.norms = launched.norms, None
        if norms is not None:
            state.decide(launched.row, norms)

    def take(self, run: StepSettings, state: TrainState, index: int, batch: BatchShares) -> Row:
        """Take a step and wait for its metrics; see `Trainer.update`."""
        launched = self.launch(run, state, index, batch)
        self.judge(state, launched)
        return launched.row

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
        fused = run.parallel.new_all_reduce()
        statuses = _exchange(status, fused, run.parallel)
        fused.start()
        row |= {"statuses": [status() for status in statuses], "is_counted": batch.is_counted}
        metrics = AsyncMetrics(row, run.parallel.device)
        return LaunchedStep(step=index + 1, metrics=metrics, norms=None)


def _exchange(
    status: Callable[[], StepStatus] | None, fused: FusedAllReduce, parallel: DataParallel
) -> list[Handle]:
    """Send the status of this process to all others; return handles of all processes' numbers."""
    if status is None or parallel.world_size == 1:
        return []
    signal, is_time, seconds = status()
    return [fused.gather(number) for number in (signal, is_time, *seconds)]
