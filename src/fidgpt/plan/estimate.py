"""What a step takes on a mesh: memory of each process of a pipeline, and seconds, by kind."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from fidgpt.cost import TRAINING_PASSES, ForwardPass
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
# Bytes that drivers hold outside of the caching allocator: for torch and its libraries on a GPU,
# and for each group of processes that communicate.
_CONTEXT, _GROUP = 0.6 * _GIGA, 0.25 * _GIGA
# Share of what a pass allocates and frees that a caching allocator holds besides.
_SLACK = {"cuda": 0.06, "cpu": 0.02}
_OPTIMIZER_PASSES = 7  # reads of weight, gradient and two moments; writes of weight, moments
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
      forward: operations of the forward pass; utilisation counts three times as many.
      tokens_per_step: over all processes.
      num_steps: of the run.
      other_bytes: weights of other models that the loss is computed with.
      schedule: of a pipeline.
      stages: layers of each stage; None to cut by operations.
    """

    dtype: str
    itemsize: int
    state: float
    forward: ForwardPass
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
      worst: the process with the highest peak.
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


@dataclass(frozen=True, eq=False)
class _Stage:
    """The parts of a stage, with their numbers."""

    parts: tuple[tuple[Part, int], ...]
    has_end: bool


@dataclass(frozen=True)
class _Scheduled:
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
def _scheduled(schedule: Schedule, pipeline: int, number: int) -> _Scheduled:
    number = fitting(schedule, pipeline, number)
    actions = schedule(pipeline, number)
    peaks = [most_kept(of_rank) for of_rank in actions]
    return _Scheduled(number, actions, places_of(actions), peaks)


