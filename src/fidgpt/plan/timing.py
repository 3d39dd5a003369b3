"""Seconds of an optimizer step, by what takes them, from the work of its parts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from fidgpt.parallel.axes import MeshSizes
from fidgpt.parallel.pipeline_schedule import Action, Actions
from fidgpt.plan.hardware import Cluster, Device
from fidgpt.recording import Amounts, Product, Work

__all__ = ["Seconds", "Simulation", "ordered", "simulate"]

# Shares of the bytes and launches of an eager block that remain in a compiled one: chains of small
# operations become one kernel. Fitted to torchtitan's pairs of runs with and without compilation.
COMPILED_MOVES, COMPILED_LAUNCHES = 0.3, 0.3
# Of the shorter of a computation and a collective beside it, the time by which they delay each
# other: both use the device's memory, and some of its processors.
INTERFERENCE = 0.12


@dataclass
class Seconds(Amounts):
    """Seconds by kind.

    Attributes:
      products: matrix products.
      attention: scores and weighted values.
      moving: all other operations, which memory bounds, or the time to launch them.
      sent: collectives that delay the next part, by name, such as `tensor gather`.
      hidden: collectives that run during computation, by the same names.
    """

    products: float = 0.0
    attention: float = 0.0
    moving: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)

    @property
    def computing(self) -> float:
        """Time of everything but collectives."""
        return self.products + self.attention + self.moving

    @property
    def total(self) -> float:
        """Time that passes."""
        return self.computing + sum(self.sent.values())


def product_seconds(device: Device, product: Product, dtype: str) -> float:
    """Return the time of a product; small ones do not fill a device, thin ones read more."""
    if not product.flops:  # with the rows of an expert that gets none
        return 0.0
    filled = 1.0
    for size in (product.m * product.batch**0.5, product.k, product.n * product.batch**0.5):
        filled *= size / (size + device.half_size)
    computing = product.flops / (device.peak(dtype) * device.products * filled)
    return max(computing, product.bytes / (device.bandwidth * device.moving))


@lru_cache(maxsize=4096)
def stride_of(mesh: MeshSizes, axis_name: str) -> tuple[int, int]:
    """Return the size of an axis, and the stride between the ranks of neighbors on it."""
    axis = next(axis for axis in mesh.axes() if axis.name == axis_name)
    grid = mesh.grid(axis)
    stride = 1
    for other, size in reversed([*grid.items()]):
        if other is axis:
            return size, stride
        stride *= size
    return 1, 1


def compute_seconds(work: Work, device: Device, dtype: str, *, is_compiled: bool) -> Seconds:
    """Return the time of what a device computes by itself, without collectives."""
    products = sum(
        product_seconds(device, product, dtype if product.itemsize < 4 else "float32") * count
        for product, count in work.products.items()
    )
    attention = 0.0
    for head_dim, flops in work.attention.items():
        share = device.attention * min(1.0, (head_dim / 128) ** 0.35)
        attention += flops / (device.peak(dtype) * share)
    moves, launches = work.moved, work.launches
    if is_compiled:
        moves, launches = moves * COMPILED_MOVES, launches * COMPILED_LAUNCHES
    moving = moves / (device.bandwidth * device.moving)
    # A program that launches operations one by one is late if they are shorter than that takes.
    late = launches * device.launch - (products + attention + moving)
    return Seconds(products, attention, moving + max(0.0, late))


def sent_seconds(work: Work, cluster: Cluster, mesh: MeshSizes) -> dict[str, float]:
    """Return the time of collectives of a part, by axis and kind."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for sent, count in work.sent.items():
        size, stride = stride_of(mesh, sent.axis)
        name = f"{sent.axis} {sent.kind}"
        seconds[name] += count * cluster.seconds(sent.kind, sent.bytes, size, stride)
    return dict(seconds)


