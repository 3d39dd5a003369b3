"""Jobs on Slurm."""

import shlex
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners.attempt import Attempt, Events, Exit, Job, State
from fidgpt.sweep.runners.slurm_jobs import (
    Handed,
    JobState,
    SlurmJobs,
    SlurmSilent,
    refuse_without_slurm,
)
from fidgpt.sweep.runners.slurm_task import ENDED, REFUSED, REQUEUED, RUNNING, Task, read_record
from fidgpt.sweep.runners.work import Work, is_second_hand, last_words, of_rank
from fidgpt.train.trackers.background import GROUP

_ASK = 10.0  # seconds between two questions to Slurm, which serves many
_GRACE = 30.0  # seconds in which a shared file system shows what a task wrote last
_PATIENCE = 5.0  # seconds in which a second signal means more than to leave
_CANCELLED = "cancelled in Slurm"


class Left(Exception):
    """The user has left; what is in Slurm goes on."""


@dataclass
class JobSubmitter:
    """Hands in what is to run, and asks Slurm about all of it at once, now and then.

    Attributes:
      slurm: what was handed in.
      task_of: the task of a job that says in a file how it stands.
      jobs: points at a time.
      processes: of each point.
      events: hear what a person may want to know.
    """

    slurm: SlurmJobs
    task_of: Callable[[Job, Path], Task]
    jobs: int
    processes: int
    events: Events

    def __post_init__(self) -> None:
        self._waiting: list[SlurmAttempt] = []
        self._under_way: list[SlurmAttempt] = []
        self._ending: dict[bool, list[Handed]] = {False: [], True: []}
        self._leaves_at: float | None = None
        self._is_left = False
        self._said: set[str] = set()
        self._largest = self.slurm.largest()
        self.slurm.ask()
        self._known = self.slurm.known()

    def adopt(self, job: Job) -> "SlurmAttempt | None":
        """The attempt that an earlier process has handed in, if something comes of it yet."""
        handed = self._known.pop(job.point.fingerprint, None)
        if handed is None:
            return None
        record = read_record(handed.record) or {}
        is_over = self.slurm.standing(handed).is_over or record.get("state") == REFUSED
        if record.get("status") == 0 or not (is_over or _has_ended(record)):
            return self._follow(SlurmAttempt(job, self, handed))
        return None

    def launch(self, job: Job, log: IO[bytes], slot: int) -> "SlurmAttempt":
        """Takes a job that will be handed in together with others."""
        attempt = SlurmAttempt(job, self, None)
        self._waiting.append(attempt)
        return attempt

    def _follow(self, attempt: "SlurmAttempt") -> "SlurmAttempt":
        self._under_way.append(attempt)
        return attempt

    def forget(self, attempt: "SlurmAttempt") -> None:
        """Takes leave of an attempt that is over."""
        self._under_way.remove(attempt)

    def turn(self) -> None:
        """Does what is due.

        Raises:
          Left: the user has left, and has not come back.
          SlurmSilent: Slurm takes no jobs, and has none.
        """
        if self._leaves_at is not None:
            if time.monotonic() < self._leaves_at:
                return
            self._is_left = True
            raise Left
        self.close()
        try:
            self._hand_in()
            if time.monotonic() - self.slurm.asked_at > _ASK:
                self.slurm.ask()
        except SlurmSilent as silence:
            if not self._under_way:
                raise
            self._say_once(f"{silence} It is tried again.")
        self._tell_of_held()

    def _hand_in(self) -> None:
        room = self.jobs - len(self._under_way) if self._under_way else self._largest
        some = self._waiting[: max(0, room)]
        if not some:
            return
        jobs = [attempt.job for attempt in some]
        several = self.slurm.hand_in(jobs, self.task_of, at_a_time=self.jobs)
        for attempt, handed in zip(some, several, strict=True):
            attempt.handed = handed
            self._follow(attempt)
        del self._waiting[: len(some)]
        number, points = several[0].number.partition("_")[0], len(several)
        self.events.say(f"In Slurm as job {number}: {points} point{'' if points == 1 else 's'}.")
        self.slurm.ask()

    def _tell_of_held(self) -> None:
        for attempt in self._under_way:
            standing = attempt.standing
            if standing.is_held:
                self._say_once(f"Slurm holds {attempt.job.point.name} back: {standing.reason}.")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.events.say(text)

    def leave(self) -> None:
        """Leaves what is in Slurm to itself, unless a further signal comes soon."""
        self._leaves_at = time.monotonic() + _PATIENCE
        self.events.say(
            f"Leaving: what is in Slurm goes on there, and the same command follows it again. Once "
            f"more within {_PATIENCE:.0f} seconds lets each run save where it is and end."
        )

    def end(self, attempt: "SlurmAttempt", *, at_once: bool) -> None:
        """Ends an attempt at the next turn; not after the user has left."""
        if self._is_left:
            return
        self._leaves_at = None
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        elif attempt.handed is not None:
            self._ending[at_once].append(attempt.handed)

    def close(self) -> None:
        """Tells Slurm of all that is to be ended."""
        for at_once, several in self._ending.items():
            if several:
                self.slurm.end(several, at_once=at_once)
                several.clear()


