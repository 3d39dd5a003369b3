"""What a step takes on a mesh: memory of each process of a pipeline, and seconds, by kind."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

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
from fidgpt.plan.hardware import Cluster
from fidgpt.plan.timing import (
    Seconds,
    Simulation,
    Step,
    beside,
    compute_seconds,
    ordered,
    sent_seconds,
    simulate,
)
from fidgpt.plan.trace import Part, Trace

__all__ = ["Memory", "Plan", "Setting", "Training", "estimated"]

_GIGA = 2**30
# Of torch and its libraries on a GPU, and of each group of processes that talk: what their drivers
# hold, which the caching allocator does not see.
_CONTEXT, _GROUP = 0.6 * _GIGA, 0.25 * _GIGA
# Of what is allocated and freed in a pass, how much more a caching allocator holds.
_SLACK = {"cuda": 0.06, "cpu": 0.02}
_OPTIMIZER_PASSES = 7  # reads of weight, gradient and two moments, writes of the first and these
_SAMPLED = 2  # times the processes of a pipeline, micro-batches that are simulated


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a process, by kind, at the moment of its peak.

    Attributes:
      weights: that the optimizer updates, and buffers.
      copy: of the weights in the format that computes; 0 if the weights are sharded.
      gradients: that exist at the peak.
      optimizer: its state, and averages of weights.
      activations: of all micro-batches that a schedule keeps at a time.
      gathered: weights and gradients of layers that FSDP has gathered.
      temporary: the peak of what else exists in a pass, such as logits.
      others: other models that the loss is computed with.
      communication: buffers of collectives and the context of the device.
      allocator: what the allocator holds besides.
      freed: activations and temporaries of a step whose optimizer needs more, after they are freed.
    """

    weights: float = 0.0
    copy: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    gathered: float = 0.0
    temporary: float = 0.0
    others: float = 0.0
    communication: float = 0.0
    allocator: float = 0.0
    freed: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, kind.name) for kind in fields(self)) - self.freed

    @property
    def saved(self) -> float:
        """Bytes of a checkpoint."""
        return self.weights + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is known of a run besides its mesh.

    Attributes:
      dtype: of the computation.
      itemsize: bytes of an element in it.
      state: bytes of the optimizer and of averages for each trained element.
      flops_per_token: of the model, forward and backward, as utilisation counts them.
      layer_flops: forward operations per token of each layer.
      other_flops: the same of what is before all layers, and after them.
      tokens_per_step: over all processes.
      num_steps: of the run.
      other_bytes: weights of other models that the loss is computed with.
      schedule: of a pipeline.
      stages: layers of each stage; None to cut by operations.
    """

    dtype: str
    itemsize: int
    state: float
    flops_per_token: int
    layer_flops: Sequence[float]
    other_flops: tuple[float, float]
    tokens_per_step: int
    num_steps: int
    other_bytes: int = 0
    schedule: Schedule = field(default_factory=TorchSchedule)
    stages: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What may be chosen for a run on given devices.

    Attributes:
      mesh: of its processes.
      micro_batch: sequences that a process computes at once.
      num_micro_batches: of a step.
      recompute: none, selective or full; "" as the config has it.
    """

    mesh: MeshSizes
    micro_batch: int
    num_micro_batches: int
    recompute: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run takes.

    Attributes:
      setting: that is planned.
      cluster: of the run.
      memory: of each process of a pipeline; of one if there is none.
      worst: the one with the highest peak.
      seconds: of a step, by kind, on the process that computes longest.
      bubble: seconds in which it waits for the others.
      updating: seconds of the optimizer and of what each step does once.
      step: seconds of a step.
      tokens_per_second: of each device.
      utilisation: operations of the model as a share of the peak.
      days: of the whole run.
      simulation: of the pipeline.
      layers: of each process of a pipeline: the first layer of each of its stages, and the one
        after its last.
      flops: the share of each process of a pipeline in the operations of the model.
      is_executed: whether the model could be executed; else activations and operations are unknown.
    """

    setting: Setting
    cluster: Cluster
    memory: tuple[Memory, ...]
    worst: int
    seconds: Seconds
    bubble: float
    updating: float
    step: float
    tokens_per_second: float
    utilisation: float
    days: float
    simulation: Simulation
    layers: tuple[tuple[tuple[int, int], ...], ...] = ()
    flops: tuple[float, ...] = ()
    is_executed: bool = True

    @property
    def peak(self) -> float:
        """Bytes of the worst process."""
        return self.memory[self.worst].total

    @property
    def fits(self) -> bool:
        """Whether the worst process has enough memory."""
        return self.peak <= self.cluster.device.memory

    @property
    def hours(self) -> float:
        """Hours of the run, times devices."""
        return self.days * 24 * self.cluster.size

    def kinds(self) -> dict[str, float]:
        """Return seconds of a step by what passes them."""
        kinds = {
            "products": self.seconds.products,
            "attention": self.seconds.attention,
            "memory-bound": self.seconds.moving,
            **{
                f"{name}, waited for": s
                for name, s in sorted(self.seconds.sent.items(), key=lambda pair: -pair[1])
            },
            "pipeline bubble": self.bubble,
            "optimizer and step": self.updating,
        }
        return {name: seconds for name, seconds in kinds.items() if seconds > 0}

    @property
    def bound(self) -> str:
        """What passes most of the time, collectives together."""
        waiting = sum(self.seconds.sent.values())
        kinds = {
            "matrix products": self.seconds.products,
            "attention": self.seconds.attention,
            "memory bandwidth and launches": self.seconds.moving,
            "communication": waiting,
            "the pipeline's bubble": self.bubble,
            "the optimizer": self.updating,
        }
        return max(kinds, key=kinds.__getitem__)


@dataclass(frozen=True)
class _Stage:
    """The parts of a stage, with their numbers."""

    parts: tuple[tuple[Part, int], ...]
    has_end: bool


@dataclass(frozen=True)
class _Scheduled:
    """What the processes of a pipeline do with a sample of the micro-batches.

    Attributes:
      number: of these micro-batches, of which idle ones fill up the schedule.
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


