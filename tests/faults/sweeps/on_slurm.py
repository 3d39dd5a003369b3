"""Sweeps on a Slurm cluster of one node, whose tasks, node and drivers are struck."""

import atexit
import importlib.util
import shutil
import signal
import tempfile
from pathlib import Path

from faults.sweeps import cluster_kinds
from faults.sweeps.cluster_case import ClusterCase
from faults.sweeps.cluster_kinds import Absent, ClusterKind, ClusterStrike, struck
from faults.sweeps.mixed import SLURM_HERE
from tests.sweep.slurm_here import NoSlurmError, SlurmHere


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
        driver = cluster_kinds.driver_told(signal.SIGKILL, signal.SIGTERM)
        taken: list[ClusterStrike] = [self.signalled("USR1", "TERM"), self.requeue, self.cancel]
        every = [driver, cluster_kinds.point_killed, self.kill_node, *taken]
        return {
            "Slurm: the driver killed, or SIGTERM": (struck(driver, times=(1, 2)), 1),
            "Slurm: the node killed": (struck(self.kill_node, times=(1, 2)), 1),
            "Slurm: tasks told, sent back, cancelled": (struck(*taken, times=(3, 4, 5, 6)), 1),
            "Slurm: points killed": (struck(cluster_kinds.point_killed, times=(2, 3, 4)), 1),
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