def _has_ended(record: Mapping[str, Any]) -> bool:
    """Whether a task has come to its end for good.

    One that SIGTERM ended may be in the queue again: Slurm knows whether it was cancelled.
    """
    if record.get("state") != ENDED:
        return False
    return record["status"] == 0 or signal.SIGTERM not in record["told"]


class SlurmAttempt:
    """An attempt at a job as a task of a Slurm array.

    Attributes:
      job: what it is to do.
      handed: what Slurm calls it; None before it was handed in.
    """

    def __init__(self, job: Job, desk: JobSubmitter, handed: Handed | None) -> None:
        self.job = job
        self.handed = handed
        self._desk = desk
        self._over_since: float | None = None

    @property
    def standing(self) -> JobState:
        """How Slurm said that it stands."""
        assert self.handed is not None  # only what is under way has one
        return self._desk.slurm.standing(self.handed)

    def look(self) -> State:
        """How it stands; see Attempt.

        Raises:
          Left: the user has left.
          SlurmSilent: Slurm takes no jobs, and has none.
        """
        self._desk.turn()
        if self.handed is None or self.standing.state == "PENDING":
            return "placing"
        state = self._state(read_record(self.handed.record) or {})
        if not isinstance(state, str) or state == "refused":
            self._desk.forget(self)
        return state

    def _state(self, record: dict[str, Any]) -> State:
        if record.get("state") == REFUSED:
            return "refused"
        if _has_ended(record):
            return self._exit(record)
        if self._is_overdue(record):
            return self._exit(record) if record.get("state") == ENDED else self._lost(record)
        return "running" if record.get("state") == RUNNING else "placing"

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its processes; see Attempt."""
        self._desk.end(self, at_once=number == signal.SIGKILL)

    def _exit(self, record: dict[str, Any]) -> Exit:
        status = record["status"]
        if status == 0:
            return Exit(0)
        self._desk.slurm.ask()
        if self.standing.state == "CANCELLED" or signal.SIGINT in record["told"]:
            return Exit(status, _CANCELLED, is_told=True)
        return Exit(status, record["words"] or self._words())

    def _words(self) -> str:
        """Why the run failed: of several processes, the first that does not blame another one."""
        assert self.handed is not None  # it ran
        told = []
        for rank in range(self._desk.processes):
            record = read_record(of_rank(self.handed.record, rank))
            if record is not None and record.get("status"):
                log = of_rank(self.job.log, rank)
                told.append(last_words(log, after=record["log_at"], status=record["status"]))
        at_first = [words for words in told if not is_second_hand(words)]
        return [*at_first, *told][0]

    def _is_overdue(self, record: dict[str, Any]) -> bool:
        """Whether Slurm says that the task is over, and it would have told that itself by now."""
        if not self.standing.is_over:
            self._over_since = None
            return False
        if not record and self.standing.state == "CANCELLED":
            return True
        now = time.monotonic()
        self._over_since = self._over_since or now
        return now - self._over_since >= _GRACE

    def _lost(self, record: Mapping[str, Any]) -> Exit:
        """What came of a task that could not say it."""
        assert self.handed is not None  # it was over
        match self.standing.state:
            case "FAILED" | "COMPLETED" if record.get("state") == REQUEUED:
                # So it is where Slurm starts it again before the node has forgotten the last start.
                words = "went back to the queue, from where Slurm did not start it again"
                return Exit(1, words, is_lost=True)
            case "CANCELLED":
                return Exit(1, _CANCELLED, is_told=True)
            case "TIMEOUT":
                words = "its time in Slurm was over before it had saved: give more timeout_min."
                return Exit(1, words, is_lost=True)
            case "OUT_OF_MEMORY":
                return Exit(1, "out of memory, as Slurm counts it: give more mem_gb.")
            case "FAILED" | "COMPLETED":
                path = self._desk.slurm.output(self.handed)
                return Exit(1, last_words(path, after=0, status=1) if path.exists() else "failed")
            case state:
                return Exit(1, f"its node is gone: {state or 'Slurm knows it no more'}", True)


_PAUSE = 0.5  # seconds between two looks at the files of what runs
_NOTICE = 120  # seconds before its time is over in which a run saves
_FOLDER = "slurm"


@dataclass
class SlurmRunner:
    """Runs jobs on a Slurm cluster whose nodes all see the directory of the sweep.

    All points that are known at once are one job array. A run whose time is over, or that Slurm
    takes from its node, saves where it is and goes back to the queue; so no run is limited by
    `timeout_min`. This is no retry.

    What was handed in needs this process no more: when it ends, or its machine does, the same
    sweep follows the jobs again. `slurm/jobs.jsonl` in the directory of the sweep names them.

    Numbers depend in their last digits on how many threads and processes compute them.

    Attributes:
      jobs: points at a time.
      retries: how often a point is started anew that failed; each time it goes on from its newest
        checkpoint.
      partition: where to run; Slurm's default unless said.
      account: whom to charge.
      qos: the quality of service.
      timeout_min: minutes that a task has before it goes back to the queue.
      cpus: cores of each process, and its threads where OMP_NUM_THREADS does not say them.
      gpus: GPUs of each process.
      mem_gb: memory of each node; Slurm's default unless said.
      nodes: machines of a point.
      processes: those of a point on each node; each reads its own rows of a batch.
      extra: further options of sbatch in their long form, such as "--constraint=h100 --exclusive".

    Raises:
      ConfigError: one of these cannot be.
    """

    jobs: int = 1
    retries: int = 0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    timeout_min: int = 60
    cpus: int = 1
    gpus: int = 0
    mem_gb: float | None = None
    nodes: int = 1
    processes: int = 1
    extra: str | None = None
    _work: Work | None = field(default=None, init=False)
    _desk: JobSubmitter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name in ("jobs", "timeout_min", "cpus", "nodes", "processes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: Slurm needs at least 1.")
        if self.gpus < 0 or self.retries < 0:
            raise ConfigError(f"gpus={self.gpus}, retries={self.retries}: neither is below 0.")
        _options(self.extra)

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Runs all of them; False where the user left or stopped that.

        Of a sequence, all jobs are handed in at once; else each is asked for when there is a place
        for it, so that what came of earlier ones may decide which one it is.

        Ctrl-C, SIGTERM and SIGHUP leave what is in Slurm to itself. A second Ctrl-C within a few
        seconds lets each run save where it is and end, a third one ends them at once.

        Raises:
          ConfigError: submitit is not installed, there is no Slurm, or it takes no such jobs.
        """
        refuse_without_slurm()

        def desk_of(job: Job) -> JobSubmitter:
            self._desk = self._desk or self._opened(job.log.parent.parent, events)
            return self._desk

        def adopt(job: Job) -> Attempt | None:
            return desk_of(job).adopt(job)

        def leave() -> None:
            if self._desk is not None:
                self._desk.leave()

        self._desk = None
        self._work = Work(
            iter(jobs),
            lambda job, log, slot: desk_of(job).launch(job, log, slot),
            num_places=max(self.jobs, len(jobs)) if isinstance(jobs, Sequence) else self.jobs,
            retries=self.retries,
            events=events,
            adopt=adopt,
        )
        try:
            return self._work.run(pause=_PAUSE, leave=leave)
        except Left:
            return False
        finally:
            if self._desk is not None:
                self._desk.close()

    def end_early(self, job: Job) -> None:
        """Ends a job that is not worth going on with; it saves where it is."""
        if self._work is not None:
            self._work.end_early(job)

    def _opened(self, directory: Path, events: Events) -> JobSubmitter:
        return JobSubmitter(
            SlurmJobs(directory / _FOLDER, self.parameters),
            self._task,
            jobs=self.jobs,
            processes=self.nodes * self.processes,
            events=events,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """What submitit's executor is told of a job."""
        said = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}M",
            "gpus_per_node": self.gpus * self.processes or None,
        }
        notice = min(_NOTICE, 60 * self.timeout_min // 3)
        told = {"requeue": True, "signal": f"USR1@{notice}", **_options(self.extra)}
        return {name: value for name, value in said.items() if value is not None} | {
            "time": self.timeout_min,
            "nodes": self.nodes,
            "ntasks_per_node": self.processes,
            "cpus_per_task": self.cpus,
            # Since Slurm 22.05 srun does not ask for what its job has asked for.
            "srun_args": [f"--cpus-per-task={self.cpus}", "--kill-on-bad-exit=1"],
            "stderr_to_stdout": True,
            "additional_parameters": told,
        }

    def _task(self, job: Job, record: Path) -> Task:
        directory = job.directory.absolute()
        return Task(
            beginning=job.beginning,
            going_on=job.going_on,
            directory=directory,
            log=job.log.absolute(),
            record=record,
            environment={GROUP: directory.parent.name, "OMP_NUM_THREADS": str(self.cpus)},
            processes=self.nodes * self.processes,
        )


def _options(extra: str | None) -> dict[str, str | bool]:
    """Options of sbatch by their names.

    Raises:
      ConfigError: one of them is none.
    """
    options: dict[str, str | bool] = {}
    for word in shlex.split(extra or ""):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigError(
                f"extra={extra!r}: {word!r} is no option in its long form. Write each as "
                "--name=value, or as --name where it has none."
            )
        options[name] = value if equals else True
    return options
