"""Jobs on Ray."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fidgpt import files as locking
from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import ray_place
from fidgpt.sweep.runners.attempt import Events, Exit, Job, State, environment_of
from fidgpt.sweep.runners.keeper import keeping
from fidgpt.sweep.runners.ray_place import Claim
from fidgpt.sweep.runners.work import Work, is_second_hand, last_words, of_rank

_SECONDS = 0.5  # a place is asked for so long at a time; it hears of signals in between
_GRACE = 30.0  # seconds that the other processes have to end in, when one has failed


class RayAttempt:
    """An attempt at a job in one or several processes on the nodes of a cluster.

    Args:
      job: what it is to do.
      group: the placement group that holds the resources.
      places: an actor for each process, on the bundles of the group.
      threads: those that a process computes with, unless OMP_NUM_THREADS says it.
    """

    def __init__(self, job: Job, *, group: Any, places: Sequence[Any], threads: int) -> None:
        self._job = job
        self._group = group
        self._places = places
        self._threads = threads
        self._logs = [of_rank(job.log, rank) for rank in range(len(places))]
        for log in self._logs:
            log.touch()
        self._claimed = [
            place.claim.remote(str(log.resolve()))
            for place, log in zip(places, self._logs, strict=True)
        ]
        self._claims: list[Claim] = []
        self._asked: dict[int, Any] = {}  # by rank, what will tell of its end
        self._ended: dict[int, int] = {}  # by rank, in the order in which they ended
        self._lost = ""
        self._kill_at = float("inf")

    def look(self) -> State:
        """How it stands; see Attempt."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            if not self._claims:
                return self._claim()
            for rank in list(self._asked):
                self._ask(rank)
        except RayTaskError as error:  # of a claim or a launch: of files that are not there
            self._release()
            return Exit(1, f"{error.cause}: a sweep needs a file system that all nodes share.")
        except RayActorError as error:
            self._release()
            return Exit(1, _reason(error), is_lost=True)
        if not self._asked:
            self._release()
            return self._exit()
        if time.monotonic() > self._kill_at:
            self._kill_at = float("inf")
            self.send(signal.SIGKILL)
        return "running"

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its processes; see Attempt."""
        if not self._claims:
            self._release()
        for rank in self._asked:
            self._places[rank].send.remote(number.value)

    def _claim(self) -> State:
        """Starts the processes once all have a place, and nobody else runs the job."""
        import ray

        ready, missing = ray.wait(self._claimed, num_returns=len(self._claimed), timeout=0)
        said = ray.get(ready)  # raises what went wrong with one of them, though others be missing
        if missing:
            return "placing"
        claims = [Claim(*one) for one in said]
        if self._job.is_done or any(claim.log_at is None for claim in claims):
            self._release()
            return "refused"
        self._claims = claims
        self._launch()
        return "running"

    def _launch(self) -> None:
        import ray

        command = keeping(self._job.command)
        several = environments(self._claims, threads=self._threads)
        ray.get(
            [
                place.launch.remote(
                    command, environment=environment_of(self._job, dealt), directory=os.getcwd()
                )
                for place, dealt in zip(self._places, several, strict=True)
            ]
        )
        self._asked = {rank: place.wait.remote(_SECONDS) for rank, place in enumerate(self._places)}

    def _ask(self, rank: int) -> None:
        """Takes down how a process ended, if it did."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError

        ready, _ = ray.wait([self._asked[rank]], timeout=0)
        if not ready:
            return
        status: int | None
        try:
            (status,) = ray.get(ready)
        except ActorUnavailableError:
            status = None  # the network may come back
        except RayActorError as error:
            status = 1
            self._lost = _reason(error)
        if status is None:
            self._asked[rank] = self._places[rank].wait.remote(_SECONDS)
            return
        del self._asked[rank]
        self._ended[rank] = status
        if status:
            self._kill_at = time.monotonic() + _GRACE

    def _exit(self) -> Exit:
        if self._lost:
            return Exit(1, self._lost, is_lost=True)
        failed = {rank: status for rank, status in self._ended.items() if status}
        told = [(status, self._words(rank, status)) for rank, status in failed.items()]
        at_first = [one for one in told if not is_second_hand(one[1])]
        return Exit(*[*at_first, *told, (0, "")][0])

    def _words(self, rank: int, status: int) -> str:
        return last_words(self._logs[rank], after=self._claims[rank].log_at or 0, status=status)

    def _release(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for place in self._places:
            ray.kill(place)
        remove_placement_group(self._group)


def environments(claims: Sequence[Claim], *, threads: int) -> list[Mapping[str, str]]:
    """What each process is dealt: threads, GPUs, and, where there are several, who they are.

    Processes of one node see the same GPUs, as NCCL needs for the direct way between them, and
    each takes the one of its local rank.
    """
    given = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    several = []
    for rank, claim in enumerate(claims):
        beside = [other for other, one in enumerate(claims) if one.node == claim.node]
        gpus = [gpu for other in beside for gpu in claims[other].gpus]
        dealt = {**given, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if len(claims) > 1:
            dealt |= {
                "MASTER_ADDR": claims[0].address,
                "MASTER_PORT": str(claims[0].port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(claims)),
                "LOCAL_RANK": str(beside.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(beside)),
            }
        several.append(dealt)
    return several


def _reason(error: Exception) -> str:
    """Why Ray took a process for dead, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"its place on the cluster is gone: {lines[-1]}"


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
