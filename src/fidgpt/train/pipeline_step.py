"""The optimizer step over the stages of a pipeline: its passes, and what modules report in them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fidgpt.model.reports import Reports, Share, Tallier, collecting
from fidgpt.parallel import PIPELINE, AxisPart, DataParallel, PipelineParallel, fitting
from fidgpt.parallel.linear import Products, deferring, multiply
from fidgpt.parallel.pipeline import PipelinedModel
from fidgpt.parallel.sharding import gather_within, reduce_next, reshard
from fidgpt.processes import Processes
from fidgpt.processes.collectives import FusedAllReduce, Handle
from fidgpt.train.device import derive_seed, seed_torch
from fidgpt.train.loss import with_gradients
from fidgpt.train.micro_batches import BatchShares, MicroBatch, pad_with_idle
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import StepReports
from fidgpt.train.train_step import StepSettings, TrainStep

__all__ = ["PipelineStep"]


class Layout(NamedTuple):
    """What a process reports in each step.

    Attributes:
      numbers: how many values a pass has of each metric, over the stages of the process; 0 of a
        loss.
      tallies: the shape of each module's tally, by its path.
    """

    numbers: dict[str, int]
    tallies: dict[str, tuple[int, ...]]


class StageReports(StepReports):
    """Accumulates the reports of the stages of a process.

    A metric is the mean of what all layers report, and a loss the sum. Tallies are known to all
    processes, each of which keeps the buffers of all modules.

    Args:
      axis: the processes of the pipeline.
      model: the replica.
      layouts: of all processes, filled in by the first step: all steps report the same.
    """

    def __init__(self, axis: Processes, model: PipelinedModel, layouts: list[Layout]) -> None:
        super().__init__()
        self._axis = axis
        self._model = model
        self._layouts = layouts
        self._numbers: dict[int, Counter[str]] = {}

    def add_stage(self, reports: Reports, share: Share | None, stage: int) -> None:
        """Add the reports of a micro-batch in a stage."""
        self._numbers[stage] = reports.num_metrics
        self.add(reports, share)

    def _values(self, reports: Reports, share: Share | None) -> dict[str, Tensor]:
        numbers, means = reports.num_metrics, reports.metrics_of(share)
        sums = {name: mean * numbers[name] for name, mean in means.items()}
        return {**sums, **reports.losses_of(share)}

    def join(self, fused: FusedAllReduce, parallel: DataParallel) -> None:
        """Let the fused all-reduce of a step sum what was reported over all processes."""
        self._num_processes = parallel.tokens.size
        tallies = {path: self._tallies[part] for path, part in self._paths().items()}
        if not self._layouts:
            numbers = sum(self._numbers.values(), Counter[str]())
            own = {name: numbers[name] for name in self._means}
            shapes = {path: tuple(tally.shape) for path, tally in tallies.items()}
            self._layouts += self._axis.gather(Layout(own, shapes))
        names = [*dict.fromkeys(name for layout in self._layouts for name in layout.numbers)]
        zero = torch.zeros((), device=parallel.device)
        values = torch.stack([self._means.get(name, zero) for name in names])
        counts = float(parallel.places.is_first_of_stage)
        self._sums = fused.sum_everywhere(values * counts)
        sizes = [sum(map(math.prod, layout.tallies.values())) for layout in self._layouts]
        if sum(sizes):
            rank = self._axis.rank
            parts = [tally.flatten().double() for tally in tallies.values()]
            flat = torch.cat([zero.double().new_zeros(0), *parts]) * counts
            padding = sum(sizes[:rank]), sum(sizes[rank + 1 :])
            self._join_tallies(fused.sum_everywhere(F.pad(flat, padding)))

    def means(self) -> dict[str, Tensor]:
        """Return what was reported, the same on every process."""
        assert self._sums is not None, "join() has not been called"
        means = self._sums() / self._num_processes
        numbers: dict[str, int] = {}
        for layout in self._layouts:
            for name, number in layout.numbers.items():
                numbers[name] = numbers.get(name, 0) + number
        return {
            name: mean / max(1, number)
            for (name, number), mean in zip(numbers.items(), means.unbind(), strict=True)
        }

    def _paths(self) -> dict[str, Tallier]:
        """Return the modules of these stages that have a tally, by path."""
        modules = {path: module for path, module in self._model.named_modules()}
        return {p: m for p, m in modules.items() if isinstance(m, Tallier) and m in self._tallies}

    def _join_tallies(self, sums: Handle) -> None:
        """Let each module find its tally among the sums, in the order of the model."""

        def part(begins: Sequence[int], shape: Sequence[int]) -> Tensor:
            each = [sums().narrow(0, begin, math.prod(shape)) for begin in begins]
            return torch.stack(each).sum(0).round().long().view(*shape)

        # Layers of several processes may share a module, and each process has a tally of it.
        begin, begins, parts = 0, dict[str, list[int]](), dict[str, Handle]()
        for layout in self._layouts:
            for path, shape in layout.tallies.items():
                begins.setdefault(path, []).append(begin)
                parts[path] = partial(part, begins[path], shape)
                begin += math.prod(shape)
        for path, module in self._model.named_modules():
            if path in parts and isinstance(module, Tallier):
                self._summed[module] = parts[path]


def seed_pass(seed: int, stage: int, number: int, *, device: torch.device) -> None:
    """Let a pass draw random numbers that do not depend on the order of passes."""
    seed_torch(derive_seed(seed, "stage", stage, number), device=device)


class _Pass(NamedTuple):
    """What a forward pass leaves for its backward pass.

    Attributes:
      received: its input, from the stage before; None for the first stage.
      output: of the stage; None for the last one.
      loss: of its own modules, and on the last stage the model's too; None if there is none.
    """

    received: Tensor | None
    output: Tensor | None
    loss: Tensor | None


class StagePasses:
    """The passes of the stages of a process in a step.

    Args:
      step: whose loss the last stage computes.
      run: settings of the run.
      state: of the run.
      batch: all micro-batches.
      model: the replica.
      reports: collects what the modules of these stages report.
    """

    def __init__(
        self,
        step: TrainStep,
        run: StepSettings,
        state: TrainState,
        batch: BatchShares,
        model: PipelinedModel,
        reports: StageReports,
    ) -> None:
        self._step, self._run, self._state, self._batch = step, run, state, batch
        self._model, self._pipeline, self._reports = model, model.pipeline, reports
        self._shards = run.parallel.places.fsdp is not None
        self._seed = torch.initial_seed()
        self._shares = self._shares_of_stages()
        self._gather_ahead = {
            stage: gather_within(model, self._pipeline.stages.modules(model, stage))
            for stage in (self._shares if self._shards else ())
        }
        self._trains = self._trained_before()
        self._left = Counter(dict.fromkeys(self._shares, len(batch.micro_batches)))
        self._kept: dict[tuple[int, int], _Pass] = {}
        self._products: dict[tuple[int, int], Products] = {}
        # By F or B, the stage that gets it, and the micro-batch.
        self._arriving: dict[tuple[str, int, int], tuple[Tensor, dist.Work | None]] = {}
        self._sent: list[tuple[Tensor, dist.Work]] = []

    def _shares_of_stages(self) -> dict[int, BatchShares]:
        """Return what each micro-batch contributes to the losses of each stage of this process."""
        shares, begin, counted = {}, 0, self._pipeline.num_counted
        for stage in self._pipeline.stages.own(self._pipeline.axis.rank):
            end = begin + counted.get(stage, 0)
            own = slice(begin, end) if self._model.counts_computed else slice(None)
            shares[stage], begin = self._batch.of_stage(own), end
        return shares

    def _trained_before(self) -> list[bool]:
        """Return for each stage, and after the last, whether any before it has trained weights."""
        stages, trained_before = self._pipeline.stages, [False]
        for stage in range(len(stages)):
            modules = stages.modules(self._model, stage)
            trained = any(p.requires_grad for module in modules for p in module.parameters())
            trained_before.append(trained_before[-1] or trained)
        return trained_before

    def take(self, stage: int, kind: str, number: int) -> None:
        """Carry out an action of a timeline."""
        match kind:
            case "F":
                self._forward(stage, number)
            case "B" | "I":
                self._backward(stage, number, defers=kind == "I")
            case "W":
                self._multiply(stage, number)
            case "RECEIVE_F" | "RECEIVE_B":
                self._receive(kind[-1], stage, number)
            case _:  # SEND_F and SEND_B: `_pass_on` has sent it right after its computation
                pass

    def finish(self) -> None:
        """Wait until everything is sent, and free what was gathered."""
        for _, work in self._sent:
            work.wait()
        if self._shards:  # stages in front of all trained weights have no backward pass
            reshard(self._state.model)

    def _forward(self, stage: int, number: int) -> None:
        micro_batch, state = self._batch.micro_batches[number], self._state
        is_last = stage == len(self._pipeline.stages) - 1
        share, x = self._shares[stage].share_of(micro_batch), self._input(stage, number)
        seed_pass(self._seed, stage, number, device=self._run.parallel.device)
        output = loss = None
        with state.clock.phase("forward"):
            with self._pipeline.computing(stage, x), collecting() as reports:
                if is_last:
                    loss = self._step.loss_of(state, micro_batch, share)
                else:
                    batch = micro_batch.batch
                    ctx = self._model.context_of(
                        batch.inputs, counted=batch.counted_targets, real=batch.real_inputs
                    )
                    output = self._model.features(ctx.own(batch.inputs), ctx)
            if not is_last and (losses := reports.losses_of(share)):
                loss = torch.stack([*losses.values()]).sum()
                loss = loss if share is None else loss * share.is_counted
        if not micro_batch.is_idle:
            self._reports.add_stage(reports, share, stage)
        elif loss is not None:
            loss = loss * 0
        self._kept[stage, number] = _Pass(x, output, loss)
        if output is not None:
            self._pass_on("F", stage, stage + 1, number, output.detach())

    def _input(self, stage: int, number: int) -> Tensor | None:
        if not stage:
            return None
        x = self._arrived("F", stage, number)
        return x.requires_grad_() if self._trains[stage] else x

    def _backward(self, stage: int, number: int, *, defers: bool) -> None:
        x, output, loss = self._kept.pop((stage, number))
        state, scaling, total = self._state, self._state.scaling, None
        if loss is not None and loss.requires_grad:
            total = loss if scaling is None else scaling.scaled(loss)
        if output is not None and self._trains[stage + 1]:
            gradient = self._arrived("B", stage, number)
            if output.requires_grad:
                seeded = with_gradients(output, gradient)
                total = seeded if total is None else total + seeded
        self._left[stage] -= 1
        is_last_pass = not self._left[stage]
        if is_last_pass:
            self._reduce_stage(stage)
        if total is not None:
            self._gather_ahead.get(stage, lambda: None)()
            with state.clock.phase("backward"):
                is_deferred = defers and not (is_last_pass and self._shards)
                with deferring() if is_deferred else nullcontext([]) as products:
                    total.backward()
            self._products[stage, number] = products
            self._run.precision.pull_gradients(state.model, state.replica)
        if x is not None and x.requires_grad:
            if x.grad is None:
                raise ValueError(
                    f"stage {stage} does not use what the stage before it sends, whose layers get "
                    "no gradients: let blocks use their input, or freeze what is before them."
                )
            self._pass_on("B", stage, stage - 1, number, x.grad)

    def _reduce_stage(self, stage: int) -> None:
        """Let FSDP reduce the gradients of a stage, in its last backward pass."""
        if not self._shards:
            return
        for key in [key for key in self._products if key[0] == stage]:
            self._multiply(*key)  # that it reduces all of them
        modules = self._pipeline.stages.modules(self._model, stage)
        reduce_next(self._model, modules, ends=not +self._left)

    def _multiply(self, stage: int, number: int) -> None:
        """Compute the gradients of weights that a backward pass has left."""
        if products := self._products.pop((stage, number), []):
            with self._state.clock.phase("backward"):
                multiply(products)
            self._run.precision.pull_gradients(self._state.model, self._state.replica)

    def _pass_on(self, kind: str, stage: int, to: int, number: int, x: Tensor) -> None:
        """Give a tensor to another stage, which may be on another process."""
        if (peer := self._pipeline.peer(to)) is None:
            self._arriving[kind, to, number] = x, None
            return
        expected = self._empty(max(stage, to), number)
        if (x.shape, x.dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"stage {stage} sends a stream of shape {list(x.shape)} in {x.dtype}, and the next "
                f"one expects {list(expected.shape)} in {expected.dtype}: blocks must keep both."
            )
        x = x.contiguous()
        self._sent = [(sent, work) for sent, work in self._sent if not work.is_completed()]
        self._sent.append((x, self._pipeline.axis.begin_send(x, peer)))

    def _arrived(self, kind: str, stage: int, number: int) -> Tensor:
        """Return what another stage gave this one."""
        x, work = self._arriving.pop((kind, stage, number))
        if work is not None:
            work.wait()
        return x

    def _receive(self, kind: str, stage: int, number: int) -> None:
        source = stage - 1 if kind == "F" else stage + 1
        if kind == "B" and not self._trains[source]:  # nothing before it needs the gradient
            return
        x, peer = self._empty(max(stage, source), number), self._pipeline.peer(source)
        assert peer is not None
        self._arriving[kind, stage, number] = x, self._pipeline.axis.begin_receive(x, peer)

    def _empty(self, stage: int, number: int) -> Tensor:
        """Return a new tensor for the input of a stage, or for its gradient."""
        tokens = self._batch.micro_batches[number].batch.inputs
        division = self._model.division
        own = tokens if division is None else division.own(tokens)
        return self._model.empty_stream(own, stage)


class PipelineStep(PipelineParallel, TrainStep):
    """Takes optimizer steps on the axis `pipeline` of a mesh, and cuts the model for it.

    The gradients equal those of one process: each target weighs the same, whichever micro-batch it
    is in. A batch whose micro-batches are not as many as the schedule takes is filled up by idle
    ones. With one process on the axis it is the plain step.

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
