"""Pipeline parallelism: a model cut into stages of consecutive layers, each on one process.

Every stage reads the tokens of a batch itself, which are a function of the step, so that positions,
documents, masks and embeddings of tokens in deep layers are not sent: only the stream is. A table
that two stages use is on both of them (`fidgpt.placement.Holders`), and its gradients are summed.

Outside of a schedule, as in evaluation and generation, the stages compute one after the other, and
all processes get the features and logits of the last one.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fidgpt.attributes import changed
from fidgpt.cost import forward_pass
from fidgpt.model.context import AttentionContext, Stream, Tokens
from fidgpt.model.linear import extended
from fidgpt.model.reports import collecting
from fidgpt.model.transformer import Transformer
from fidgpt.parallel.axes import Axis, AxisPart, MeshSizes, Weights
from fidgpt.parallel.linear import defer_weight_gradients
from fidgpt.parallel.pipeline_schedule import (
    Action,
    Schedule,
    Timeline,
    TorchSchedule,
    accepts,
    fitting,
    places_of,
    timeline,
)
from fidgpt.placement import Holders, whole_shape
from fidgpt.processes import Processes

__all__ = ["PIPELINE", "PipelineParallel", "Stages"]

PIPELINE = Axis(name="pipeline", weights=Weights.PARTS, splits_layers=True)


@dataclass(frozen=True)
class Stages:
    """How a model is cut.

    Attributes:
      begins: the first layer of each stage, and the number of layers.
      costs: forward operations per token of each stage.
      ranks: the process that has each stage, on the axis.
    """

    begins: Sequence[int]
    costs: Sequence[float]
    ranks: Sequence[int]

    def __len__(self) -> int:
        return len(self.ranks)

    def own(self, rank: int) -> list[int]:
        """Return the stages of a process."""
        return [stage for stage, place in enumerate(self.ranks) if place == rank]

    def modules(self, model: Transformer, stage: int) -> list[nn.Module]:
        """Return the children of a model, and its layers, that a stage needs."""
        first, last = model.ends()
        return [
            *(first if stage == 0 else ()),
            *[*model.blocks][self.begins[stage] : self.begins[stage + 1]],
            *(last if stage == len(self) - 1 else ()),
        ]


class PipelineParallel(AxisPart):
    """Cuts a model into stages over the processes of the axis `pipeline`.

    Stages have about the same forward operations, with the embedding in the first one, and the
    unembedding and what predicts further tokens in the last one.

    Args:
      schedule: orders forward and backward passes.
      stages: the number of layers of each stage, in their order; None to cut by operations. Only
        the first and the last may have none.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"schedule": "restart", "stages": "restart"}

    def __init__(
        self, schedule: Schedule | None = None, *, stages: Sequence[int] | None = None
    ) -> None:
        self.schedule = TorchSchedule() if schedule is None else schedule
        self.stages = stages
        self._cuts: dict[int, Stages] = {}  # of whole models, by the size of the axis

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError unless the model can be cut into the stages of the schedule."""
        self._cuts = {mesh[PIPELINE]: self._cut(model, mesh[PIPELINE], seq_len)}

    def cut(self, size: int) -> Stages:
        """Return the stages of the model that was checked, over so many processes."""
        return self._cuts[size]

    def timeline(self, size: int, num_micro_batches: int) -> Timeline:
        """Return what the processes do in a step; ValueError if there are too few micro-batches."""
        number = fitting(self.schedule, size, num_micro_batches)
        return timeline(self.schedule(size, number), self.cut(size).costs)

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Leave this process its stages of a model, and empty parameters of the others."""
        assert isinstance(model, Transformer)
        stages = self.cut(axis.size)
        places: dict[nn.Parameter, dict[int, None]] = {
            parameter: dict.fromkeys(stages.ranks) for parameter in model.parameters(recurse=False)
        }
        for stage, rank in enumerate(stages.ranks):
            for module in stages.modules(model, stage):
                for parameter in module.parameters():
                    places.setdefault(parameter, {})[rank] = None
        num_logits = whole_shape(next(model.unembedding.parameters()))[0]
        replaced = {
            whole: Holders(axis, ranks=(*ranks,), held_shape=(*whole.shape,)).parameter(whole)
            for whole, ranks in places.items()
        }
        for module in model.modules():
            for name, whole in module._parameters.items():
                if whole is not None:
                    module._parameters[name] = replaced[whole]
        pipeline = extended(model, PipelinedModel).pipeline = Pipeline(axis, stages)
        unembedding = extended(model.unembedding, PipelinedUnembedding)
        unembedding.pipeline, unembedding.num_logits = pipeline, num_logits
        if any(action.kind == "W" for own in self._actions(axis.size) for action in own):
            for stage in stages.own(axis.rank):
                for module in stages.modules(model, stage):
                    defer_weight_gradients(module)

    def _actions(self, size: int) -> Any:
        """Return the actions for the least number of micro-batches."""
        return self.schedule(size, next(n for n in count(1) if accepts(self.schedule, size, n)))

    def _cut(self, model: nn.Module, size: int, seq_len: int) -> Stages:
        if not isinstance(model, Transformer) or type(model).features is not Transformer.features:
            raise ValueError(
                f"a pipeline cuts a Transformer between its layers, and {type(model).__name__} "
                "computes its features in a way of its own: change `enter`, `layers` or `leave` in "
                "place of `features`, or set pipeline=1."
            )
        require_no_skips(model)
        actions = self._actions(size)
        number = self.schedule.num_stages(size)
        timeline(actions, [1.0] * number)  # raises if it is wrong
        passed = forward_pass(model, seq_len=seq_len)
        layers, (first, last) = passed.layers, passed.ends
        if self.stages is None:
            if number > len(layers) + 1:
                raise ValueError(
                    f"pipeline={size} makes {number} stages, and {len(layers)} layers and the "
                    f"unembedding can fill at most {len(layers) + 1}: choose fewer processes for "
                    "the axis pipeline, fewer stages on each, or more layers."
                )
            counts = balanced(layers, first=first, last=last, num_stages=number)
        else:
            counts = list(self.stages)
            is_filled = all(count > 0 for count in counts[1:-1]) and min(counts, default=-1) >= 0
            if len(counts) != number or sum(counts) != len(layers) or not is_filled:
                raise ValueError(
                    f"stages={counts} must list the layers of {number} stages, which are "
                    f"{len(layers)} together; only the first and the last stage may have none."
                )
        begins = [0, *accumulate(counts)]
        costs = [sum(layers[begin:end]) for begin, end in pairwise(begins)]
        costs[0], costs[-1] = costs[0] + first, costs[-1] + last
        return Stages(begins, [max(1.0, cost) for cost in costs], places_of(actions))