def beside(computing: Seconds, collectives: Mapping[str, float]) -> Seconds:
    """Return the time of a part beside which collectives run, that the next part waits for."""
    sending = sum(collectives.values())
    if not sending:
        return computing
    exposed = max(0.0, sending - computing.total) + INTERFERENCE * min(sending, computing.total)
    share = exposed / sending
    return computing + Seconds(
        sent={name: seconds * share for name, seconds in collectives.items()},
        hidden={name: seconds * max(0.0, 1 - share) for name, seconds in collectives.items()},
    )


class Step(NamedTuple):
    """An action of a process, by numbers.

    Attributes:
      rank: of the process.
      action: what it does.
      needed: the indices of the steps before it, and whether another process sends their results.
    """

    rank: int
    action: Action
    needed: tuple[tuple[int, bool], ...]


def ordered(actions: Actions) -> list[Step]:
    """Return the actions of all processes, each after what it needs."""
    where = {action.stage: rank for rank, of_rank in enumerate(actions) for action in of_rank}
    places: dict[tuple[int, str, int], int] = {}
    nexts, todo, steps = [0] * len(actions), [*range(len(actions))], list[Step]()
    while todo:
        rank = todo.pop()
        while nexts[rank] < len(actions[rank]):
            action = actions[rank][nexts[rank]]
            stage, kind, number = action
            needed = [(stage, {"W": "B"}.get(kind, "F"), number)] if kind != "F" else []
            if kind == "F" and stage:
                needed = [(stage - 1, "F", number)]
            elif kind in "BI" and stage + 1 < len(where):
                needed.append((stage + 1, "B", number))
            if not all(key in places for key in needed):
                break
            nexts[rank] += 1
            pairs = tuple((places[key], where[key[0]] != rank) for key in needed)
            steps.append(Step(rank, action, pairs))
            if kind != "W":
                places[stage, "F" if kind == "F" else "B", number] = len(steps) - 1
                other = where.get(stage + 1 if kind == "F" else stage - 1)
                if other is not None and other != rank:
                    todo.append(other)
    return steps


@dataclass(frozen=True)
class Simulation:
    """What happens on the processes of a pipeline in a step.

    Attributes:
      seconds: until the last one is done.
      busy: of each process.
      steps: what they do.
      spans: from when to when they do it.
    """

    seconds: float
    busy: tuple[float, ...]
    steps: Sequence[Step] = ()
    spans: Sequence[tuple[float, float]] = ()

    def bars(self) -> list[list[tuple[float, float, str]]]:
        """Return what each process does from when to when, as (begin, end, action)."""
        bars: list[list[tuple[float, float, str]]] = [[] for _ in self.busy]
        for step, (begin, end) in zip(self.steps, self.spans, strict=True):
            stage, kind, number = step.action
            bars[step.rank].append((begin, end, f"{stage}{kind}{number}"))
        return bars


def simulate(
    steps: Sequence[Step], forward: Sequence[float], backward: Sequence[float], *, sending: float
) -> Simulation:
    """Let each process take its actions in order, as soon as what they need is there.

    Args:
      steps: of all processes, in an order of `ordered`.
      forward: seconds of each stage.
      backward: the same; a half each for those actions that are one part of it.
      sending: seconds until what a stage computed is at the next process.
    """
    ranks = 1 + max(step.rank for step in steps)
    clocks, busy = [0.0] * ranks, [0.0] * ranks
    half = [seconds / 2 for seconds in backward]
    taken = {"F": forward, "B": backward, "I": half, "W": half}
    spans: list[tuple[float, float]] = []
    for rank, (stage, kind, _), needed in steps:
        begin = clocks[rank]
        for index, is_sent in needed:
            there = spans[index][1] + (sending if is_sent else 0.0)
            if there > begin:
                begin = there
        seconds = taken[kind][stage]
        busy[rank] += seconds
        clocks[rank] = begin + seconds
        spans.append((begin, begin + seconds))
    return Simulation(max(clocks), tuple(busy), steps, spans)
