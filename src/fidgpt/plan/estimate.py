"""What a step takes on a mesh: memory of each process of a pipeline, and seconds, by kind."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from fidgpt.cost import TRAINING_PASSES
from fidgpt.plan.hardware import Cluster
from fidgpt.plan.stages import (
    Scheduled,
    Setting,
    Stage,
    Training,
    borrowed,
    fsdp_over,
    sampled,
    stages_of,
)
from fidgpt.plan.timing import (
    Seconds,
    Simulation,
    beside,
    compute_seconds,
    sent_seconds,
    simulate,
)
from fidgpt.plan.trace import Part, Trace

__all__ = ["Memory", "Plan", "estimated"]

_GIGA = 2**30
# Bytes that drivers hold outside of the caching allocator: for torch and its libraries on a GPU,
# and for each group of processes that communicate.
_CONTEXT, _GROUP = 0.6 * _GIGA, 0.25 * _GIGA
# Share of what a pass makes and frees that CUDA's allocator holds besides.
_SLACK = 0.06
# The same on a CPU, of what is made inside of a block and freed there, and of the rest. They are
# holes in the heap, measured of variants of `base`: glibc gives a tensor the hole of another one of
# its size only if 96 bytes beside it are free, which small objects take.
_HOLES_INSIDE, _HOLES = 0.9, 0.25
_OPTIMIZER_PASSES = 7  # reads of weight, gradient and two moments; writes of weight, moments


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
class Plan:
    """What a run takes.

    Attributes:
      setting: that is planned.
      cluster: of the run.
      sequences: that a process computes at once.
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
    sequences: int
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


