"""Runs of two processes on two machines, which lose processes, memory, or a bit of a gradient."""

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import replayed
import torch.distributed.tensor  # noqa: F401 # or each fork imports it, as it looks for shards

from faults import harm
from faults.cases import (
    AMOUNTS,
    KILLED,
    LOOP,
    STEP,
    STEPS,
    Kinds,
    Known,
    RunCase,
    World,
    Wrong,
    kind,
    require_status,
    result_of,
)
from faults.harm import Place
from faults.processes import warm_up
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows

MOST_REDONE = 2  # steps: that of the failure, and one whose copy was being written
_MEMORY = "fidgpt.train.checkpoints.memory:MemoryCheckpoints"
WRITE, RECOVER = f"{_MEMORY}._write", f"{_MEMORY}.recover"
_CALLS = {**AMOUNTS["calls"], WRITE: 60}  # or changes of the disk; less than there are
_PARAMETERS = ("embedding.weight", "norm.weight", "blocks.1.mlp.up.weight")
FLIPS = "a bit flips"
REPLICAS = "replicas"
MESHES = {
    REPLICAS: [],
    "pipeline": ["fiddler:use_mesh(pipeline=2)", "set:micro_batch_size=1"],
    "experts": ["fiddler:use_moe(num_experts=4)", "fiddler:use_mesh(shard=2, expert=2)"],
}
Loss = Callable[["MachineCase"], None]


