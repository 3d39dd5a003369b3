"""Runs on nodes that die, are taken away and come back: each node is a torchrun on this machine."""

import ctypes
import logging
import math
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from run_facts import reproducible
from torch._C._distributed_c10d import TCPStore

from faults.cases import Case, Kinds, Known, World, Wrong, kind, require_status
from faults.processes import PATIENCE, TRAIN, Process
from fidgpt import launch
from fidgpt.train import TrainStep
from fidgpt.train.run_directory import StopSignals
from fidgpt.train.trackers.trackers import read_rows

STEPS, BATCH_SIZE, MOST_NODES = 12, 7, 3  # 7 rows: no number of processes has equal shares
TOLERANCE = 1e-4  # relative, of sums in another order
REDONE = (
    2  # steps for each change of nodes: that of the failure, and one whose copy was being written
)
# Of a busy machine: each sign of life, each second, would make others repeat what they wrote.
RENDEZVOUS = "is_host=0,last_call_timeout=6,keep_alive_interval=4,keep_alive_max_attempt=3"
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl
IN_MEMORY = "shards, saved in memory"
PIPELINES, EXPERTS = "replicas of pipelines", "shards of experts"
PAIRS = (PIPELINES, EXPERTS)  # meshes that take two processes of each node
MESHES = {
    "replicas": [],
    "shards": ["fiddler:use_mesh(shard=-1)", "set:micro_batch_size=1"],
    "replicas of shards": ["fiddler:use_mesh(replicate=-1)", "fiddler:use_moe"],
    PIPELINES: ["fiddler:use_mesh(replicate=-1, pipeline=2)", "set:micro_batch_size=1"],
    EXPERTS: ["fiddler:use_mesh(shard=-1, expert=2)", "fiddler:use_moe(num_experts=4)"],
    IN_MEMORY: [
        "fiddler:use_mesh(shard=-1)",
        "set:micro_batch_size=1",
        'fiddler:use_memory_checkpoints(every=1, folder="$MEMORY", keep_last=2)',
        "set:checkpoints.every=None",
    ],
}
COMMON = [
    "fiddler:use_float32",
    f"set:num_steps={STEPS}",
    f"set:batch_size={BATCH_SIZE}",
    "set:checkpoints.every=3",
]
Action = Callable[["ElasticCase"], None]


def store() -> None:
    """Keep what nodes agree on at a port, as a machine does that no one takes away."""
    kept = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    signal.pause()
    del kept


def node() -> None:
    """Start processes as `fidgpt.launch` does, which end with this one: `FOLDER ARGUMENTS...`."""
    folder, *arguments = sys.argv[1:]
    _pausing(Path(folder))
    logging.disable()  # or torch shows tracebacks of processes that ended
    sys.argv = ["fidgpt.launch", *arguments]
    launch.run()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)


def _pausing(folder: Path) -> None:
    """Let steps wait for what is to happen in them, or before: from `STEP.due` to `STEP.done`."""
    launch, record, stopped = TrainStep.launch, StopSignals._record, []

    def paused(self: TrainStep, run: Any, state: Any, *batch: Any, **options: Any) -> Any:
        number = state.step + 1
        _end_with_parent()  # torch has it interrupted only
        with (folder / "worlds").open("a") as file:
            file.write(f"{number} {run.parallel.world_size}\n")
        for due in sorted(folder.glob("*.due")):
            while int(due.stem) <= number and not due.with_suffix(".done").exists() and not stopped:
                due.with_suffix(".reached").touch()
                time.sleep(0.01)
        return launch(self, run, state, *batch, **options)

    def recorded(self: StopSignals, number: int, frame: Any) -> None:
        stopped.append(number)
        record(self, number, frame)

    TrainStep.launch, StopSignals._record = paused, recorded


