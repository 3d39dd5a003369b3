"""What the processes of a mesh send each other in a step: numbers of collectives, and bytes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fidgpt.parallel.pipeline import PIPELINE
from fidgpt.parallel.pipeline_schedule import Action
from fidgpt.parallel.sharding import APART, EXACT, REST
from fidgpt.plan.stages import Setting, Stage, Training, borrowed, fsdp_over, scheduled, stages_of
from fidgpt.plan.trace import Trace, Unit
from fidgpt.recording import Sent

_BUCKET = 25 * 2**20  # bytes that DistributedDataParallel sums at once


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
      layers: number of layers that have the unit.
      elements: elements in each.
      trained: trained elements in each.
    """

    stage: int | None = None
    layers: int = 1
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
                ahead = int(self.counts_first and part is not self.trace.parts[-1])
                for work, passes in ((part.forward, 1 + ahead), (part.backward, 1)):
                    each = layers * passes * self.number
                    sent.update({one: round(count * each) for one, count in work.sent.items()})
                summed.update({axis: layers * size for axis, size in part.summed.items()})
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
                    weights = units.setdefault(key, _Weights(stage, layers))
                    times = layers if is_rest else 1
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
                    sent[Sent("shard", "scatter", 4 * weights.trained)] += weights.layers
            if copies > 1 and weights.trained:
                size = 4 * weights.trained // shards
                sent[Sent("replicate", "reduce", size)] += weights.layers
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
            totals[unit.axis] += weights.layers * weights.trained
        for axis, elements in totals.items():
            if elements and self._copies(axis) > 1:
                is_wrapped = not axis and len(self.places) == 1
                size = elements * (self.training.itemsize if is_wrapped else 4)
                buckets = 1 if axis else -(-size // _BUCKET)
                sent[Sent("replicate", "reduce", size // buckets)] += buckets
        return sent
