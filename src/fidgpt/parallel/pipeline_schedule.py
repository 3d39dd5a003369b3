"""Schedules of a pipeline: what each process computes and sends, in which order, and its bubble.

A schedule is a list of actions for each process. `F` computes the forward pass of a stage on a
micro-batch, `B` its backward pass, `I` the part of the backward pass that the stage before waits
for, and `W` the rest of it, the gradients of weights. So `2F0` is the forward pass of stage 2 on
micro-batch 0. What is sent follows from these.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fidgpt.ranges import require_size

__all__ = ["Action", "ActionList", "Schedule", "Timeline", "TorchSchedule", "fitting"]

_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "breadth_first": "LoopedBFS",
    "zero_bubble": "InterleavedZeroBubble",
    "zero_bubble_v": "ZBVZeroBubble",
    "dual_pipe_v": "DualPipeV",
}
_SINGLE = ("gpipe", "1f1b")  # have one stage on each process
_V_SHAPED = ("zero_bubble_v", "dual_pipe_v")  # have two
_MOST_MISSING = 256  # micro-batches that are tried beyond those that there are
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """A part of a schedule.

    Attributes:
      stage: its number, in the order of the layers.
      kind: F, B, I or W; of a `Timeline` also SEND_F, RECEIVE_F, SEND_B and RECEIVE_B, which send
        the output of a stage, or receive its input, and the same of gradients.
      micro_batch: its number.
    """

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Actions = Sequence[Sequence[Action]]  # of each process


@runtime_checkable
class Schedule(Protocol):
    """Orders the work of a pipeline."""

    def __call__(self, num_ranks: int, num_micro_batches: int, /) -> Actions:
        """Return the actions F, B, I and W of each process.

        Raises:
          ValueError: there is no such schedule for so many processes and micro-batches.
        """
        ...

    def num_stages(self, num_ranks: int, /) -> int:
        """Return the number of stages, over all processes."""
        ...


class TorchSchedule:
    """A schedule of `torch.distributed.pipelining`.

    `gpipe` (Huang et al., 2018, arXiv:1811.06965) and `1f1b` have one stage on each process;
    `interleaved` (Narayanan et al., 2021, arXiv:2104.04473), `breadth_first` (Lamy-Poirier, 2022,
    arXiv:2211.05953) and `zero_bubble` (Qi et al., 2023, arXiv:2401.10241) several; `zero_bubble_v`
    (section 6 there) and `dual_pipe_v` two: the first process has the first and the last stage.

    Args:
      name: one of these.
      stages_per_rank: None for 1 or 2, the least that the schedule takes.

    Raises:
      ValueError: there is no such schedule, or it has another number of stages on each process.
    """

    def __init__(self, name: str = "1f1b", *, stages_per_rank: int | None = None) -> None:
        name = str(name)
        if name not in _NAMES:
            raise ValueError(f"schedule={name!r} must be one of {', '.join(_NAMES)}.")
        require_size(stages_per_rank=stages_per_rank)
        least = 1 if name in _SINGLE else 2
        most = least if name in (*_SINGLE, *_V_SHAPED) else None
        self.name = name
        self.stages_per_rank = stages_per_rank or least
        if self.stages_per_rank < least or (most and self.stages_per_rank > most):
            takes = f"takes {least}" if most else f"takes {least} or more"
            raise ValueError(
                f"{stages_per_rank=}: the schedule {name} {takes} on each process; "
                "interleaved, breadth_first and zero_bubble take several."
            )

    def __call__(self, num_ranks: int, num_micro_batches: int) -> Actions:
        """Return the actions of each process; ValueError if torch has no such schedule."""
        return _of_torch(self.name, num_ranks, num_micro_batches, self.stages_per_rank)

    def num_stages(self, num_ranks: int) -> int:
        """Return the number of stages, over all processes."""
        return num_ranks * self.stages_per_rank


@cache
def _of_torch(name: str, num_ranks: int, num_micro_batches: int, stages_per_rank: int) -> Actions:
    if name == "1f1b":
        return [_alternating(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # late: slow

    stages = None if name in _SINGLE else stages_per_rank
    ops: Any = get_schedule_ops(_NAMES[name], num_ranks, num_micro_batches, stages)
    return [[*_flat(rank)] for rank in ops]


def _alternating(rank: int, num_ranks: int, num_micro_batches: int) -> list[Action]:
    """Return the actions of a process in `1f1b`; torch 2.13 lists them wrong for the last one."""
    ahead = num_ranks - 1 - rank
    if num_micro_batches < num_ranks:
        raise ValueError(f"{num_micro_batches=} must be at least {num_ranks=}.")
    forward = [Action(rank, "F", number) for number in range(num_micro_batches)]
    backward = [Action(rank, "B", number) for number in range(num_micro_batches)]
    steady = zip(forward[ahead:], backward, strict=False)
    alternating = [action for pair in steady for action in pair]
    return [*forward[:ahead], *alternating, *backward[num_micro_batches - ahead :]]


def _flat(ops: Iterable[Any]) -> Iterable[Action]:
    """Yield the computations among torch's actions, some of which hold others."""
    for op in ops:
        if op is not None and op.sub_actions:
            yield from _flat(op.sub_actions)
        elif op is not None and op.computation_type.value in ("F", "B", "I", "W"):
            yield Action(op.stage_index, op.computation_type.value, op.microbatch_index)


