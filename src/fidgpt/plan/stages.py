"""What is planned, and how a pipeline divides layers and micro-batches over its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from fidgpt.cost import ForwardPass
from fidgpt.parallel.axes import MeshSizes
from fidgpt.parallel.pipeline import PIPELINE, balanced
from fidgpt.parallel.pipeline_schedule import (
    Actions,
    Schedule,
    TorchSchedule,
    fitting,
    most_kept,
    places_of,
)
from fidgpt.plan.timing import Step, ordered
from fidgpt.plan.trace import Part, Trace

__all__ = ["Setting", "Training"]

_SAMPLED = 2  # times the processes of a pipeline, micro-batches that are simulated


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is known of a run besides its mesh.

    Attributes:
      dtype: of the computation.
      itemsize: bytes of an element in it.
      state: bytes of the optimizer and of averages for each trained element.
      forward: operations of the forward pass; utilisation counts three times as many.
      tokens_per_step: over all processes.
      sequences_per_row: sequences of a row of a batch.
      num_steps: of the run.
      other_bytes: weights of other models that the loss is computed with.
      schedule: of a pipeline.
      stages: layers of each stage; None to cut by operations.
      counts_first: whether losses of a step of several micro-batches depend on counts of all of
        them, which a first pass without gradients makes.
    """

    dtype: str
    itemsize: int
    state: float
    forward: ForwardPass
    tokens_per_step: int
    sequences_per_row: int
    num_steps: int
    other_bytes: int = 0
    schedule: Schedule = field(default_factory=TorchSchedule)
    stages: Sequence[int] | None = None
    counts_first: bool = False


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may be chosen for a run on given devices.

    Attributes:
      mesh: of its processes.
      micro_batch: rows that a process computes at once.
      num_micro_batches: of a step.
      recompute: none, selective or full; "" as the config has it.
      reshards: whether FSDP frees gathered weights after each pass, or at the end of a step.
    """

    mesh: MeshSizes
    micro_batch: int
    num_micro_batches: int
    recompute: str = ""
    reshards: bool = True

    @property
    def pipeline(self) -> int:
        """The number of processes over which layers are divided."""
        return self.mesh.sizes.get(PIPELINE.name, 1)


@dataclass(frozen=True, eq=False)
class Stage:
    """The parts of a stage, with their numbers."""

    parts: tuple[tuple[Part, int], ...]
    has_end: bool


@dataclass(frozen=True)
class Scheduled:
    """What the processes of a pipeline do with a sample of the micro-batches.

    Attributes:
      number: micro-batches of the sample, filled up with idle ones as the schedule needs.
      actions: of each process.
      places: the process of each stage.
      peaks: of each process, the micro-batches whose activations it keeps at most, by stage.
    """

    number: int
    actions: Actions
    places: Sequence[int]
    peaks: Sequence[Mapping[int, int]]

    @cached_property
    def steps(self) -> Sequence[Step]:
        """What the processes do, in order."""
        return ordered(self.actions)

    @cached_property
    def held(self) -> list[list[int]]:
        """The stages of each process."""
        ranks = range(len(self.peaks))
        return [[s for s, place in enumerate(self.places) if place == rank] for rank in ranks]


@lru_cache(maxsize=256)
def scheduled(schedule: Schedule, pipeline: int, number: int) -> Scheduled:
    """Return what a step of so many micro-batches does; ValueError if the schedule needs more."""
    number = fitting(schedule, pipeline, number)
    actions = schedule(pipeline, number)
    peaks = [most_kept(of_rank) for of_rank in actions]
    return Scheduled(number, actions, places_of(actions), peaks)


def sampled(schedule: Schedule, pipeline: int, number: int) -> tuple[Scheduled, int]:
    """Return a schedule of few micro-batches, and how many of `number` it leaves out."""
    if pipeline == 1:
        return Scheduled(1, (), [0], [{0: 1}]), 0
    # Schedules repeat with as many micro-batches as there are processes.
    left_out = max(0, number // pipeline - _SAMPLED) * pipeline
    try:
        return scheduled(schedule, pipeline, number - left_out), left_out
    except ValueError:  # a list of actions for one number of micro-batches
        return scheduled(schedule, pipeline, number), 0


cut_evenly = lru_cache(maxsize=256)(balanced)


def stages_of(
    trace: Trace, training: Training, places: Sequence[int]
) -> tuple[list[tuple[int, int]], list[Stage]]:
    """Cut the model as `PipelineParallel` does; stages that are alike are one object.

    Args:
      trace: of the whole model.
      training: on any mesh.
      places: the process of each stage; of one process if there is no pipeline.

    Returns:
      The first layer and the one after the last of each stage, none without a pipeline; stages.

    Raises:
      ValueError: there is no such cut.
    """
    if len({*places}) == 1:
        whole = tuple((part, max(1, len(part.layers))) for part in trace.parts)
        return [], [Stage(whole, has_end=True)]
    if not trace.blocks:
        raise ValueError("a pipeline cuts a Transformer between its layers, and this model is none")
    number, last_part = len(places), trace.parts[-1]
    if places[-1] != places[0]:
        last_part = last_part.with_tied()
    layers, (first, last) = training.forward.layers, training.forward.ends
    if number > len(layers) + 1:
        raise ValueError(f"{number} stages of {len(layers)} layers")
    counts = training.stages
    if counts is None or len(counts) != number:
        counts = cut_evenly(tuple(layers), first=first, last=last, num_stages=number)
    bounds = [*pairwise([0, *accumulate(counts)])]
    stages, distinct = list[Stage](), dict[tuple[tuple[str, int], ...], Stage]()
    for stage, (begin, end) in enumerate(bounds):
        inside = range(begin, end)
        parts = [(part, sum(i in inside for i in part.layers)) for part in trace.blocks]
        if stage == 0:
            parts.insert(0, (trace.parts[0], 1))
        if stage == number - 1:
            parts.append((last_part, 1))
        kept = tuple((part, count) for part, count in parts if count)
        key = tuple((part.name, count) for part, count in kept)
        stages.append(distinct.setdefault(key, Stage(kept, has_end=stage == number - 1)))
    return bounds, stages


def borrowed(mesh: MeshSizes, axis: str) -> int:
    """Return the size of an axis that borrows the processes of others; 1 for other axes."""
    return next((mesh[other] for other in mesh.axes() if other.borrows and other.name == axis), 1)


@lru_cache(maxsize=4096)
def fsdp_over(mesh: MeshSizes, axis: str) -> tuple[int, int]:
    """Return over how many processes FSDP shards a weight of an axis, and their stride."""
    shards, stride = mesh.num_shards, 1
    for other, size in reversed([*mesh.grid().items()]):
        if other in mesh.sharding_axes:
            break
        stride *= size
    lent = borrowed(mesh, axis) if shards > 1 else 1
    return shards // lent, stride * lent