def require_no_skips(model: nn.Module) -> None:
    """Raise ValueError if a model has skips, which read streams that other stages compute."""
    if len(getattr(model, "skips", ())):
        raise ValueError(
            "skips read the stream of earlier layers, which other processes compute: use a size of "
            "1 for the axis pipeline."
        )


def balanced(layers: Sequence[float], *, first: float, last: float, num_stages: int) -> list[int]:
    """Return the numbers of layers of stages that make the most costly stage as cheap as possible.

    No layer next to a cut could move to make its two stages more alike.

    Args:
      layers: cost of each layer, a whole number.
      first: cost of what the first stage computes besides.
      last: cost of what the last stage computes besides, which may have no layer.
      num_stages: at most one more than there are layers.
    """
    totals = [0, *accumulate(map(int, layers))]
    # Of the stages that are cut so far, the last ones, by the layer with which they begin: the
    # greatest cost, the sum of squares, which is least where stages are alike, and the counts.
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for begin in range(len(layers) + 1):
        cost = int(last) + totals[-1] - totals[begin]
        best[begin] = cost, cost**2, (len(layers) - begin,)
    for stage in reversed(range(num_stages - 1)):
        after, best = best, {}
        for begin in range(len(layers)) if stage else (0,):
            for end in [end for end in after if end > begin]:
                cost = int(first) * (stage == 0) + totals[end] - totals[begin]
                worst, squares, counts = after[end]
                choice = max(cost, worst), squares + cost**2, (end - begin, *counts)
                best[begin] = min(choice, best.get(begin, choice))
                if cost > best[begin][0]:
                    break
    return [*best[0][2]]