class ActionList:
    """A schedule of one's own, as a text for each process: `["0F0 0F1 0B0 0B1", ...]`.

    It is for one number of micro-batches. A stage is on the process that has its actions.

    Args:
      ranks: the actions of each process, as in `Action`, separated by spaces.

    Raises:
      ValueError: a word is no action.
    """

    def __init__(self, ranks: Sequence[str]) -> None:
        words = [rank.split() for rank in ranks]
        wrong = [word for rank in words for word in rank if not _ACTION.fullmatch(word)]
        if wrong or not any(words):
            raise ValueError(
                f"{ranks=} must list actions such as 0F0, a stage, F, B, I or W, and a "
                f"micro-batch; {wrong[:1] or 'none'} is none."
            )
        self.ranks = [
            [
                Action(int(stage), kind, int(number))
                for stage, kind, number in _ACTION.findall(" ".join(rank))
            ]
            for rank in words
        ]

    def __call__(self, num_ranks: int, num_micro_batches: int) -> Actions:
        """Return the actions of each process."""
        own = 1 + max(action.micro_batch for rank in self.ranks for action in rank)
        if (num_ranks, num_micro_batches) != (len(self.ranks), own):
            raise ValueError(
                f"the list of actions is for {len(self.ranks)} processes and {own} micro-batches, "
                f"not for {num_ranks} and {num_micro_batches}."
            )
        return self.ranks

    def num_stages(self, num_ranks: int) -> int:
        """Return the number of stages, over all processes."""
        return 1 + max(action.stage for rank in self.ranks for action in rank)


def fitting(schedule: Schedule, num_ranks: int, num_micro_batches: int) -> int:
    """Return how many micro-batches to compute, with the idle ones that fill up a schedule.

    Args:
      schedule: of the pipeline.
      num_ranks: processes of the pipeline.
      num_micro_batches: number of micro-batches that there are.

    Raises:
      ValueError: the schedule needs more of them.
    """
    tried = range(num_micro_batches, num_micro_batches + _MOST_MISSING)
    number = next((n for n in tried if accepts(schedule, num_ranks, n)), None)
    fewer = any(accepts(schedule, num_ranks, n) for n in range(1, num_micro_batches + 1))
    if fewer and number is not None:
        return number
    name = getattr(schedule, "name", "of its own")
    needed = "another number" if number is None else f"at least {number}"
    raise ValueError(
        f"{num_micro_batches=} of a step for each pipeline, and the schedule {name} over "
        f"{num_ranks} processes needs {needed}: lower micro_batch_size or raise batch_size."
    )


def accepts(schedule: Schedule, num_ranks: int, num_micro_batches: int) -> bool:
    """Return whether there is such a schedule."""
    try:
        schedule(num_ranks, num_micro_batches)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Timeline:
    """What happens when every process computes what it can, and nothing takes time to send.

    Attributes:
      actions: of each process, with those that send and receive; all processes of a pair list these
        in one order.
      bubble: the share of the time of all processes in which they wait.
    """

    actions: Actions
    bubble: float


