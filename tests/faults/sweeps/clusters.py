"""What sweeps on a cluster share: the undisturbed one of this machine, and the cluster."""

import atexit
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.sweeps.cluster_case import ClusterCase
from faults.sweeps.cluster_kinds import Absent
from faults.sweeps.on_ray import RayHere
from faults.sweeps.on_slurm import SlurmCluster
from faults.sweeps.world import SweepWorld

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
        atexit.register(self._tell)
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

    def _tell(self) -> None:
        strikes = [f"{count} {what}" for what, count in sorted(self._strikes.items()) if what]
        print("Strikes:", ", ".join(strikes) or "none")