def _sampled(schedule: Schedule, pipeline: int, number: int) -> tuple[_Scheduled, int]:
    """Return a schedule of few micro-batches, and how many of `number` it leaves out."""
    if pipeline == 1:
        return _Scheduled(1, (), [0], [{0: 1}]), 0
    # Schedules repeat with as many micro-batches as there are processes.
    left_out = max(0, number // pipeline - _SAMPLED) * pipeline
    try:
        return _scheduled(schedule, pipeline, number - left_out), left_out
    except ValueError:  # a list of actions for one number of micro-batches
        return _scheduled(schedule, pipeline, number), 0


_balanced = lru_cache(maxsize=256)(balanced)


def estimated(trace: Trace, training: Training, setting: Setting, cluster: Cluster) -> Plan:
    """Return what a run takes.

    Raises:
      ValueError: the mesh cannot run the model.
    """
    estimate = _Estimate(trace, training, setting, cluster)
    pipeline = setting.mesh.sizes.get(PIPELINE.name, 1)
    scheduled, left_out = _sampled(training.schedule, pipeline, setting.num_micro_batches)
    layers, stages = estimate.stages(pipeline)
    held = scheduled.held
    memory = estimate.memories(stages, scheduled)
    worst = max(range(pipeline), key=lambda rank: memory[rank].total)
    updates = [sum(estimate.update(stages[stage]) for stage in of_rank) for of_rank in held]
    if pipeline == 1:
        seconds = estimate.step_passes(stages[0], setting.num_micro_batches)
        simulation, passes = Simulation(seconds.total, (seconds.total,)), seconds.total
    else:
        is_run = memory[worst].total <= cluster.device.memory or not setting.recompute
        simulation = estimate.simulation(stages, held, scheduled, is_run=is_run)
        # In the steady state, each further micro-batch takes what the slowest process computes.
        slowest = max(range(pipeline), key=lambda rank: simulation.busy[rank])
        each, number = simulation.busy[slowest] / scheduled.number, scheduled.number + left_out
        parts = [estimate.step_passes(stages[stage], number) for stage in held[slowest]]
        seconds = sum(parts, start=Seconds())
        passes = simulation.seconds + left_out * each + seconds.total - number * each
    updating = cluster.device.step + max(updates)
    step = passes + updating
    rate = training.tokens_per_step / step
    peak = cluster.device.peak(training.dtype) * cluster.size
    return Plan(
        setting=setting,
        cluster=cluster,
        memory=memory,
        worst=worst,
        seconds=seconds,
        bubble=passes - seconds.total,
        updating=updating,
        step=step,
        tokens_per_second=rate / cluster.size,
        utilisation=rate * TRAINING_PASSES * training.forward.total / peak,
        days=step * training.num_steps / 86400,
        simulation=simulation,
        layers=tuple(tuple(layers[stage] for stage in of_rank) for of_rank in held if layers),
        flops=_shares(training, layers, held) if layers else (),
        is_executed=trace.passing > 0,
    )


def peak_of_weights(trace: Trace, training: Training, setting: Setting, cluster: Cluster) -> float:
    """Return the bytes that the worst process needs besides activations, given their trace.

    Raises:
      ValueError: the mesh cannot run the model.
    """
    estimate = _Estimate(trace, training, setting, cluster)
    pipeline = setting.mesh.sizes.get(PIPELINE.name, 1)
    scheduled, _ = _sampled(training.schedule, pipeline, setting.num_micro_batches)
    _, stages = estimate.stages(pipeline)
    return max(memory.total for memory in estimate.memories(stages, scheduled))


def _shares(
    training: Training, layers: Sequence[tuple[int, int]], held: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Return the share of each process in the operations, by the layers of stages it holds."""
    costs = [sum(training.forward.layers[begin:end]) for begin, end in layers]
    costs[0] += training.forward.ends[0]
    costs[-1] += training.forward.ends[1]
    return tuple(sum(costs[stage] for stage in of_rank) / sum(costs) for of_rank in held)


def _borrowed(mesh: MeshSizes, axis: str) -> int:
    """Return the size of an axis that borrows the processes of others; 1 for other axes."""
    return next((mesh[other] for other in mesh.axes() if other.borrows and other.name == axis), 1)


@lru_cache(maxsize=4096)
def _fsdp(mesh: MeshSizes, axis: str) -> tuple[int, int]:
    """Return over how many processes FSDP shards a weight of an axis, and their stride."""
    shards, stride = mesh.num_shards, 1
    for other, size in reversed([*mesh.grid().items()]):
        if other in mesh.sharding_axes:
            break
        stride *= size
    borrowed = _borrowed(mesh, axis) if shards > 1 else 1
    return shards // borrowed, stride * borrowed


def _with_reduction(total: Seconds, backward: Seconds, reduction: Mapping[str, float]) -> Seconds:
    """Return the time of a step's passes with the reduction, beside the last backward pass."""
    last = backward.times(0.9)
    extra = beside(last, reduction)
    exposed = {name: extra.sent.get(name, 0.0) - last.sent.get(name, 0.0) for name in reduction}
    hidden = {name: extra.hidden.get(name, 0.0) for name in reduction}
    return total + Seconds(sent=exposed, hidden=hidden)


@dataclass(frozen=True, eq=False)
class _Estimate:
    """The time and memory of stages, on the devices and with the choices of one setting."""

    trace: Trace
    training: Training
    setting: Setting
    cluster: Cluster
    _seconds: dict[_Stage, tuple[Seconds, Seconds]] = field(default_factory=dict)

    def stages(self, pipeline: int) -> tuple[list[tuple[int, int]], list[_Stage]]:
        """Cut the model as `PipelineParallel` does; stages that are alike are one object.

        Returns:
          The first layer and the one after the last of each stage, none without a pipeline; stages.
        """
        trace, training = self.trace, self.training
        if pipeline == 1:
            whole = tuple((part, max(1, len(part.layers))) for part in trace.parts)
            return [], [_Stage(whole, has_end=True)]
        if not trace.blocks:
            raise ValueError(
                "a pipeline cuts a Transformer between its layers, and this model is none"
            )
        number = training.schedule.num_stages(pipeline)
        layers, (first, last) = training.forward.layers, training.forward.ends
        if number > len(layers) + 1:
            raise ValueError(f"{number} stages of {len(layers)} layers")
        counts = training.stages
        if counts is None or len(counts) != number:
            counts = _balanced(tuple(layers), first=first, last=last, num_stages=number)
        bounds = [*pairwise([0, *accumulate(counts)])]
        stages, distinct = list[_Stage](), dict[tuple[tuple[str, int], ...], _Stage]()
        for stage, (begin, end) in enumerate(bounds):
            inside = range(begin, end)
            parts = [(part, sum(i in inside for i in part.layers)) for part in trace.blocks]
            if stage == 0:
                parts.insert(0, (trace.parts[0], 1))
            if stage == number - 1:
                parts.append((trace.parts[-1], 1))
            kept = tuple((part, count) for part, count in parts if count)
            key = tuple((part.name, count) for part, count in kept)
            stages.append(distinct.setdefault(key, _Stage(kept, has_end=stage == number - 1)))
        return bounds, stages

    def passes(self, stage: _Stage) -> tuple[Seconds, Seconds]:
        """Return the time of both passes of a micro-batch, without reductions."""
        if stage not in self._seconds:
            # Beside the first block nothing is computed.
            gathers = [self._gather(part) for part, _ in stage.parts if part.layers]
            first = max(gathers, default=0.0)
            ends = sum(self._gather(part) for part, _ in stage.parts if not part.layers)
            forward, backward = (self._pass(stage, way) for way in ("forward", "backward"))
            forward += Seconds(sent={"shard gather": first + ends} if first else {})
            self._seconds[stage] = forward, backward
        return self._seconds[stage]

    def _pass(self, stage: _Stage, way: str) -> Seconds:
        total = Seconds()
        for part, number in stage.parts:
            work, dtype = getattr(part, way), "float8" if part.is_float8 else self.training.dtype
            seconds = compute_seconds(
                work, self.cluster.device, dtype, is_compiled=part.is_compiled
            )
            seconds += Seconds(sent=sent_seconds(work, self.cluster, self.setting.mesh))
            gather = self._gather(part) if part.layers else 0.0
            total += beside(seconds, {"shard gather": gather}).times(number)
        return total

    def _gather(self, part: Part) -> float:
        """Return the time in which FSDP gathers the weights of a part."""
        return sum(
            self.cluster.seconds(
                "gather", number * self.training.itemsize, *_fsdp(self.setting.mesh, axis)
            )
            for axis, number in part.parameters.items()
        )

    def step_passes(self, stage: _Stage, number: int) -> Seconds:
        """Return the time of a step's passes of so many micro-batches, with the reduction."""
        forward, backward = self.passes(stage)
        return _with_reduction((forward + backward).times(number), backward, self._reduction(stage))

    def _reduction(self, stage: _Stage) -> dict[str, float]:
        """Return the time of the reduction of gradients, once a step, by collective."""
        mesh, seconds = self.setting.mesh, defaultdict[str, float](float)
        tokens = math.prod(size for axis, size in mesh.grid().items() if axis.splits_tokens)
        for part, number in stage.parts:
            for axis, elements in part.trained.items():
                shards, stride = _fsdp(mesh, axis)
                size = number * elements
                copies = tokens // (shards * _borrowed(mesh, axis))
                if shards > 1:
                    units = max(1, number)
                    each = self.cluster.seconds("scatter", 4 * size / units, shards, stride)
                    seconds["shard scatter"] += each * units
                if copies > 1:
                    width = 4 if shards > 1 else self.training.itemsize
                    seconds["replicate reduce"] += self.cluster.seconds(
                        "reduce", width * size / shards, copies, stride * shards
                    )
        return dict(seconds)

    def simulation(
        self,
        stages: Sequence[_Stage],
        held: Sequence[Sequence[int]],
        scheduled: _Scheduled,
        *,
        is_run: bool,
    ) -> Simulation:
        """Return the passes of a sample of the micro-batches through a pipeline.

        Args:
          stages: of the pipeline.
          held: the numbers of the stages of each process.
          scheduled: what the processes do.
          is_run: whether to simulate it, or else to take the bubble of one-forward-one-backward
            (Narayanan et al., 2021, arXiv:2104.04473, section 2.2).
        """
        forward, backward = zip(*(self.passes(stage) for stage in stages), strict=True)
        both = [f.total for f in forward], [b.total for b in backward]
        stride = self.setting.mesh.size // len(held)
        if is_run:
            sending = self.cluster.seconds("send", self.trace.stream, 2, stride)
            return simulate(scheduled.steps, *both, sending=sending)
        number = scheduled.number
        busy = [number * sum(both[0][s] + both[1][s] for s in of_rank) for of_rank in held]
        waiting = max(busy) * (len(held) - 1) / number / len(held[0])
        return Simulation(max(busy) + waiting, tuple(busy))

    def _elements(self, stage: _Stage, *, trained: bool = False) -> float:
        """Return how many elements of the weights of a stage a process holds."""
        total = 0.0
        for part, number in stage.parts:
            for axis, elements in (part.trained if trained else part.parameters).items():
                total += number * elements / _fsdp(self.setting.mesh, axis)[0]
        return total

    def update(self, stage: _Stage) -> float:
        """Return the time of the optimizer for a stage."""
        moved = 4 * _OPTIMIZER_PASSES * self._elements(stage, trained=True)
        return moved / (self.cluster.device.bandwidth * self.cluster.device.moving)

    def memories(self, stages: Sequence[_Stage], scheduled: _Scheduled) -> tuple[Memory, ...]:
        """Return the bytes of each process at its peak."""
        return tuple(
            self._memory(stages, held, scheduled.peaks[rank], is_first=rank == 0)
            for rank, held in enumerate(scheduled.held)
        )

    def _memory(
        self,
        stages: Sequence[_Stage],
        held: Sequence[int],
        in_flight: Mapping[int, int],
        *,
        is_first: bool,
    ) -> Memory:
        """Return the bytes of a process at its peak: in a pass, or as the optimizer steps.

        Args:
          stages: of all processes.
          held: numbers of the stages of this one.
          in_flight: micro-batches whose activations it keeps at most, by stage.
          is_first: whether it is the first of the pipeline.
        """
        trace, itemsize, mesh = self.trace, self.training.itemsize, self.setting.mesh
        own = [stages[number] for number in held]
        elements = sum(self._elements(stage) for stage in own)
        trained = sum(self._elements(stage, trained=True) for stage in own)
        is_sharded, kind = mesh.num_shards > 1, self.cluster.device.kind
        copy = itemsize * elements if itemsize < 4 and not is_sharded else 0.0
        has_end = any(stage.has_end for stage in own)
        activations = 0.0
        for number in held:
            kept = sum(part.kept * count for part, count in stages[number].parts)
            activations += kept * in_flight.get(number, 0)
        if has_end or is_first:
            blocks = sum(part.kept * len(part.layers) for part in trace.blocks)
            activations += max(0, trace.kept - blocks)
        temporary = float(trace.passing if has_end else trace.passing_in_blocks)
        gathered = self._gathered(own) if is_sharded else 0.0
        # FSDP adds up gradients of micro-batches whole; a copy has its own beside the sum of all.
        whole = sum(n * sum(p.trained.values()) for stage in own for p, n in stage.parts)
        summed = whole if is_sharded else trained
        waiting = 4.0 * summed if self.setting.num_micro_batches > 1 else 0.0
        late = max(waiting, 4.0 * trained + (itemsize * trained if copy else 0.0))
        groups = sum(mesh[axis] > 1 for axis in mesh.axes())
        lasting = {
            "weights": 4.0 * elements + trace.buffers,
            "others": self.training.other_bytes,
            "copy": copy,
            "optimizer": self.training.state * trained,
            "communication": _CONTEXT + _GROUP * groups if kind == "cuda" else 0.0,
        }
        in_pass = Memory(
            **lasting,
            gradients=waiting,
            activations=activations,
            temporary=temporary,
            gathered=gathered,
            allocator=_SLACK[kind] * (activations + temporary + gathered + waiting),
        )
        freed = activations + temporary
        in_update = Memory(**lasting, gradients=late, allocator=_SLACK[kind] * late, freed=freed)
        return max(in_pass, in_update, key=lambda memory: memory.total)

    def _gathered(self, stages: Sequence[_Stage]) -> float:
        """Return the bytes of weights and gradients that FSDP has gathered at a time."""
        parts = [part for stage in stages for part, _ in stage.parts]
        largest = max([part.size for part in parts if part.layers], default=0)
        ends = sum(part.size for part in parts if not part.layers)
        # One layer that computes, and the next; its gradients, and those in float32 being sent.
        itemsize = self.training.itemsize
        return itemsize * (2 * largest + ends) + (itemsize + 4) * largest
