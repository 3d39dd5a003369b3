"""One try at a point on a Ray cluster: places for its processes, and what becomes of them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fidgpt.sweep.runners.attempt import Exit, State, environment_of
from fidgpt.sweep.runners.job import Job
from fidgpt.sweep.runners.keeper import keeping
from fidgpt.sweep.runners.ray_place import Claim
from fidgpt.sweep.runners.tail import is_second_hand, last_words, of_rank

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
