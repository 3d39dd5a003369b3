"""Disturbed sweeps on Ray with a head and two nodes, and on Slurm with one node."""

import atexit
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults import cases, mixed, sweeps, toy
from faults.cases import kind
from faults.mixed import SLURM_HERE
from faults.processes import Spawned
from tests.sweep.slurm_here import NoSlurmError, SlurmHere

NUM_REAL = 3  # points that are trained; toys stand in for the others
_JOBS = 4
_PATIENCE = 240.0  # seconds for a case, on a machine that may be busy
_STATUSES = (0, 1, 130, cases.KILLED, -signal.SIGTERM)
_POLL = 0.2
_TOY_STEPS = list(range(1, toy.NUM_STEPS + 1))


def refuse_other(
    directory: Path,
    lines: Sequence[sweeps.Trained],
    expected: Mapping[str, Any],
    *,
    real: Collection[str],
) -> None:
    """Raises Wrong where a sweep differs from the undisturbed one, or did anything twice.

    Args:
      directory: of the sweep.
      lines: of the journal.
      expected: the undisturbed sweep, whose points were all trained.
      real: names of those that were trained here too.
    """
    wanted = {
        name: row if name in real else row | {"metrics": toy.LAST}
        for name, row in expected["table.jsonl"].items()
    }
    cases.refuse_difference(sweeps.table_of(directory), wanted, "table.jsonl")
    names = [row["name"] for row in sweeps.sheet_of(directory)]
    cases.refuse_difference(names, expected["order"]["results.csv"], "results.csv")
    for name in wanted:
        if name in real:
            cases.refuse_difference(cases.result_of(directory / name), expected["runs"][name], name)
            continue
        rows = (directory / name / "metrics.jsonl").read_text().splitlines()
        found = {
            "rows": [json.loads(row)["step"] for row in rows],
            "saved": [
                int(one.what) for one in lines if one.point == name and one.what != sweeps.DONE
            ],
            "done.json": json.loads((directory / name / "done.json").read_text()),
        }
        toys = {"rows": _TOY_STEPS, "saved": _TOY_STEPS, "done.json": toy.LAST}
        cases.refuse_difference(found, toys, name)
    sweeps.refuse_second_training(lines, lost=set())