class MachineCase(RunCase):
    """A run of two processes in a directory of its own, each on a machine with its own memory."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments, num_processes=2)
        self.is_damaged = True  # steps are mostly in memory
        self.at_start = self.give_memory

    def give_memory(self) -> None:
        """Called first in each process, which is the only one on its machine."""
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ["MEMORY"] = str(self.memory(int(os.environ["RANK"])))

    def memory(self, machine: int) -> Path:
        """The folder that is the memory of a machine."""
        return self.folder / f"machine{machine}"

    def copies(self, step: int) -> list[Path]:
        """The checkpoints of a step in all memories."""
        return sorted(self.folder.glob(f"machine*/*/*/*/{manifest.name_of(step)}"))

    def newest(self) -> int:
        """The newest step on the disk and in memory."""
        found = self.folder.glob("machine*/*/*/*/step_*")
        steps = {int(path.name.removeprefix("step_")) for path in found}
        return max(steps | manifest.find(self.run).keys(), default=0)

    def redone(self) -> int:
        """The steps that the run has taken again."""
        return read_rows(self.run / "metrics.jsonl")[-1]["goodput/redone_steps"]


def _strike(case: MachineCase, function: str = STEP, *, units: Sequence[str] = ("calls",)) -> None:
    """One process of two is killed at a random moment, and the other ends then."""
    occurrence = 1 if function == LOOP else case.draw.randrange(4, STEPS)
    number = case.draw.randrange(_CALLS[function])
    place = Place(function, occurrence, case.draw.choice(units), number)
    require_status(case.start(place, harm.kill), KILLED)


def struck(
    case: MachineCase,
    lose: Loss,
    function: str = STEP,
    *units: str,
    most: int = MOST_REDONE,
    again: bool = False,
) -> None:
    """A process is killed, something is lost, and the run goes on.

    Args:
      case: the run.
      lose: what else is lost.
      function: in which the process is killed.
      units: of the moment.
      most: steps that may be taken again.
      again: whether a process is killed once more as the run looks for its steps.
    """
    _strike(case, function, units=units or ("calls",))
    lose(case)
    if again:
        place = Place(RECOVER, 1, "disk", case.draw.randrange(40))
        require_status(case.start(place, harm.kill), KILLED)
    case.finish()
    if case.redone() > most:
        raise Wrong(f"{case.redone()} steps were taken again")
    if left := [*case.folder.glob("machine*/*")]:
        raise Wrong(f"{left[0]} is left")


def nothing(case: MachineCase) -> None:
    """Nothing else is lost."""


def machine(case: MachineCase) -> None:
    """One machine is replaced."""
    shutil.rmtree(case.memory(case.draw.randrange(2)))


def both(case: MachineCase) -> None:
    """A file of the newest step is damaged wherever it is."""
    if not (places := case.copies(case.newest())):
        return
    name = case.draw.choice(sorted(path.name for path in places[0].iterdir()))
    hurt = case.draw.choice([harm.flip, harm.truncate, harm.remove])
    for place in places:
        if (place / name).exists():
            hurt(place / name, case.draw)


def all_of_it(case: MachineCase) -> None:
    """No machine has anything in memory."""
    for number in range(2):
        shutil.rmtree(case.memory(number), ignore_errors=True)


def flipped(case: MachineCase) -> None:
    """A bit of a gradient or weight flips on one process; it is named, and the run goes on."""
    step, rank = case.draw.randrange(2, STEPS), case.draw.randrange(2)
    name, bit = case.draw.choice(_PARAMETERS), case.draw.randrange(3, 12)
    harmful = case.draw.choice([replayed.flipped_in_gradient, replayed.flipped_in_weight])
    case.known = case.known._replace(
        arguments=[*case.known.arguments, "--config=fiddler:use_step_replay(every=1)"]
    )

    fault = harmful(step, rank=rank, name=name, bit=bit)

    def at_start() -> None:
        case.give_memory()
        fault.__enter__()

    case.at_start = at_start
    require_status(case.start(), 2)
    for words in (f"step {step} was computed twice", f"on process {rank} ", f": {name}"):
        if words not in (case.refused or ""):
            raise Wrong(f"{case.refused} does not name {words}")
    case.at_start = case.give_memory
    case.finish()


KINDS: Kinds = {
    "a process killed": kind(4, struck, nothing),
    "a process killed anywhere": kind(2, struck, nothing, LOOP, most=STEPS),
    "killed as a copy is written": kind(4, struck, nothing, WRITE, "calls", "disk"),
    "killed as the run is restored": kind(2, struck, nothing, again=True),
    "a machine lost": kind(4, struck, machine),
    "both copies damaged": kind(4, struck, both, most=MOST_REDONE + 1),
    "all memory lost": kind(2, struck, all_of_it, most=STEPS),
    FLIPS: kind(4, flipped),
}


class MachineWorld(World):
    """Makes cases of runs on two machines.

    Args:
      folder: empty; all lies in it.
      mesh: how the work is shared in all cases; drawn by default; bits flip in replicas.
    """

    kinds: Kinds = KINDS

    def __init__(self, folder: Path, mesh: str | None = None) -> None:
        super().__init__(folder, megabytes=16)
        self.has_small_disk = True  # no case needs one
        warm_up([*self.commands["plain"], f"--run_dir={folder / 'warm'}"])
        self._mesh = mesh
        self._known: dict[str, Known] = {}

    def _undisturbed(self, mesh: str) -> Known:
        """Run it on two machines, once."""
        if mesh not in self._known:
            memory = 'fiddler:use_memory_checkpoints(every=1, folder="$MEMORY", keep_last=2)'
            # One that dies while processes connect is missed after a tenth of the timeout.
            settings = ["set:checkpoints.every=None", "set:parallel.timeout=100"]
            changes = [*MESHES[mesh], *settings, memory]
            arguments = [*self.commands["plain"], *(f"--config={change}" for change in changes)]
            path = self.folder / f"undisturbed-{mesh}"
            first = MachineCase(Known(arguments, {}), path, random.Random(0))
            require_status(first.start(), 0)
            self._known[mesh] = Known(arguments, result_of(first.run))
        return self._known[mesh]

    def case(self, kind: str, number: int, draw: random.Random) -> MachineCase:
        # In replicas each process has every parameter.
        mesh = REPLICAS if kind == FLIPS else self._mesh or draw.choice(sorted(MESHES))
        return MachineCase(self._undisturbed(mesh), self.folder / f"case-{number}", draw)