class ElasticCase(Case):
    """A run on several nodes.

    Args:
      num_nodes: with which it begins.
      per_node: processes of each of them.

    Attributes:
      loses_little: whether few steps may be taken again.
      nodes: those that are there, by their number.
      place: keeps what they agree on.
    """

    def __init__(self, *arguments: Any, num_nodes: int, per_node: int) -> None:
        super().__init__(*arguments)
        self._per_node = per_node
        self.events = self.folder / "events"
        self.events.mkdir()
        self.nodes: dict[int, Process] = {}
        self.loses_little = False
        self.begin(num_nodes)

    def begin(self, num_nodes: int) -> None:
        """Start so many nodes, which find each other at a new place."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = str(found.getsockname()[1])
        self.place = self.started(Process([self._port], output=self.output(), command=store))
        for _ in range(num_nodes):
            self.join()

    def join(self) -> None:
        """Start one more node; the number of one that left may come back."""
        number = min(set(range(1, MOST_NODES + 1)) - {*self.nodes})
        flags = [
            f"--nnodes=1:{MOST_NODES}",
            f"--nproc-per-node={self._per_node}",
            "--max-restarts=20",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-id={self._port}",
            f"--rdzv-conf={RENDEZVOUS}",
            f"--local-addr=127.0.0.{number}",
        ]
        command = [*self.known.arguments, f"--run_dir={self.run}", "--auto_resume"]
        environment = {"GLOO_SOCKET_IFNAME": "lo", "MEMORY": str(self.memory(number))}
        process = Process(
            [str(self.events), *flags, TRAIN, *command],
            output=self.output(),
            environment=environment,
            command=node,
        )
        self.nodes[number] = self.started(process)

    def memory(self, number: int) -> Path:
        """The folder that is the memory of a node."""
        return self.folder / f"memory{number}"

    def leave(self, number: int) -> None:
        """Signal a node, any of them: SIGKILL is its death, SIGTERM takes it away."""
        which = self.draw.choice(sorted(self.nodes))
        leaving = self.nodes.pop(which)
        os.kill(leaving.pid, number)
        require_status(self.end(leaving), 128 + number if number == signal.SIGTERM else -number)
        if self.draw.random() < 0.5:  # or it comes back with what it had
            shutil.rmtree(self.memory(which), ignore_errors=True)

    def happen(self, *actions: Action) -> None:
        """Let these happen one after the other, within steps.

        Raises:
          Wrong: the run does not get there.
        """
        steps = sorted(self.draw.sample(range(2, STEPS - 1), len(actions)))
        for step in steps:
            (self.events / f"{step:02d}.due").touch()
        for step, action in zip(steps, actions, strict=True):
            self.reach(step)
            action(self)
            (self.events / f"{step:02d}.done").touch()

    def reach(self, step: int) -> None:
        """Wait until all nodes are in a step, which waits for what is to happen.

        Raises:
          Wrong: the run does not get there.
        """

        def is_there() -> bool:
            reached = (self.events / f"{step:02d}.reached").exists()
            return reached and self.is_complete()

        if not self.until(is_there):
            raise Wrong(f"step {step} is not reached:\n{self._outputs()}")

    def is_complete(self) -> bool:
        """Whether all processes of all nodes take steps."""
        return self.worlds()[-1] == self._per_node * len(self.nodes)

    def until(self, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so, or all nodes have ended; return whether it is."""
        deadline = time.monotonic() + MOST_NODES * PATIENCE  # to import torch takes long here
        while not (so := is_so()) and time.monotonic() < deadline:
            if all(node.has_ended() for node in self.nodes.values()):
                return is_so()
            time.sleep(0.02)
        return so

    def finish(self) -> None:
        """Wait for the end.

        Raises:
          Wrong: a node that stayed does not end well, or something differs by more than rounding.
        """
        for one in self.nodes.values():
            ended = self.end(one)
            if "other nodes have ended the run" not in ended.output:  # it came when all was over
                require_status(ended, 0)
        self.end_all()  # the store
        redone = read_rows(self.run / "metrics.jsonl")[-1]["goodput/redone_steps"]
        if self.loses_little and redone > REDONE * len(self.worlds()):
            raise Wrong(f"{redone} steps were taken again, by {self.worlds()} processes")
        differ = list(differences(rows_of(self.run), self.known.result))
        if differ:
            raise Wrong("; ".join(differ[:5]))

    def worlds(self) -> list[int]:
        """The numbers of processes that took steps, in order."""
        lines = (self.events / "worlds").read_text().splitlines()
        sizes = [int(line.split()[1]) for line in lines]
        return [size for before, size in zip([0, *sizes], sizes, strict=False) if size != before]

    def _outputs(self) -> str:
        files = sorted(self.folder.glob("output-*"))
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)


def rows_of(run: Path) -> dict[str, Any]:
    """Return the rows of a run, by step, without what is of the processes that share experts."""
    rows = [reproducible(row) for row in read_rows(run / "metrics.jsonl")]
    return {
        str(row["step"]): {key: value for key, value in row.items() if "rank_load" not in key}
        for row in rows
    }


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Return where two values differ by more than rounding."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if [*found] != [*expected]:
            return [f"{where} has {[*found]}, not {[*expected]}"]
        each = (differences(found[key], expected[key], f"{where} {key}") for key in expected)
        return [line for lines in each for line in lines]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = zip(found, expected, strict=True)
        return [line for pair in pairs for line in differences(*pair, where)]
    if isinstance(expected, float) and isinstance(found, float):
        is_same = math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    else:
        is_same = found == expected
    return [] if is_same else [f"{where} is {found}, not {expected}"]