class ClusterCase(cases.Case):
    """A sweep in a directory of its own.

    Args:
      known: the sweep, as it ended undisturbed on this machine.
      cluster: where its points run.
      folder: where all of it lies.
      draw: makes all random choices.

    Attributes:
      journal: what the toys did.
      real: names of the points that are trained.
    """

    def __init__(
        self,
        known: cases.Known,
        cluster: "RayHere | SlurmCluster",
        folder: Path,
        draw: random.Random,
    ) -> None:
        super().__init__(known, folder, draw)
        self.cluster = cluster
        self.journal = sweeps.Journal(folder / "journal")
        self.real = draw.sample(sorted(known.result["runs"]), NUM_REAL)
        self._deadline = time.monotonic() + _PATIENCE

    def start(self) -> None:
        """Gives the command, for the first time or again."""
        self.started(
            Spawned(
                *("-m", mixed.__name__),
                *(str(self.journal.path), ",".join(self.real), *self.known.arguments),
                *(f"--run_dir={self.run}", f"--runner={self.cluster.runner}"),
                *(f"--jobs={_JOBS}", f"--retries={self.draw.choice([0, 1])}"),
                output=self.output(),
                environment=self.cluster.environment,
            )
        )

    def wait(self, most: int = 25) -> None:
        """Let the sweep continue until a random moment; start the command again if it has ended.

        Args:
          most: so many further steps of toys.
        """
        if not self._runs():
            if self._alive:
                self.end_driver()
            self.start()
        until = len(self.journal.lines()) + self.draw.randint(1, most)
        self._wait_until(lambda: len(self.journal.lines()) >= until or not self._runs())
        time.sleep(self.draw.uniform(0, 0.5))

    def signal_driver(self, number: int) -> None:
        """Sends the driver a signal, and waits for its end."""
        os.kill(self._alive[0].pid, number)
        self.end_driver()

    def end_driver(self) -> int:
        """Waits for the end of the driver; returns its status.

        Raises:
          Wrong: it does not end, or not as it may.
        """
        self._wait_until(lambda: not self._runs())
        return self.end(self._alive[0], *_STATUSES).status

    def finish(self) -> None:
        """The same, with the command repeated until all is done; then once more.

        Raises:
          Wrong: something is lost, was made twice, differs, or runs on.
        """
        self.wait()
        while self.end_driver():
            self.start()
        self._wait_until(lambda: not self.processes() and self.cluster.is_idle())
        lines = self.journal.lines()
        refuse_other(self.run, lines, self.known.result, real=self.real)
        self.start()
        if (status := self.end_driver()) or self.journal.lines() != lines:
            raise cases.Wrong(f"a sweep that is done trains, or ends with status {status}")

    def processes(self) -> dict[int, list[str]]:
        """The arguments of each process that has to do with this sweep, but this one."""
        pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        lines = {pid: _command_line(pid).decode(errors="replace") for pid in pids}
        found = {pid: line.split("\0") for pid, line in lines.items() if str(self.folder) in line}
        return {pid: words for pid, words in found.items() if pid != os.getpid()}

    def points(self) -> list[int]:
        """The processes that train, or stand in for one that does."""
        trains = [[toy.__file__], ["-m", "fidgpt.cli.train"]]
        return [
            pid
            for pid, words in self.processes().items()
            if any(words[1 : 1 + len(one)] == one for one in trains)
        ]

    def end_all(self) -> None:
        """Kills what still runs of a case that went wrong."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def _runs(self) -> bool:
        return any(not driver.has_ended() for driver in self._alive)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.cluster.hurry()
            if time.monotonic() > self._deadline:
                raise cases.Wrong(f"not done in {_PATIENCE:g} s; left are {self.processes()}")
            time.sleep(_POLL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


_STEPS = 80  # of toys, somewhat more than a sweep has: it may end before all strikes have come
ClusterStrike = Callable[[ClusterCase], None]


def struck(case: ClusterCase, *drawn: ClusterStrike, times: Sequence[int]) -> None:
    """So many of several strikes, each at a random moment."""
    num_strikes = case.draw.choice(times)
    for _ in range(num_strikes):
        case.wait(_STEPS // num_strikes)
        case.draw.choice(drawn)(case)


def driver_signalled(*numbers: int) -> ClusterStrike:
    """One of some signals to the driver, which ends."""
    return lambda case: case.signal_driver(case.draw.choice(numbers))


def point_killed(case: ClusterCase) -> None:
    """SIGKILL of a process that trains, or of a toy."""
    kill_one(case, case.points())


def kill_one(case: ClusterCase, found: Sequence[int]) -> None:
    """SIGKILL of one of some processes, unless it has just ended."""
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(case.draw.choice(found), signal.SIGKILL)


_NODE = {"num_cpus": 3, "object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
_SOON = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 500}


class RayHere:
    """A cluster of Ray, until this process ends."""

    runner = "ray"

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            from ray import cluster_utils
        except ImportError:
            sys.exit("Skipped: Ray is not installed: pip install 'fidgpt[ray]'")
        head = {**_NODE, "num_cpus": 0, "_system_config": _SOON}
        self._cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        atexit.register(self._cluster.shutdown)
        self._nodes = [self._cluster.add_node(**_NODE) for _ in range(2)]
        self.environment = {"RAY_ADDRESS": str(self._cluster.address)}

    def hurry(self) -> None:
        """Does nothing: no worker waits for long."""

    def is_idle(self) -> bool:
        """Whether no worker holds a place."""
        return not self._places()

    def kill_node(self, case: ClusterCase) -> None:
        """SIGKILL of one node's processes; another node comes in its place."""
        node = self._nodes.pop(case.draw.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(**_NODE))

    def kill_worker(self, case: ClusterCase) -> None:
        """SIGKILL of a process of Ray's that holds a place."""
        kill_one(case, self._places())

    def kinds(self) -> cases.Kinds:
        """The kinds of faults there."""
        signalled = driver_signalled(signal.SIGTERM, signal.SIGINT)
        killed = driver_signalled(signal.SIGKILL)
        every = (killed, signalled, point_killed, self.kill_node, self.kill_worker)
        return {
            "Ray: the driver killed": kind(1, struck, killed, times=(1, 2)),
            "Ray: nodes killed": kind(1, struck, self.kill_node, times=(1, 2, 3)),
            "Ray: workers killed": kind(1, struck, self.kill_worker, times=(2, 3, 4)),
            "Ray: points killed": kind(1, struck, point_killed, times=(2, 3, 4)),
            "Ray: four to eight of these, SIGTERM, SIGINT": kind(
                3, struck, *every, times=range(4, 9)
            ),
        }

    def _places(self) -> list[int]:
        raylets = [one for node in self._nodes for one in node.all_processes["raylet"]]
        return [
            pid
            for raylet in raylets
            for pid in sweeps.children_of(raylet.process.pid)
            if b"Place" in _command_line(pid)
        ]


