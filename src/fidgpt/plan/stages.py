"""What is planned, how a pipeline divides it over its processes, and what processes send.

What processes send each other in a step is counted as collectives of each kind, and their bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from fidgpt.cost import ForwardPass
from fidgpt.parallel.axes import MeshSizes
from fidgpt.parallel.pipeline import PIPELINE, balanced
from fidgpt.parallel.pipeline_schedule import (
    Action,
    Actions,
    Schedule,
    TorchSchedule,
    fitting,
    most_kept,
    places_of,
)
from fidgpt.parallel.sharding import APART, EXACT, REST
from fidgpt.plan.timing import Step, ordered
from fidgpt.plan.trace import Part, Trace, Unit
from fidgpt.recording import Sent

__all__ = ["Setting", "Training"]

_SAMPLED = 2  # times the processes of a pipeline, micro-batches that are simulated
_BUCKET = 25 * 2**20  # bytes that DistributedDataParallel sums at once


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
      num_steps: of the run, with sequences of this length.
      num_batches: full batches in these steps, which are fewer where batches grow.
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
    num_steps: float
    num_batches: float
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


def step_collectives(
    trace: Trace, training: Training, setting: Setting
) -> tuple[Counter[Sent], ...]:
    """Return the collectives of a step, for each process of a pipeline; for one if there is none.

    Bytes count whole tensors; in an all-to-all, what one process sends if tokens choose all experts
    equally often. Sums of scalars, such as the loss, and what an optimizer sends are left out.

    Raises:
      ValueError: the mesh cannot run the model.
    """
    number, size = setting.num_micro_batches, setting.pipeline
    places, actions = [0], [[Action(0, kind, at) for at in range(number) for kind in "FB"]]
    if size > 1:
        plan = scheduled(training.schedule, size, number)
        places, actions, number = plan.places, plan.actions, plan.number
    _, stages = stages_of(trace, training, places)
    counts_first = training.counts_first and number > 1
    return tuple(
        _Process(trace, training, setting, stages, places, rank, own, number, counts_first).sent()
        for rank, own in enumerate(actions)
    )


@dataclass
class _Weights:
    """A unit of FSDP on a process of a pipeline: weights that are gathered together.

    Attributes:
      stage: the stage that holds them; None for the `REST` unit, which all stages share.
      layers: number of layers that use the unit.
      number: of such units; less than `layers` if layers share their weights.
      elements: elements in each.
      trained: trained elements in each.
    """

    stage: int | None = None
    layers: int = 1
    number: int = 1
    elements: int = 0
    trained: int = 0


@dataclass(frozen=True, eq=False)
class _Process:
    """A process that takes a step, by its actions; see `step_collectives`."""

    trace: Trace
    training: Training
    setting: Setting
    stages: Sequence[Stage]
    places: Sequence[int]
    rank: int
    actions: Sequence[Action]
    number: int
    counts_first: bool

    @cached_property
    def own(self) -> dict[int, Stage]:
        """The stages of the process."""
        return {s: self.stages[s] for s, place in enumerate(self.places) if place == self.rank}

    def sent(self) -> Counter[Sent]:
        """Return the collectives of the step."""
        sent, summed = Counter[Sent](), Counter[str]()
        for stage in self.own.values():
            for part, layers in stage.parts:
                each, works = layers * self.number, [part.forward.sent, part.backward.sent]
                if self.counts_first:
                    works.append(part.forward.sent - part.loss.sent)
                for work in works:
                    sent.update({one: round(count * each) for one, count in work.items()})
                number = round(part.num_distinct(layers))
                summed.update({axis: number * size for axis, size in part.summed.items()})
        sent.update(Sent(axis, "reduce", 4 * size) for axis, size in summed.items())
        sent += self._between_stages() if len(self.places) > 1 else Counter()
        return sent + (self._sharded() if self.setting.mesh.num_shards > 1 else self._averaged())

    def _between_stages(self) -> Counter[Sent]:
        """Return the sends between stages, and the collectives of the pass that counts tokens."""
        sent, name, stream = Counter[Sent](), PIPELINE.name, self.trace.stream
        for stage in self.own:
            after = self.places[stage + 1 : stage + 2]
            before = self.places[max(0, stage - 1) : stage]
            number = (1 + self.counts_first) * (after not in ([], [self.rank]))
            number += before not in ([], [self.rank]) and any(
                sum(part.trained.values())
                for earlier in self.stages[:stage]
                for part, _ in earlier.parts
            )
            sent[Sent(name, "send", stream)] += self.number * number
        sent[Sent(name, "share", stream)] = self.number * self.counts_first
        tied = sum(trained for _, trained in self.trace.parts[-1].tied.values())
        if tied and self.places[0] != self.places[-1]:
            is_end = self.rank in (self.places[0], self.places[-1])
            size = 4 * tied // self.setting.mesh.num_shards
            sent[Sent(name, "exchange", is_end * size)] += 1
        return sent

    @cached_property
    def _units(self) -> list[tuple[Unit, _Weights]]:
        # Gathered where it is empty, too, as on a process without embedding and unembedding.
        rest = Unit("", REST, 0)
        units: dict[tuple[Unit, int | None, str], _Weights] = {(rest, None, ""): _Weights()}
        for stage, whole in self.own.items():
            for part, layers in whole.parts:
                for unit, elements in part.parameters.items():
                    is_rest, axis = unit.kind == REST, unit.axis if unit.kind == APART else ""
                    key = unit._replace(axis=axis), stage, part.name
                    key = (rest, None, "") if is_rest else key
                    number = round(part.num_distinct(layers))
                    weights = units.setdefault(key, _Weights(stage, layers, number))
                    times = number if is_rest else 1
                    weights.elements += times * elements
                    weights.trained += times * part.trained.get(unit, 0)
        return [(unit, weights) for (unit, *_), weights in units.items()]

    def _copies(self, axis: str) -> int:
        """Return the number of processes that hold the same weights and compute other tokens."""
        mesh = self.setting.mesh
        shared = fsdp_over(mesh, axis)[0] * borrowed(mesh, axis)
        return mesh.size // mesh.token_copies // shared

    def _sharded(self) -> Counter[Sent]:
        """Return what FSDP gathers, and the gradients that it sums, once a step."""
        sent = Counter[Sent]()
        for unit, weights in self._units:
            shards, copies = fsdp_over(self.setting.mesh, unit.axis)[0], self._copies(unit.axis)
            if shards > 1:
                itemsize = 4 if unit.kind == EXACT else self.training.itemsize
                size = itemsize * weights.elements
                sent[Sent("shard", "gather", size)] += weights.layers * self._gathers(unit, weights)
                if weights.trained:
                    sent[Sent("shard", "scatter", 4 * weights.trained)] += weights.number
            if copies > 1 and weights.trained:
                size = 4 * weights.trained // shards
                sent[Sent("replicate", "reduce", size)] += weights.number
        return sent

    def _gathers(self, unit: Unit, weights: _Weights) -> int:
        """Return how often a unit is gathered: before every pass, or only where it was freed."""
        if not self.setting.reshards:
            return 1
        if unit.kind not in (EXACT, REST):
            return (2 + self.counts_first) * self.number
        gathers = stays = int(self.counts_first)
        for stage, kind, _ in self.actions:
            if kind != "W" and weights.stage in (None, stage):
                gathers += not stays
                stays = kind == "F"
        return gathers

    def _averaged(self) -> Counter[Sent]:
        """Return the sums of gradients of copies, once a step."""
        sent, totals = Counter[Sent](), Counter[str]()
        for unit, weights in self._units:
            totals[unit.axis] += weights.number * weights.trained
        for axis, elements in totals.items():
            if elements and self._copies(axis) > 1:
                is_wrapped = not axis and len(self.places) == 1
                size = elements * (self.training.itemsize if is_wrapped else 4)
                buckets = 1 if axis else -(-size // _BUCKET)
                sent[Sent("replicate", "reduce", size // buckets)] += buckets
        return sent