class Pipeline:
    """A process's place in a pipeline, and the stage that it computes now.

    Args:
      axis: the processes.
      stages: on them.

    Attributes:
      current: the stage; None outside of a pass of one.
      received: its input, from the stage before.
      before_pass: called with a stage before it computes.
      num_counted: how many counts each stage reported last, as in `Reports.counted`.
      actions: of this process, by the number of micro-batches of a step.
      layouts: what the processes report, by the number of columns of a batch.
    """

    def __init__(self, axis: Processes, stages: Stages) -> None:
        self.axis = axis
        self.stages = stages
        self.current: int | None = None
        self.received: Tensor | None = None
        self.before_pass: Callable[[int], object] = lambda stage: None
        self.num_counted: dict[int, int] = {}
        self.actions: dict[int, Sequence[Action]] = {}
        self.layouts: dict[int, list[Any]] = {}

    @property
    def last(self) -> int:
        """The process with the last stage."""
        return self.stages.ranks[-1]

    def beginning(
        self, before_pass: Callable[[int], object]
    ) -> contextlib.AbstractContextManager[None]:
        """Context in which a function is called before every pass of a stage."""
        return changed(self, before_pass=before_pass)

    @contextlib.contextmanager
    def computing(self, stage: int, received: Tensor | None) -> Iterator[None]:
        """Context in which the features of the model are the output of a stage."""
        with changed(self, current=stage, received=received):
            self.before_pass(stage)
            yield

    def peer(self, stage: int) -> int | None:
        """Return the process with a stage; None if there is no such stage, or it is this one."""
        if not 0 <= stage < len(self.stages) or self.stages.ranks[stage] == self.axis.rank:
            return None
        return self.stages.ranks[stage]


class PipelinedModel(Transformer):
    """Mixin of models that were cut into stages."""

    pipeline: Pipeline

    def features(self, tokens: Tokens, ctx: AttentionContext | None = None) -> Stream:
        """Return the features of the last stage, or what the stage that computes returns."""
        ctx = self.layout(tokens) if ctx is None else ctx
        if self.pipeline.current is not None:
            return self._compute(tokens, ctx)
        axis, stages, sent, x = self.pipeline.axis, self.pipeline.stages, [], None
        for stage in stages.own(axis.rank):
            if (source := self.pipeline.peer(stage - 1)) is not None:
                x = self.empty_stream(tokens, stage)
                axis.begin_receive(x, source).wait()
            with self.pipeline.computing(stage, x), collecting() as reports:
                x = self._compute(tokens, ctx).contiguous()
            self.pipeline.num_counted[stage] = len(reports.counted)
            if (target := self.pipeline.peer(stage + 1)) is not None:
                sent.append((axis.begin_send(x, target), x))
        for work, _ in sent:
            work.wait()
        if x is None or axis.rank != self.pipeline.last:
            x = self.empty_stream(tokens, None)
        return axis.share(x, source=self.pipeline.last)

    def _compute(self, tokens: Tokens, ctx: AttentionContext) -> Tensor:
        stage, x, stages = self.pipeline.current, self.pipeline.received, self.pipeline.stages
        assert stage is not None
        if x is None:
            x = self.enter(tokens, ctx)
        x = self.layers(x, ctx, stages.begins[stage], stages.begins[stage + 1])
        return self.leave(x, tokens, ctx) if stage == len(stages) - 1 else x

    def empty_stream(self, tokens: Tensor, stage: int | None) -> Tensor:
        """Return a tensor for the input of a stage; None for the input of the unembedding."""
        parts, begin = 1, 0 if stage is None else self.pipeline.stages.begins[stage]
        if begin and self.training:
            parts = getattr(self.blocks[begin - 1], "stream_parts", 1)
        shape = (len(tokens), tokens.shape[1] // parts, self.embedding.weight.shape[1])
        return torch.empty(shape, dtype=self.stream_dtype, device=tokens.device)


class PipelinedUnembedding(nn.Module):
    """Mixin of unembeddings whose logits all processes get, outside of a schedule."""

    pipeline: Pipeline
    num_logits: int  # precision replaces parameters by copies, which do not know their whole shape

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of the last stage."""
        if self.pipeline.current is not None:
            return super().__call__(x)
        if self.pipeline.axis.rank == self.pipeline.last:
            logits = super().__call__(x)
        else:
            logits = x.new_empty(*x.shape[:-1], self.num_logits)
        return self.pipeline.axis.share(logits, source=self.pipeline.last)