@lru_cache(maxsize=256)
def _scheduled(schedule: Schedule, pipeline: int, number: int) -> _Scheduled:
    number = fitting(schedule, pipeline, number)
    actions = schedule(pipeline, number)
    kept = [most_kept(own) for own in actions]
    return _Scheduled(number, actions, places_of(actions), kept)


_balanced = lru_cache(maxsize=256)(balanced)


def estimated(trace: Trace, training: Training, setting: Setting, cluster: Cluster) -> Plan:
    """Return what a run takes.

    Raises:
      ValueError: the mesh cannot run the model.
    """
    mesh, device = setting.mesh, cluster.device
    pipeline = mesh.sizes.get(PIPELINE.name, 1)
    schedule = training.schedule
    if pipeline > 1:
        # Schedules repeat with as many micro-batches as there are processes.
        number = setting.num_micro_batches
        left_out = max(0, number // pipeline - _SAMPLED) * pipeline
        try:
            scheduled = _scheduled(schedule, pipeline, number - left_out)
        except ValueError:  # a list of actions for one number of micro-batches
            left_out, scheduled = 0, _scheduled(schedule, pipeline, number)
        sampled, number = scheduled.number, scheduled.number + left_out
        layers, stages = _stages(trace, training, schedule.num_stages(pipeline))
    else:
        sampled, number, layers, stages = 1, 1, [], [_whole(trace)]
        scheduled = _Scheduled(1, (), [0], [{0: 1}])
    places, peaks = scheduled.places, scheduled.peaks
    alike = {id(stage): stage for stage in stages}
    each_time = {i: _stage_seconds(one, training, setting, cluster) for i, one in alike.items()}
    each_sum = {i: _reduction(one, training, setting, cluster) for i, one in alike.items()}
    times = [each_time[id(stage)] for stage in stages]
    reducing = [each_sum[id(stage)] for stage in stages]
    memory = tuple(
        _memory(trace, training, setting, cluster, stages, places, rank, peaks[rank])
        for rank in range(pipeline)
    )
    worst = max(range(pipeline), key=lambda rank: memory[rank].total)
    own = [[stage for stage, place in enumerate(places) if place == r] for r in range(pipeline)]
    updates = [
        device.step + sum(_update(stages[s], training, setting, cluster) for s in own[rank])
        for rank in range(pipeline)
    ]
    if pipeline == 1:
        forward, backward = times[0]
        total = (forward + backward).times(setting.num_micro_batches)
        total = _with_reduction(total, backward, reducing[0])
        simulation = Simulation(total.total, (total.total,))
        updating = updates[0]
        bubble, passes = 0.0, total.total
    else:
        stride = mesh.size // pipeline
        sending = cluster.seconds("send", trace.stream, 2, stride)
        both = [f.total for f, _ in times], [b.total for _, b in times]
        if memory[worst].total <= device.memory or not setting.recompute:
            simulation = simulate(scheduled.steps, *both, sending=sending)
        else:  # it will not be run: by the formula of Narayanan et al., 2021, arXiv:2104.04473
            busy = [sampled * sum(both[0][s] + both[1][s] for s in of_rank) for of_rank in own]
            waiting = max(busy) * (pipeline - 1) / sampled / len(own[0])
            simulation = Simulation(max(busy) + waiting, tuple(busy))
        # In the steady state, each further micro-batch takes what the slowest process computes.
        slowest = max(range(pipeline), key=lambda rank: simulation.busy[rank])
        each = simulation.busy[slowest] / sampled
        passes = simulation.seconds + (number - sampled) * each
        total = Seconds()
        for stage in own[slowest]:
            forward, backward = times[stage]
            part = (forward + backward).times(number)
            total += _with_reduction(part, backward, reducing[stage])
        passes += total.total - number * each
        bubble, updating = passes - total.total, max(updates)
    step = passes + updating
    rate = training.tokens_per_step / step
    peak = device.peak(training.dtype) * cluster.size
    return Plan(
        setting=setting,
        cluster=cluster,
        memory=memory,
        worst=worst,
        seconds=total,
        bubble=bubble,
        updating=updating,
        step=step,
        tokens_per_second=rate / cluster.size,
        utilisation=rate * training.flops_per_token / peak,
        days=step * training.num_steps / 86400,
        simulation=simulation,
        layers=tuple(tuple(layers[stage] for stage in of_rank) for of_rank in own if layers),
        flops=_shares(training, layers, own) if layers else (),
        is_executed=trace.passing > 0,
    )


def _shares(
    training: Training, layers: Sequence[tuple[int, int]], own: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Return the share of each process in the operations, by the layers of stages and its own."""
    costs = [sum(training.layer_flops[begin:end]) for begin, end in layers]
    costs[0] += training.other_flops[0]
    costs[-1] += training.other_flops[1]
    return tuple(sum(costs[stage] for stage in of_rank) / sum(costs) for of_rank in own)


def _whole(trace: Trace) -> _Stage:
    parts = [(part, max(1, len(part.layers))) for part in trace.parts]
    return _Stage(tuple(parts), has_end=True)


def _stages(
    trace: Trace, training: Training, number: int
) -> tuple[list[tuple[int, int]], list[_Stage]]:
    """Cut a model as `PipelineParallel` does; stages that are alike are one object."""
    if not trace.blocks:
        raise ValueError("a pipeline cuts a Transformer between its layers, and this model is none")
    layers, (first, last) = training.layer_flops, training.other_flops
    if number > len(layers) + 1:
        raise ValueError(f"{number} stages of {len(layers)} layers")
    counts = training.stages
    if counts is None or len(counts) != number:
        counts = _balanced(layers, first=first, last=last, num_stages=number)
    begins = [0, *accumulate(counts)]
    stages, known = list[_Stage](), dict[tuple[tuple[str, int], ...], _Stage]()
    for stage, (begin, end) in enumerate(pairwise(begins)):
        inside = range(begin, end)
        parts = [(part, sum(i in inside for i in part.layers)) for part in trace.blocks]
        if stage == 0:
            parts.insert(0, (trace.parts[0], 1))
        if stage == number - 1:
            parts.append((trace.parts[-1], 1))
        kept = tuple((part, count) for part, count in parts if count)
        key = tuple((part.name, count) for part, count in kept)
        stages.append(known.setdefault(key, _Stage(kept, has_end=stage == number - 1)))
    return [*pairwise(begins)], stages


def _format(part: Part, training: Training) -> str:
    return "float8" if part.is_float8 else training.dtype


@lru_cache(maxsize=4096)
def _fsdp(mesh: MeshSizes, axis: str) -> tuple[int, int]:
    """Return over how many processes FSDP shards a weight of an axis, and their stride."""
    shards, stride = mesh.num_shards, 1
    for one, size in reversed([*mesh.grid().items()]):
        if one in mesh.sharding_axes:
            break
        stride *= size
    borrowing = {one.name: mesh[one] for one in mesh.axes() if one.borrows}
    if axis in borrowing and shards > 1:
        return shards // borrowing[axis], stride * borrowing[axis]
    return shards, stride


def _stage_seconds(
    stage: _Stage, training: Training, setting: Setting, cluster: Cluster
) -> tuple[Seconds, Seconds]:
    """Return the time of the forward and the backward pass of a micro-batch, without reductions."""
    both = []
    for way in ("forward", "backward"):
        whole, gathers = Seconds(), 0.0
        for part, number in stage.parts:
            work = getattr(part, way)
            own = compute_seconds(
                work, cluster.device, _format(part, training), is_compiled=part.is_compiled
            )
            own += Seconds(sent=sent_seconds(work, cluster, setting.mesh))
            gather = _gather(part, training, setting, cluster) if part.layers else 0.0
            gathers = max(gathers, gather)
            whole += beside(own, {"shard gather": gather}).times(number)
        if way == "forward":  # of the first block, beside which nothing is computed
            ends = sum(
                _gather(p, training, setting, cluster) for p, _ in stage.parts if not p.layers
            )
            whole += Seconds(sent={"shard gather": gathers + ends} if gathers else {})
        both.append(whole)
    return both[0], both[1]


def _gather(part: Part, training: Training, setting: Setting, cluster: Cluster) -> float:
    """Return the time in which FSDP gathers the weights of a part."""
    seconds = 0.0
    for axis, number in part.parameters.items():
        shards, stride = _fsdp(setting.mesh, axis)
        seconds += cluster.seconds("gather", number * training.itemsize, shards, stride)
    return seconds


def _reduction(
    stage: _Stage, training: Training, setting: Setting, cluster: Cluster
) -> dict[str, float]:
    """Return the time of the reduction of gradients, once a step, by collective."""
    mesh, seconds = setting.mesh, defaultdict[str, float](float)
    tokens = math.prod(size for axis, size in mesh.grid().items() if axis.splits_tokens)
    for part, number in stage.parts:
        for axis, elements in part.trained.items():
            shards, stride = _fsdp(setting.mesh, axis)
            size = number * elements
            copies = tokens // shards
            if any(one.borrows and one.name == axis for one in mesh.axes()):
                copies = tokens // (shards * mesh.sizes[axis])
            if shards > 1:
                units = max(1, number)
                each = cluster.seconds("scatter", 4 * size / units, shards, stride)
                seconds["shard scatter"] += each * units
            if copies > 1:
                width = 4 if shards > 1 else training.itemsize
                reduce = cluster.seconds("reduce", width * size / shards, copies, stride * shards)
                seconds["replicate reduce"] += reduce
    return dict(seconds)


def _with_reduction(total: Seconds, backward: Seconds, reduction: Mapping[str, float]) -> Seconds:
    """Return the time of a step's passes with the reduction, beside the last backward pass."""
    last = backward.times(0.9)
    extra = beside(last, reduction)
    names = {name: extra.sent.get(name, 0.0) - last.sent.get(name, 0.0) for name in reduction}
    hidden = {name: extra.hidden.get(name, 0.0) for name in reduction}
    return total + Seconds(sent=names, hidden=hidden)


def _elements(stage: _Stage, setting: Setting, *, trained: bool = False) -> float:
    """Return how many elements of the weights of a stage a process holds."""
    total = 0.0
    for part, number in stage.parts:
        for axis, elements in (part.trained if trained else part.parameters).items():
            total += number * elements / _fsdp(setting.mesh, axis)[0]
    return total


def _update(stage: _Stage, training: Training, setting: Setting, cluster: Cluster) -> float:
    """Return the time of the optimizer for a stage."""
    moved = 4 * _OPTIMIZER_PASSES * _elements(stage, setting, trained=True)
    return moved / (cluster.device.bandwidth * cluster.device.moving)


def _memory(
    trace: Trace,
    training: Training,
    setting: Setting,
    cluster: Cluster,
    stages: Sequence[_Stage],
    places: Sequence[int],
    rank: int,
    in_flight: Mapping[int, int],
) -> Memory:
    mesh, kind = setting.mesh, cluster.device.kind
    own = [stage for stage, place in zip(stages, places, strict=True) if place == rank]
    held = sum(_elements(stage, setting) for stage in own)
    trained = sum(_elements(stage, setting, trained=True) for stage in own)
    whole = sum(n * sum(p.trained.values()) for s in own for p, n in s.parts)
    is_sharded, narrow = mesh.num_shards > 1, training.itemsize < 4
    repeats = setting.num_micro_batches > 1
    copy = training.itemsize * held if narrow and not is_sharded else 0.0
    activations = 0.0
    for stage, place in enumerate(places):
        if place == rank and stage in in_flight:
            kept = sum(part.kept * number for part, number in stages[stage].parts)
            activations += kept * in_flight[stage]
    blocks = sum(part.kept * len(part.layers) for part in trace.blocks)
    if any(stage.has_end for stage in own) or rank == 0:
        activations += max(0, trace.kept - blocks)
    has_end = any(stage.has_end for stage in own)
    temporary = float(trace.passing if has_end else trace.passing_in_blocks)
    gathered = 0.0
    if is_sharded:
        parts = [part for stage in own for part, _ in stage.parts]
        largest = max([part.size for part in parts if part.layers], default=0)
        ends = sum(part.size for part in parts if not part.layers)
        # One layer that computes, and the next; its gradients, and those in float32 being sent.
        gathered = training.itemsize * (2 * largest + ends) + (training.itemsize + 4) * largest
    # FSDP adds up gradients of micro-batches whole; a copy has its own beside the sum of all.
    waiting = 4.0 * (whole if is_sharded else trained) if repeats else 0.0
    late = 4.0 * trained + (training.itemsize * trained if copy else 0.0)
    slack = _SLACK[kind]
    groups = sum(mesh[axis] > 1 for axis in mesh.axes())
    fixed = _CONTEXT + _GROUP * groups if kind == "cuda" else 0.0
    lasting = {
        "weights": 4.0 * held + trace.buffers,
        "others": training.other_bytes,
        "copy": copy,
        "optimizer": training.state * trained,
        "communication": fixed,
    }
    passing = activations + temporary + gathered
    first = Memory(
        **lasting,
        gradients=waiting,
        activations=activations,
        temporary=temporary,
        gathered=gathered,
        allocator=slack * (passing + waiting),
    )
    last = Memory(
        **lasting,
        gradients=max(waiting, late),
        allocator=slack * max(waiting, late),
        freed=activations + temporary,
    )
    return max(first, last, key=lambda memory: memory.total)
