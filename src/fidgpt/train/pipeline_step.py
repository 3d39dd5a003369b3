"""An optimizer step whose micro-batches pass through a pipeline of processes, by a schedule."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from fidgpt.parallel import PIPELINE, AxisPart, PipelineParallel, fitting
from fidgpt.parallel.pipeline import PipelinedModel
from fidgpt.train.micro_batches import BatchShares, MicroBatch, pad_with_idle
from fidgpt.train.pipeline_passes import StagePasses, seed_pass
from fidgpt.train.pipeline_reports import StageReports
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import StepReports
from fidgpt.train.train_step import StepSettings, TrainStep

__all__ = ["PipelineStep"]


class PipelineStep(PipelineParallel, TrainStep):
    """Takes optimizer steps on the axis `pipeline` of a mesh, and cuts the model for it.

    The gradients equal those of
    one process: each target weighs the same, whichever micro-batch it is in. A batch whose
    micro-batches are not as many as the schedule takes is filled up by idle ones. With one process
    on the axis it is the plain step.

    Args:
      schedule: orders forward and backward passes.
      stages: the number of layers of each stage, in their order; None to cut by operations.
    """

    def axis_parts(self) -> Mapping[str, AxisPart]:
        """Return itself."""
        return {PIPELINE.name: self}

    def padded(
        self, run: StepSettings, micro_batches: Sequence[MicroBatch], number: int
    ) -> Sequence[MicroBatch]:
        """Return micro-batches with the idle ones that the schedule needs."""
        padded = super().padded(run, micro_batches, number)
        size = run.parallel.places.mesh[PIPELINE]
        return (
            padded
            if size == 1
            else pad_with_idle(padded, fitting(self.schedule, size, len(padded)))
        )

    def count(self, run: StepSettings, state: TrainState, batch: BatchShares) -> None:
        """Let the processes with the same stages count what their losses must know."""
        if not isinstance(state.replica, PipelinedModel):
            super().count(run, state, batch)
        elif batch.accumulates and state.replica.counts_computed:
            numbers: Counter[int] = Counter()

            def begin(stage: int) -> None:
                seed_pass(seed, stage, numbers[stage], device=run.parallel.device)
                numbers[stage] += 1

            seed = torch.initial_seed()
            with state.clock.phase("forward"), state.replica.pipeline.beginning(begin):
                batch.count_within(state.objective, run.parallel.tokens)

    def backward(self, run: StepSettings, state: TrainState, batch: BatchShares) -> StepReports:
        """Compute the schedule; return what the modules of all stages reported."""
        if not isinstance(state.replica, PipelinedModel):
            return super().backward(run, state, batch)
        axis = run.parallel.places.axes[PIPELINE.name]
        self.count(run, state, batch)
        pipeline, number = state.replica.pipeline, len(batch.micro_batches)
        num_columns = batch.micro_batches[0].batch.tokens.shape[1]
        layouts = pipeline.layouts.setdefault(num_columns, [])
        reports = StageReports(axis, state.replica, layouts)
        passes = StagePasses(self, run, state, batch, state.replica, reports)
        if number not in pipeline.actions:
            pipeline.actions[number] = self.timeline(axis.size, number).actions[axis.rank]
        with run.parallel.accumulating(state.module):
            for action in pipeline.actions[number]:
                passes.take(*action)
            passes.finish()
        return reports