def estimated(trace: Trace, training: Training, setting: Setting, cluster: Cluster) -> Plan:
    """Return what a run takes.

    Raises:
      ValueError: the mesh cannot run the model.
    """
    estimate = _Estimate(trace, training, setting, cluster)
    pipeline = setting.pipeline
    scheduled, left_out = sampled(training.schedule, pipeline, setting.num_micro_batches)
    layers, stages = stages_of(trace, training, scheduled.places)
    held = scheduled.held
    memory = estimate.memories(stages, scheduled)
    worst = max(range(pipeline), key=lambda rank: memory[rank].total)
    updates = [sum(estimate.update(stages[stage]) for stage in of_rank) for of_rank in held]
    if pipeline == 1:
        seconds, slowest = estimate.step_passes(stages[0], setting.num_micro_batches), 0
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
    # A smaller batch needs fewer passes; the rest of its step takes as long.
    of_batch = seconds.total - sum(estimate.step_passes(stages[n], 0).total for n in held[slowest])
    rate = training.tokens_per_step / step
    peak = cluster.device.peak(training.dtype) * cluster.size
    return Plan(
        setting=setting,
        cluster=cluster,
        sequences=setting.micro_batch * training.sequences_per_row,
        memory=memory,
        worst=worst,
        seconds=seconds,
        bubble=passes - seconds.total,
        updating=updating,
        step=step,
        tokens_per_second=rate / cluster.size,
        utilisation=rate * TRAINING_PASSES * training.forward.total / peak,
        days=(training.num_steps * (step - of_batch) + training.num_batches * of_batch) / 86400,
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
    scheduled, _ = sampled(training.schedule, setting.pipeline, setting.num_micro_batches)
    _, stages = stages_of(trace, training, scheduled.places)
    return max(memory.total for memory in estimate.memories(stages, scheduled))


def _shares(
    training: Training, layers: Sequence[tuple[int, int]], held: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Return the share of each process in the operations, by the layers of stages it holds."""
    costs = [sum(training.forward.layers[begin:end]) for begin, end in layers]
    costs[0] += training.forward.ends[0]
    costs[-1] += training.forward.ends[1]
    return tuple(sum(costs[stage] for stage in of_rank) / sum(costs) for of_rank in held)


def _once(computing: Seconds, collectives: Mapping[str, float]) -> Seconds:
    """Return what collectives add to a step, which run beside one of its passes."""
    extra = beside(computing, collectives)
    exposed = {n: extra.sent.get(n, 0.0) - computing.sent.get(n, 0.0) for n in collectives}
    return Seconds(sent=exposed, hidden={n: extra.hidden.get(n, 0.0) for n in collectives})


@dataclass(frozen=True, eq=False)
class _Estimate:
    """The time and memory of stages, on the devices and with the choices of one setting."""

    trace: Trace
    training: Training
    setting: Setting
    cluster: Cluster
    _seconds: dict[Stage, tuple[Seconds, Seconds]] = field(default_factory=dict)

    def passes(self, stage: Stage) -> tuple[Seconds, Seconds]:
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

    def _pass(self, stage: Stage, way: str) -> Seconds:
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
        """Return the time in which FSDP gathers the weights of a part for a pass."""
        return self._gather_once(part) if self.setting.reshards else 0.0

    def _gather_once(self, part: Part) -> float:
        return sum(
            self.cluster.seconds(
                "gather", number * self.training.itemsize, *fsdp_over(self.setting.mesh, unit.axis)
            )
            for unit, number in part.parameters.items()
        )

    def step_passes(self, stage: Stage, number: int) -> Seconds:
        """Return the time of a step's passes of so many micro-batches, with what is sent once."""
        forward, backward = self.passes(stage)
        passes = forward.times(2 if self.training.counts_first and number > 1 else 1) + backward
        total = passes.times(number) + _once(backward.times(0.9), self._reduction(stage))
        if self.setting.reshards:
            return total
        gather = sum(self._gather_once(p) * p.num_distinct(count) for p, count in stage.parts)
        return total + _once(forward, {"shard gather": gather})

    def _reduction(self, stage: Stage) -> dict[str, float]:
        """Return the time of the reduction of gradients, once a step, by collective."""
        mesh, seconds = self.setting.mesh, defaultdict[str, float](float)
        tokens = math.prod(size for axis, size in mesh.grid().items() if axis.splits_tokens)
        for part, number in stage.parts:
            for unit, elements in part.trained.items():
                shards, stride = fsdp_over(mesh, unit.axis)
                size = part.num_distinct(number) * elements
                copies = tokens // (shards * borrowed(mesh, unit.axis))
                if shards > 1:
                    units = max(1, part.num_distinct(number))
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
        stages: Sequence[Stage],
        held: Sequence[Sequence[int]],
        scheduled: Scheduled,
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

    def _elements(self, stage: Stage, *, trained: bool = False) -> float:
        """Return how many elements of the weights of a stage a process holds."""
        total = 0.0
        for part, number in stage.parts:
            for unit, elements in (part.trained if trained else part.parameters).items():
                held = part.num_distinct(number) * elements
                total += held / fsdp_over(self.setting.mesh, unit.axis)[0]
        return total

    def update(self, stage: Stage) -> float:
        """Return the time of the optimizer for a stage."""
        moved = 4 * _OPTIMIZER_PASSES * self._elements(stage, trained=True)
        return moved / (self.cluster.device.bandwidth * self.cluster.device.moving)

    def memories(self, stages: Sequence[Stage], scheduled: Scheduled) -> tuple[Memory, ...]:
        """Return the bytes of each process at its peak."""
        return tuple(
            self._memory(stages, held, scheduled.peaks[rank], is_first=rank == 0)
            for rank, held in enumerate(scheduled.held)
        )

    def _memory(
        self,
        stages: Sequence[Stage],
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
        parts = [(p, p.num_distinct(n)) for stage in own for p, n in stage.parts]
        whole = sum(number * sum(part.trained.values()) for part, number in parts)
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
            allocator=self._held_besides(own, activations, temporary, gathered, waiting),
        )
        slack = _SLACK if kind == "cuda" else _HOLES
        freed = activations + temporary
        in_update = Memory(**lasting, gradients=late, allocator=slack * late, freed=freed)
        return max(in_pass, in_update, key=lambda memory: memory.total)

    def _held_besides(
        self,
        stages: Sequence[Stage],
        activations: float,
        temporary: float,
        gathered: float,
        waiting: float,
    ) -> float:
        """Return the bytes that the allocator holds in a pass beside tensors.

        Args:
          stages: of a process.
          activations: bytes kept from the forward to the backward pass.
          temporary: bytes of what else exists at the peak.
          gathered: bytes of weights and gradients that FSDP has gathered.
          waiting: bytes of gradients of earlier micro-batches.
        """
        freed = activations + temporary + gathered + waiting
        if self.cluster.device.kind == "cuda":
            return _SLACK * freed
        parts = [(part, number) for stage in stages for part, number in stage.parts]
        inside = min(temporary, self.trace.passing_in_blocks)
        # Compiled blocks keep less than is counted, by as much as their holes take.
        compiled = sum(number * part.kept for part, number in parts if part.is_compiled)
        holes = _HOLES * max(0.0, freed - inside - compiled) + _HOLES_INSIDE * inside
        # Gradients find the place of logits, or their own one of an earlier micro-batch.
        unplaced = sum(number * part.unplaced for part, number in parts)
        return holes + max(0.0, unplaced - (temporary - inside) - waiting)

    def _gathered(self, stages: Sequence[Stage]) -> float:
        """Return the bytes of weights and gradients that FSDP has gathered at a time."""
        itemsize = self.training.itemsize
        parts = [part for stage in stages for part, _ in stage.parts]
        largest = max([part.size for part in parts if part.layers], default=0)
        if self.setting.reshards:  # one layer that computes, and the next
            kept = 2 * largest + sum(part.size for part in parts if not part.layers)
        else:
            kept = sum(p.size * p.num_distinct(n) for stage in stages for p, n in stage.parts)
        # A layer's gradients, and those in float32 being sent; frozen weights have none.
        trained = max([sum(part.trained.values()) for part in parts if part.layers], default=0)
        return itemsize * kept + (itemsize + 4) * trained
