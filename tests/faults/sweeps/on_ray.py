"""Sweeps on a Ray cluster of a head and two nodes, whose nodes, workers and drivers are killed."""

import atexit
import os
import signal
from pathlib import Path
from typing import Any

from faults.sweeps import cluster_kinds
from faults.sweeps.children import children_of
from faults.sweeps.cluster_case import ClusterCase
from faults.sweeps.cluster_kinds import Absent, ClusterKind, ClusterStrike, struck

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
        return "worker killed" if found and cluster_kinds.kill(case.draw.choice(found)) else ""

    def kinds(self) -> dict[str, tuple[ClusterKind, int]]:
        """By name: the kind, and how often it is drawn beside the others."""
        told = cluster_kinds.driver_told(signal.SIGTERM, signal.SIGINT)
        killed = cluster_kinds.driver_told(signal.SIGKILL)
        every: list[ClusterStrike] = [killed, told, cluster_kinds.point_killed]
        every += [self.kill_node, self.kill_worker]
        return {
            "Ray: the driver killed": (struck(killed, times=(1, 2)), 1),
            "Ray: nodes killed": (struck(self.kill_node, times=(1, 2, 3)), 1),
            "Ray: workers killed": (struck(self.kill_worker, times=(2, 3, 4)), 1),
            "Ray: points killed": (struck(cluster_kinds.point_killed, times=(2, 3, 4)), 1),
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