def dies(case: ElasticCase) -> None:
    """A node and all that runs on it is gone, at some moment of a step."""
    time.sleep(case.draw.uniform(0, 0.03))
    case.leave(signal.SIGKILL)


def is_taken_away(case: ElasticCase) -> None:
    """A scheduler ends a node with notice."""
    case.leave(signal.SIGTERM)


def joins(case: ElasticCase) -> None:
    """A node comes; the step ends when all others know."""
    case.join()
    case.until(case.is_complete)


def changed(case: ElasticCase, *actions: Action) -> None:
    """Nodes leave and join within steps, and the run has other numbers of processes."""
    case.loses_little = any("use_memory_checkpoints" in one for one in case.known.arguments)
    case.happen(*actions)
    if not case.until(lambda: len(case.worlds()) > len(actions)):
        raise Wrong(f"{case.worlds()} processes took steps, and {len(case.nodes)} are left")


def requeued(case: ElasticCase) -> None:
    """All nodes get a notice, as Slurm's --signal; the command is started on fewer of them."""
    (step,) = case.draw.sample(range(2, STEPS), 1)
    (case.events / f"{step:02d}.due").touch()
    case.reach(step)
    for one in case.nodes.values():
        os.kill(one.pid, signal.SIGUSR1)
    for one in case.nodes.values():
        require_status(case.end(one), 128 + signal.SIGUSR1)
    (case.events / f"{step:02d}.done").touch()
    num_nodes = len(case.nodes)
    case.nodes.clear()
    case.begin(num_nodes - 1)


def place_lost(case: ElasticCase) -> None:
    """What nodes agree on is gone with its machine; all end, and the command is started again."""

    def lose(case: ElasticCase) -> None:
        os.kill(case.place.pid, signal.SIGKILL)
        case.until(lambda: any(node.has_ended() for node in case.nodes.values()))

    case.happen(lose)
    case.end(case.place)
    for one in case.nodes.values():
        require_status(case.end(one), 1, output="cannot meet at --rdzv-endpoint")
    num_nodes = len(case.nodes)
    case.nodes.clear()
    case.begin(num_nodes)


KINDS: Kinds = {
    "a node dies": kind(3, changed, dies),
    "a node is taken away": kind(2, changed, is_taken_away),
    "a node joins": kind(3, changed, joins),
    "a node dies and comes back": kind(3, changed, dies, joins),
    "two nodes die": kind(1, changed, dies, dies),
    "the place where nodes meet is lost": kind(1, place_lost),
    "returned to the queue, for fewer nodes": kind(2, requeued),
}


class ElasticWorld(World):
    """Makes cases of runs on nodes that come and go.

    Args:
      folder: empty; all lies in it.
      mesh: how the work is shared in all cases; drawn by default.
    """

    kinds: Kinds = KINDS

    def __init__(self, folder: Path, mesh: str | None = None) -> None:
        super().__init__(folder, megabytes=1)
        self._mesh = mesh
        self._known: dict[str, Known] = {}

    def _undisturbed(self, mesh: str) -> Known:
        """Run it on one process, once."""
        if mesh not in self._known:
            changes = [*COMMON, *MESHES[mesh]]
            arguments = [*self.commands["plain"], *(f"--config={one}" for one in changes)]
            alone = [one for one in arguments if mesh not in PAIRS or "use_mesh" not in one]
            path = self.folder / "undisturbed" / mesh.replace(" ", "-")
            path.mkdir(parents=True)
            process = Process(
                [*alone, f"--run_dir={path}/run"],
                output=path / "output",
                environment={"MEMORY": f"{path}/memory"},
            )
            require_status(process.end(), 0)
            self._known[mesh] = Known(arguments, rows_of(path / "run"))
        return self._known[mesh]

    def case(self, kind: str, number: int, draw: random.Random) -> ElasticCase:
        mesh = self._mesh or draw.choice(sorted(MESHES))
        return ElasticCase(
            self._undisturbed(mesh),
            self.folder / f"case-{number}",
            draw,
            num_nodes=3 if kind == "two nodes die" else 2,
            per_node=2 if mesh in PAIRS else 1,
        )
