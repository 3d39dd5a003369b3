"""The clusters: Ray with a head and two nodes, and Slurm with one node."""

import atexit
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.sweeps import cluster_case
from faults.sweeps.cases import children_of
from faults.sweeps.cluster_case import Absent, ClusterCase, ClusterKind, ClusterStrike, struck
from faults.sweeps.kinds import SweepWorld
from faults.sweeps.mixed import SLURM_HERE
from tests.sweep.slurm_here import NoSlurmError, SlurmHere

_NODE = {"num_cpus": 3, "object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
_SOON = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 500}


class RayHere:
    """The cluster, until this process ends.

    Raises:
      Absent: Ray is not installed.
    """

    runner = "ray"

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            from ray.cluster_utils import Cluster
        except ImportError:
            raise Absent("Ray is not installed: pip install 'fidgpt[ray]'") from None
        head = {**_NODE, "num_cpus": 0, "_system_config": _SOON}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        atexit.register(self._cluster.shutdown)
        self._nodes = [self._cluster.add_node(**_NODE) for _ in range(2)]
        self.environment = {"RAY_ADDRESS": str(self._cluster.address)}

    def hurry(self) -> None:
        """Nothing waits here."""

    def is_idle(self) -> bool:
        """Whether no worker holds a place."""
        return not self._places()

    def kill_node(self, case: ClusterCase) -> str:
        """SIGKILL of one node's processes; another node comes in its place."""
        node = self._nodes.pop(case.draw.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(**_NODE))
        return "node killed"

    def kill_worker(self, case: ClusterCase) -> str:
        """SIGKILL of a process of Ray's that holds a place."""
        found = self._places()
        return "worker killed" if found and cluster_case.kill(case.draw.choice(found)) else ""

    def kinds(self) -> dict[str, tuple[ClusterKind, int]]:
        """By name: the kind, and how often it is drawn beside the others."""
        signalled = cluster_case.driver_signalled(signal.SIGTERM, signal.SIGINT)
        killed = cluster_case.driver_signalled(signal.SIGKILL)
        every: list[ClusterStrike] = [killed, signalled, cluster_case.point_killed]
        every += [self.kill_node, self.kill_worker]
        return {
            "Ray: the driver killed": (struck(killed, times=(1, 2)), 1),
            "Ray: nodes killed": (struck(self.kill_node, times=(1, 2, 3)), 1),
            "Ray: workers killed": (struck(self.kill_worker, times=(2, 3, 4)), 1),
            "Ray: points killed": (struck(cluster_case.point_killed, times=(2, 3, 4)), 1),
            "Ray: four to eight of these, SIGTERM, SIGINT": (
                struck(*every, times=(4, 5, 6, 7, 8)),
                3,
            ),
        }

    def _places(self) -> list[int]:
        raylets = [one.process.pid for node in self._nodes for one in _raylets(node)]
        return [pid for raylet in raylets for pid in children_of(raylet) if _is_place(pid)]


def _raylets(node: Any) -> list[Any]:
    return node.all_processes["raylet"]


def _is_place(pid: int) -> bool:
    try:
        return b"Place" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class SlurmCluster:
    """The cluster, until this process ends.

    Raises:
      Absent: Slurm or submitit is not installed, or the cluster does not come up.
    """

    runner = "slurm"

    def __init__(self) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise Absent("submitit is not installed: pip install 'fidgpt[slurm]'")
        folder = Path(tempfile.mkdtemp(prefix="faults-slurm-"))
        folder.chmod(0o755)
        self._here = SlurmHere(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(self._here.down)
        try:
            self._here.up()
        except NoSlurmError as error:
            raise Absent(str(error)) from None
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

    def kill_node(self, case: ClusterCase) -> str:
        """SIGKILL of the node's daemon and of all its tasks; after that it comes again."""
        self._here.kill_node()
        self._here.start_node()
        return "node killed"

    def signalled(self, *names: str) -> ClusterStrike:
        """One of some signals to a task, as Slurm sends them."""

        def strike(case: ClusterCase) -> str:
            name = case.draw.choice(names)
            return self._to_one(case, f"SIG{name} to a task", "scancel", f"--signal={name}")

        return strike

    def requeue(self, case: ClusterCase) -> str:
        """A task is sent back to the queue."""
        return self._to_one(case, "task sent back", "scontrol", "requeue")

    def cancel(self, case: ClusterCase) -> str:
        """A task is cancelled."""
        return self._to_one(case, "task cancelled", "scancel")

    def kinds(self) -> dict[str, tuple[ClusterKind, int]]:
        """By name: the kind, and how often it is drawn beside the others."""
        driver = cluster_case.driver_signalled(signal.SIGKILL, signal.SIGTERM)
        taken: list[ClusterStrike] = [self.signalled("USR1", "TERM"), self.requeue, self.cancel]
        every = [driver, cluster_case.point_killed, self.kill_node, *taken]
        return {
            "Slurm: the driver killed, or SIGTERM": (struck(driver, times=(1, 2)), 1),
            "Slurm: the node killed": (struck(self.kill_node, times=(1, 2)), 1),
            "Slurm: tasks told, sent back, cancelled": (struck(*taken, times=(3, 4, 5, 6)), 1),
            "Slurm: points killed": (struck(cluster_case.point_killed, times=(2, 3, 4)), 1),
            "Slurm: five to ten of these": (
                struck(*every, times=(5, 6, 7, 8, 9, 10)),
                3,
            ),
        }

    def _to_one(self, case: ClusterCase, what: str, *command: str) -> str:
        if found := self._queue("RUNNING", "%i"):
            self._here.ask(*command, case.draw.choice(found))
        return what if found else ""

    def _queue(self, state: str, form: str) -> list[str]:
        return self._here.ask(
            "squeue", "--array", "-h", f"--states={state}", f"--format={form}"
        ).splitlines()


CLUSTERS: dict[str, Callable[[], Any]] = {"ray": RayHere, "slurm": SlurmCluster}


class ClusterWorld:
    """Makes cases.

    Args:
      folder: empty; all but the cluster lies in it.
      on: the engine's name.

    Attributes:
      kinds: of faults, and their shares.
      has_small_disk: whether the machine lets one be mounted.
    """

    def __init__(self, folder: Path, on: str) -> None:
        here = SweepWorld(folder)
        # Before there is a cluster: with the threads of one, this process may not be forked.
        self._known = here.undisturbed("sweep")
        self._folder = folder
        self.has_small_disk = here.has_small_disk
        self._strikes: Counter[str] = Counter()
        atexit.register(self._report)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster ends too
        try:
            self._cluster = CLUSTERS[on]()
        except Absent as absent:
            print(f"Skipped: {absent}")
            sys.exit(0)
        self.kinds = self._cluster.kinds()

    def case(self, kind: str, number: int, draw: random.Random) -> ClusterCase:
        """The case of that number."""
        folder = self._folder / f"case-{number}"
        return ClusterCase(self._known, self._cluster, folder, draw, strikes=self._strikes)

    def _report(self) -> None:
        strikes = [f"{count} {what}" for what, count in sorted(self._strikes.items()) if what]
        print("Strikes:", ", ".join(strikes) or "none")