class SlurmCluster:
    """A cluster of Slurm, until this process ends."""

    runner = "slurm"

    def __init__(self) -> None:
        if importlib.util.find_spec("submitit") is None:
            sys.exit("Skipped: submitit is not installed: pip install 'fidgpt[slurm]'")
        folder = Path(tempfile.mkdtemp(prefix="faults-slurm-"))
        folder.chmod(0o755)
        self._here = SlurmHere(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(self._here.down)
        try:
            self._here.up()
        except NoSlurmError as error:
            sys.exit(f"Skipped: {error}")
        self.environment = {SLURM_HERE: str(self._here.conf)}

    def hurry(self) -> None:
        """What went back to the queue begins at once, not after two minutes."""
        for line in self._queue("PENDING", "%i %r"):
            number, _, reason = line.partition(" ")
            if reason == "BeginTime":
                self._here.ask("scontrol", "update", f"JobId={number}", "StartTime=now")

    def is_idle(self) -> bool:
        """Whether the queue is empty."""
        return not self._here.ask("squeue", "-h")

    def kill_node(self, case: ClusterCase) -> None:
        """SIGKILL of the node's daemon and of all its tasks; after that it comes again."""
        self._here.kill_node()
        self._here.start_node()

    def signalled(self, *names: str) -> ClusterStrike:
        """One of some signals to a task, as Slurm sends them."""
        return lambda case: self._to_one(case, "scancel", f"--signal={case.draw.choice(names)}")

    def requeue(self, case: ClusterCase) -> None:
        """A task is sent back to the queue."""
        self._to_one(case, "scontrol", "requeue")

    def cancel(self, case: ClusterCase) -> None:
        """A task is cancelled."""
        self._to_one(case, "scancel")

    def kinds(self) -> cases.Kinds:
        """The kinds of faults there."""
        driver = driver_signalled(signal.SIGKILL, signal.SIGTERM)
        taken = (self.signalled("USR1", "TERM"), self.requeue, self.cancel)
        every = (driver, point_killed, self.kill_node, *taken)
        return {
            "Slurm: the driver killed, or SIGTERM": kind(1, struck, driver, times=(1, 2)),
            "Slurm: the node killed": kind(1, struck, self.kill_node, times=(1, 2)),
            "Slurm: tasks stopped, sent back, cancelled": kind(
                1, struck, *taken, times=range(3, 7)
            ),
            "Slurm: points killed": kind(1, struck, point_killed, times=(2, 3, 4)),
            "Slurm: five to ten of these": kind(3, struck, *every, times=range(5, 11)),
        }

    def _to_one(self, case: ClusterCase, *command: str) -> None:
        if found := self._queue("RUNNING", "%i"):
            self._here.ask(*command, case.draw.choice(found))

    def _queue(self, state: str, form: str) -> list[str]:
        return self._here.ask(
            "squeue", "--array", "-h", f"--states={state}", f"--format={form}"
        ).splitlines()


CLUSTERS = {"ray": RayHere, "slurm": SlurmCluster}


class ClusterWorld(cases.World):
    """Makes cases of sweeps on a cluster.

    Args:
      folder: empty; all but the cluster lies in it.
      on: the engine's name.
    """

    def __init__(self, folder: Path, on: str) -> None:
        here = sweeps.SweepWorld(folder)
        # Before there is a cluster: with the threads of one, this process may not be forked.
        self._known = here.undisturbed("sweep")
        self.folder, self.has_small_disk = folder, here.has_small_disk
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster ends too
        self._cluster = CLUSTERS[on]()
        self.kinds: cases.Kinds = self._cluster.kinds()

    def case(self, kind: str, number: int, draw: random.Random) -> ClusterCase:
        folder = self.folder / f"case-{number}"
        return ClusterCase(self._known, self._cluster, folder, draw)
