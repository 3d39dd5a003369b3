"""Jobs on a Ray cluster."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from fidgpt import files
from fidgpt.data.errors import import_extra
from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import keeper, remote
from fidgpt.sweep.runners.jobs import Events, Exit, Job, Runner, State

_GRACE = 30.0  # seconds in which the other processes may end after one has failed
_PATIENCE = 5.0  # seconds for a cluster to answer
_LOCAL = "local"
_OBJECTS = 80 * 1024 * 1024  # bytes; nothing is stored, and Ray would take a third of the memory


class RayAttempt:
    """An attempt at a job in one or several processes on the nodes of a cluster.

    Args:
      job: the job.
      group: the placement group that holds the resources.
      places: an actor for each process, on the bundles of the group.
      threads: of a process, unless OMP_NUM_THREADS is set.
    """

    def __init__(self, job: Job, *, group: Any, places: Sequence[Any], threads: int) -> None:
        self._job = job
        self._group = group
        self._places = places
        self._threads = threads
        self._logs = [remote.of_rank(job.log, rank) for rank in range(len(places))]
        for log in self._logs:
            log.touch()
        logs = [str(log.resolve()) for log in self._logs]
        self._claimed = [place.claim.remote(log) for place, log in zip(places, logs, strict=True)]
        self._claims: list[remote.Claim] = []
        self._ends: dict[Any, int] = {}  # the future of each process that runs, with its rank
        self._statuses: dict[int, int] = {}  # by rank, in the order in which processes ended
        self._kill_at = float("inf")

    def poll(self) -> State:
        """Return its state; see Attempt."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

        try:
            if not self._claims and (state := self._launch()) != "running":
                return state
            for end in ray.wait(list(self._ends), num_returns=len(self._ends), timeout=0)[0]:
                rank = self._ends.pop(end)
                try:
                    self._statuses[rank] = ray.get(end)
                except ActorUnavailableError:  # the network may come back
                    self._ends[self._places[rank].wait.remote()] = rank
                    continue
                if self._statuses[rank]:
                    self._kill_at = time.monotonic() + _GRACE
        except RayTaskError as error:  # of a claim or a launch: files that are not there
            self._release()
            return Exit(1, f"{error.cause}: a sweep needs a file system that all nodes share.")
        except RayActorError as error:
            self._release()
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return Exit(1, f"its slot on the cluster is gone: {lines[-1]}", is_lost=True)
        if not self._ends:
            self._release()
            return self._exit()
        if time.monotonic() > self._kill_at:
            self._kill_at = float("inf")
            self.send(signal.SIGKILL)
        return "running"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its processes; see Attempt."""
        if not self._claims:
            self._release()
        for rank in self._ends.values():
            self._places[rank].send.remote(number.value)

    def _launch(self) -> State:
        """Start the processes once all have a place, unless another process runs the job."""
        import ray

        ready, missing = ray.wait(self._claimed, num_returns=len(self._claimed), timeout=0)
        claims: list[remote.Claim] = ray.get(ready)  # raises what went wrong with any of them
        if missing:
            return "pending"
        if self._job.is_done or any(claim.log_start is None for claim in claims):
            self._release()
            return "refused"
        self._claims = claims
        command = keeper.keeping(self._job.command)
        environments = map(self._job.environment, assigned(claims, threads=self._threads))
        started = [
            place.launch.remote(command, environment=environment, directory=os.getcwd())
            for place, environment in zip(self._places, environments, strict=True)
        ]
        ray.get(started)
        self._ends = {place.wait.remote(): rank for rank, place in enumerate(self._places)}
        return "running"

    def _exit(self) -> Exit:
        """Return how the processes ended, with the reason of the first that failed by itself."""
        failed = {rank: status for rank, status in self._statuses.items() if status}
        reasons = [
            remote.failure_reason(
                self._logs[rank], start=self._claims[rank].log_start or 0, status=status
            )
            for rank, status in failed.items()
        ]
        return Exit(next(iter(failed.values())), remote.first_cause(reasons)) if failed else Exit(0)

    def _release(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for place in self._places:
            ray.kill(place)
        remove_placement_group(self._group)


def assigned(claims: Sequence[remote.Claim], *, threads: int) -> list[dict[str, str]]:
    """Return what each process is assigned: threads, GPUs, and its rank if there are several.

    Processes on one node see the same GPUs, which NCCL needs for direct transfers between them, and
    each uses the one of its local rank.
    """
    shares: list[dict[str, str]] = []
    for rank, claim in enumerate(claims):
        beside = [other for other, one in enumerate(claims) if one.node == claim.node]
        gpus = [gpu for other in beside for gpu in claims[other].gpus]
        share = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if "OMP_NUM_THREADS" not in os.environ:
            share["OMP_NUM_THREADS"] = str(threads)
        if len(claims) > 1:
            share |= {
                "MASTER_ADDR": claims[0].address,
                "MASTER_PORT": str(claims[0].port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(claims)),
                "LOCAL_RANK": str(beside.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(beside)),
            }
        shares.append(share)
    return shares


@dataclass
class RayRunner(Runner):
    """Runs jobs on a Ray cluster, whose nodes all see the directory of the sweep.

    A point whose node is lost starts again on another one, from its newest checkpoint; this does
    not count as a retry. When this process dies, its runs save and exit.

    The last digits of numbers depend on the number of threads and processes.

    Attributes:
      jobs: points at a time; those for which the cluster has no room wait for it.
      retries: how often a point that failed is retried, from its newest checkpoint.
      address: of the cluster, such as auto or 10.0.0.1:6379; defaults to RAY_ADDRESS, or a Ray of
        this machine alone, which ends with the sweep.
      cpus: cores of each process, and its threads unless OMP_NUM_THREADS is set.
      gpus: GPUs of each process: 0, 1, or a fraction of one.
      processes: of a point, each of which reads its own rows of a batch.

    Raises:
      ConfigError: one of these is invalid.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    processes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= 1 or (self.processes > 1 and self.gpus % 1):
            raise ConfigError(
                f"gpus={self.gpus:g}: a process computes on one GPU, and several share none: set "
                f"gpus=1, and processes={max(1, round(self.gpus))}."
            )

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; see Runner. A connection to Ray that was made before is used and kept.

        Raises:
          DataError: Ray is not installed.
          ConfigError: it does not answer, or has no room for a point.
        """
        ray = import_extra("ray", extra="ray", purpose="a sweep on a Ray cluster")
        from ray import cloudpickle

        for module in (remote, files):
            cloudpickle.register_pickle_by_value(module)
        address = self.address or os.environ.get("RAY_ADDRESS") or _LOCAL
        with contextlib.ExitStack() as stack:
            if not ray.is_initialized():
                here = "Starting Ray on this machine."
                events.log(here if address == _LOCAL else f"Connecting to Ray at {address}.")
                _connect(ray, address)
                stack.callback(ray.shutdown)
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            need = self._bundle.items()
            slots = [min(int(node.get(k, 0) / v) for k, v in need) for node in nodes]
            if sum(slots) < self.processes:
                shortage = (
                    f"the nodes of Ray have room for {sum(slots)} of the {self.processes} "
                    f"processes of a point, with {self.cpus:g} cpus and {self.gpus:g} gpus each."
                )
                if address == _LOCAL:
                    raise ConfigError(shortage)
                events.log(f"warning: {shortage} Until then, points wait.")  # it may grow
            return super().run(jobs, events)

    def launch(self, job: Job, log: IO[bytes], slot: int) -> RayAttempt:
        """Ask for places; see Runner."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([self._bundle] * self.processes, strategy="PACK")
        actor: Any = ray.remote(remote.Place)
        places = [
            actor.options(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_concurrency=2,  # one waits while another sends a signal
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            ).remote()
            for rank in range(self.processes)
        ]
        return RayAttempt(job, group=group, places=places, threads=max(1, int(self.cpus)))

    @property
    def _bundle(self) -> dict[str, float]:
        """The resources of a process."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def _connect(ray: Any, address: str) -> None:
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    options: dict[str, Any] = {}
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"include_dashboard": False, "object_store_memory": _OBJECTS}
    try:
        if colon and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at address={address}: {str(error).splitlines()[0]}\n"
            "Start one with `ray start --head`, and use the address that it prints; without an "
            "address, one is started for this sweep on this machine."
        ) from error