def timeline(actions: Actions, costs: Sequence[float]) -> Timeline:
    """Return what a schedule means.

    Args:
      actions: of each process, F, B, I and W.
      costs: of the forward pass of each stage; the backward pass costs twice as much.

    Raises:
      ValueError: a stage has no place or two, an action is missing or twice there, or processes
        wait for each other.
    """
    places = places_of(actions)
    _require_all(actions, len(costs))
    ends: dict[tuple[int, str, int], float] = {}
    clocks, busy, nexts = [0.0] * len(actions), [0.0] * len(actions), [0] * len(actions)
    done: list[list[Action]] = [[] for _ in actions]
    while True:
        starts = {
            rank: max([clocks[rank], *needed])
            for rank, own in enumerate(actions)
            if nexts[rank] < len(own)
            and (needed := _needed(own[nexts[rank]], ends, len(costs))) is not None
        }
        if not starts:
            break
        rank = min(starts, key=lambda candidate: (starts[candidate], candidate))
        action = actions[rank][nexts[rank]]
        stage, kind, number = action
        seconds = costs[stage] * (2 if kind == "B" else 1)
        clocks[rank], nexts[rank] = starts[rank] + seconds, nexts[rank] + 1
        busy[rank] += seconds
        done[rank].append(action)
        if kind == "W":
            continue
        direction = "F" if kind == "F" else "B"
        ends[stage, direction, number] = clocks[rank]
        to = stage + 1 if kind == "F" else stage - 1
        if 0 <= to < len(costs) and places[to] != rank:
            done[rank].append(Action(stage, f"SEND_{direction}", number))
            done[places[to]].append(Action(to, f"RECEIVE_{direction}", number))
    waiting = [str(own[n]) for own, n in zip(actions, nexts, strict=True) if n < len(own)]
    if waiting:
        raise ValueError(f"the schedule waits for itself: {', '.join(waiting)} cannot begin.")
    whole = max(clocks) * len(actions)
    return Timeline(done, 1 - sum(busy) / whole)


def _needed(
    action: Action, ends: dict[tuple[int, str, int], float], num_stages: int
) -> list[float] | None:
    """Return when each thing that an action needs is there; None if something is not."""
    stage, kind, number = action
    needed = []
    if kind == "F" and stage:
        needed.append((stage - 1, "F", number))
    if kind in "BI":
        needed.append((stage, "F", number))
        if stage + 1 < num_stages:
            needed.append((stage + 1, "B", number))
    if kind == "W":
        needed.append((stage, "B", number))
    return [ends[key] for key in needed] if all(key in ends for key in needed) else None


def places_of(actions: Actions) -> list[int]:
    """Return the process that has each stage.

    Raises:
      ValueError: a stage is on no process, or on several.
    """
    places: dict[int, set[int]] = {}
    for rank, own in enumerate(actions):
        for action in own:
            places.setdefault(action.stage, set()).add(rank)
    wrong = [s for s in range(1 + max(places)) if len(places.get(s, ())) != 1]
    if wrong:
        raise ValueError(f"stage {wrong[0]} must have all of its actions on one process.")
    return [places[stage].pop() for stage in sorted(places)]


def _require_all(actions: Actions, num_stages: int) -> None:
    """Raise ValueError unless each stage computes each micro-batch forward and backward, once."""
    listed = [action for own in actions for action in own]
    numbers = {action.micro_batch for action in listed}
    kinds: dict[tuple[int, int], str] = {}
    for stage, kind, number in listed:
        kinds[stage, number] = kinds.get((stage, number), "") + kind
    for stage in range(num_stages):
        for number in sorted(numbers):
            if (own := kinds.get((stage, number), "no action")) not in ("FB", "FIW"):
                raise ValueError(
                    f"the schedule has {own} for micro-batch {number} of stage {stage}: each needs "
                    "F and then B, or F, I and W."
                )


def most_kept(actions: Sequence[Action]) -> dict[int, int]:
    """Return the most micro-batches of each stage whose activations are kept at one time."""
    kept: dict[int, int] = {}
    most: dict[int, int] = {}
    for stage, kind, _ in actions:
        kept[stage] = kept.get(stage, 0) + {"F": 1, "I": 0}.get(kind, -1)
        if sum(kept.values()) > sum(most.values()):
            most = dict(kept)
    return most
