"""Running the points of a sweep on a Ray cluster, in one process each or in several."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import locking, ray_place
from fidgpt.sweep.runners.job import Events, Job
from fidgpt.sweep.runners.ray_attempt import RayAttempt
from fidgpt.sweep.runners.work import Work

_PAUSE = 0.2  # seconds between two looks at the processes
_PATIENCE = 5.0  # seconds for a cluster to answer
_LOCAL = "local"
_OBJECTS = 80 * 1024 * 1024  # bytes; nothing is stored, and Ray would take a third of the memory


@dataclass
class RayRunner:
    """Runs jobs on a Ray cluster, whose nodes all see the directory of the sweep.

    A point whose node goes away is begun again on another one, where it goes on from its newest
    checkpoint; this is no retry. When this process dies, its runs save where they are and end.

    Numbers depend in their last digits on how many threads and processes compute them.

    Attributes:
      jobs: points at a time; those for which the cluster has no room yet wait for it.
      retries: how often a point is started anew that failed; each time it goes on from its newest
        checkpoint.
      address: of the cluster, such as auto or 10.0.0.1:6379; unless said, what RAY_ADDRESS says,
        or a Ray of this machine alone, which ends with the sweep.
      cpus: cores of each process, and its threads where OMP_NUM_THREADS does not say them.
      gpus: GPUs of each process: 0, 1, or a part of one.
      processes: those of a point, each of which reads its own rows of a batch.

    Raises:
      ConfigError: one of these cannot be.
    """

    jobs: int = 1
    retries: int = 0
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    processes: int = 1
    _work: Work | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.address is not None and not self.address.strip():
            raise ConfigError(
                "address= names no cluster: say address=auto or address=10.0.0.1:6379, or leave it "
                "out for a Ray of this machine alone."
            )
        if self.cpus <= 0:
            raise ConfigError(f"cpus={self.cpus:g}: a process needs some part of a core.")
        if not 0 <= self.gpus <= 1:
            raise ConfigError(
                f"gpus={self.gpus:g} of a process, which computes on one: say gpus=1, and "
                f"processes={max(1, round(self.gpus))}."
            )
        if self.processes < 1 or (self.processes > 1 and self.gpus % 1):
            raise ConfigError(
                f"processes={self.processes} with gpus={self.gpus:g}: a point has at least one "
                "process, and several cannot share a GPU."
            )

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Runs all of them; False where a signal stopped that.

        Each job is asked for when there is a place for it, so that what came of earlier ones may
        decide which one it is; a None is asked again after a pause.

        Ctrl-C, SIGTERM and SIGHUP let each run save where it is and end; a second Ctrl-C ends
        them at once.

        Raises:
          ConfigError: Ray is not installed, does not answer, or has no room for a point.
        """
        with self.connected(events.say):
            self._work = Work(
                iter(jobs),
                self._launch,
                num_places=self.jobs,
                retries=self.retries,
                events=events,
            )
            return self._work.run(pause=_PAUSE)

    @contextlib.contextmanager
    def connected(self, say: Callable[[str], None]) -> Iterator[None]:
        """While entered, Ray is connected to the cluster; what was connected before stays so.

        Args:
          say: hears what is waited for, and a warning where the cluster has no room for a point
            yet.

        Raises:
          ConfigError: Ray is not installed, does not answer, or has no room for a point.
        """
        address = self.address or os.environ.get("RAY_ADDRESS") or _LOCAL
        with _connected(address, say) as ray:
            if too_much := self._too_much(ray):
                if address == _LOCAL:
                    raise ConfigError(too_much)
                say(f"warning: {too_much} Until then, points wait.")  # it may grow
            yield

    def end_early(self, job: Job) -> None:
        """Ends a job that is not worth going on with; it saves where it is."""
        if self._work is not None:
            self._work.end_early(job)

    def _launch(self, job: Job, log: IO[bytes], slot: int) -> RayAttempt:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([self._bundle] * self.processes, strategy="PACK")
        actor: Any = ray.remote(ray_place.Place)
        places = [
            actor.options(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
            ).remote()
            for rank in range(self.processes)
        ]
        return RayAttempt(job, group=group, places=places, threads=max(1, int(self.cpus)))

    @property
    def _bundle(self) -> dict[str, float]:
        """What a process needs of a node, in Ray's words."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def _too_much(self, ray: Any) -> str | None:
        """What the cluster lacks for even one point, if anything."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(
            min(int(node.get(name, 0) / amount) for name, amount in self._bundle.items())
            for node in nodes
        )
        if room >= self.processes:
            return None
        largest = ", ".join(
            f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}"
            for name in self._bundle
        )
        return (
            f"Ray has room for {room} processes with cpus={self.cpus:g} and gpus={self.gpus:g}, "
            f"and a point has {self.processes}; its {len(nodes)} nodes have up to {largest}: ask "
            "for less, or add nodes."
        )


@contextlib.contextmanager
def _connected(address: str, say: Callable[[str], None]) -> Iterator[Any]:
    """Ray, connected to a cluster; what was connected before stays so.

    Raises:
      ConfigError: Ray is not installed, or does not answer.
    """
    try:
        import ray
        from ray import cloudpickle
    except ImportError as error:
        raise ConfigError(
            'to run on a Ray cluster, install Ray: pip install "fidgpt[ray]"'
        ) from error
    for module in (ray_place, locking):
        cloudpickle.register_pickle_by_value(module)
    if ray.is_initialized():
        yield ray
        return
    say(
        "Starting Ray on this machine." if address == _LOCAL else f"Connecting to Ray at {address}."
    )
    with _sigterm_kept():
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    alone: dict[str, Any] = {}
    if address == _LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        alone = {"include_dashboard": False, "object_store_memory": _OBJECTS}
    else:
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{_PATIENCE:.0f}")
    try:
        _require_answer(address)
        silence = contextlib.nullcontext() if address == _LOCAL else _silence()
        with silence:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at address={address}: {str(error).splitlines()[0]}\n"
            "Start one with `ray start --head`, and name it as that says; without an address, one "
            "is started for this sweep on this machine."
        ) from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """While entered, nothing is written to stderr, where Ray's own C++ warns before it is set up.

    What it warns of is raised in the end.
    """
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _require_answer(address: str) -> None:
    """Fails at once where nobody listens: Ray itself asks again for many minutes.

    Raises:
      OSError: nobody does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Puts back how SIGTERM was handled, which Ray changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
