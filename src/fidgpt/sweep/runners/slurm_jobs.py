"""The jobs of a sweep in Slurm: handed in as arrays, remembered in a file, looked at, ended."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fidgpt import files as locking
from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import slurm_task
from fidgpt.sweep.runners import work as tail
from fidgpt.sweep.runners.attempt import Job
from fidgpt.sweep.runners.slurm_task import Task

_BOOK = "jobs.jsonl"
_OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", ""}
_ORDINARY = {"BeginTime", "Cleaning", "JobArrayTaskLimit", "None", "Priority", "Resources", ""}
_ASKED = ("partition", "account", "qos", "time", "nodes", "ntasks_per_node", "cpus_per_task")
_ASKED += ("gpus_per_node", "mem")
_LARGEST = 1000  # tasks of an array, where Slurm does not say
_PATIENCE = 120.0  # seconds for an answer
_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
_SENT = (slurm_task, locking, tail)  # to the nodes, as they are


class SlurmSilent(ConfigError):
    """Slurm does not answer, or refuses."""


@dataclass(frozen=True)
class JobState:
    """How Slurm says that a job stands.

    Attributes:
      state: such as PENDING; "" where Slurm knows no such job.
      reason: why it waits.
    """

    state: str = ""
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in _OVER

    @property
    def is_held(self) -> bool:
        """Whether it waits for more than its turn, as for a person who mends something."""
        return self.state == "PENDING" and self.reason not in _ORDINARY


class Handed(NamedTuple):
    """A point that was handed in.

    Attributes:
      number: what Slurm calls it, such as 17_3.
      record: where its first process says how it stands.
    """

    number: str
    record: Path


class SlurmJobs:
    """What was handed in for a sweep, by this process or an earlier one.

    Args:
      folder: where its files lie, which all nodes see.
      parameters: what submitit's executor is told.

    Attributes:
      asked_at: when Slurm was asked last, in seconds of the monotonic clock.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.folder = folder.absolute()
        self.asked_at = float("-inf")
        self._parameters = parameters
        self._standings: dict[str, JobState] = {}
        self._numbers: dict[str, str] = {}  # of arrays, by the names that they were given

    def ask(self) -> None:
        """Asks Slurm how all jobs stand.

        Raises:
          SlurmSilent: it does not answer.
        """
        self.asked_at = time.monotonic()
        lines = _told("squeue", "--me", "--array", "--states=all", "-h", "-o%i|%T|%r|%j")
        rows = [line.split("|", 3) for line in lines if line.count("|") >= 3]
        self._standings = {number: JobState(state, why) for number, state, why, _ in rows}
        self._numbers = {name: number.partition("_")[0] for number, _, _, name in rows}

    def standing(self, handed: Handed) -> JobState:
        """How a job stood when Slurm was asked last."""
        return self._standings.get(handed.number, JobState())

    def known(self) -> dict[str, Handed]:
        """The newest job of every point, by fingerprint, those of earlier processes included.

        An array that was handed in by a process which died before it could write down the number
        is found by its name.
        """
        path = self.folder / _BOOK
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        known: dict[str, Handed] = {}
        for row in {row["name"]: row for row in map(json.loads, lines)}.values():
            number = row["number"] or self._numbers.get(row["name"])
            if number is not None:
                points = row["points"]
                several = self._handed(number, name=row["name"], count=len(points))
                known |= dict(zip(points, several, strict=True))
        return known

    def hand_in(
        self, jobs: Sequence[Job], task_of: Callable[[Job, Path], Task], *, at_a_time: int
    ) -> list[Handed]:
        """Hands jobs in as an array, of which so many run at a time.

        Raises:
          SlurmSilent: Slurm does not take it.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        name = f"{self.folder.parent.name}-{uuid.uuid4().hex[:8]}"
        points = [job.point.fingerprint for job in jobs]
        self._note(name, points, None)
        executor = submitit.SlurmExecutor(self.folder / "tasks")
        executor.update_parameters(**self._parameters, job_name=name, array_parallelism=at_a_time)
        tasks = [task_of(job, self._record(name, i)) for i, job in enumerate(jobs)]
        try:
            with as_they_are(), _outside_of_jobs(), _undisturbed():
                handed = executor.submit_array(tasks)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            asked = ", ".join(
                f"{key}={self._parameters[key]}" for key in _ASKED if key in self._parameters
            )
            raise SlurmSilent(
                f"Slurm does not take the jobs: {_words(str(error))}. They ask for {asked}; sinfo "
                "says what there is."
            ) from error
        number = handed[0].job_id.partition("_")[0]
        self._note(name, points, number)
        return self._handed(number, name=name, count=len(points))

    def _handed(self, number: str, *, name: str, count: int) -> list[Handed]:
        numbers = [f"{number}_{i}" for i in range(count)] if count > 1 else [number]
        return [Handed(one, self._record(name, i)) for i, one in enumerate(numbers)]

    def _record(self, name: str, index: int) -> Path:
        return self.folder / "records" / f"{name}-{index}.json"

    def _note(self, name: str, points: Sequence[str], number: str | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        row = {"name": name, "number": number, "points": list(points)}
        with (self.folder / _BOOK).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def output(self, handed: Handed) -> Path:
        """What a task itself wrote, and Slurm of it."""
        return self.folder / "tasks" / f"{handed.number}_0_log.out"

    def largest(self) -> int:
        """How many tasks an array may have."""
        with contextlib.suppress(SlurmSilent):
            for line in _told("scontrol", "show", "config"):
                if line.startswith("MaxArraySize"):
                    return max(1, int(line.rpartition("=")[2]) - 1)
        return _LARGEST

    def end(self, several: Sequence[Handed], *, at_once: bool) -> None:
        """Ends jobs: those that run save where they are first, unless it is to be at once."""
        for at in range(0, len(several), 100):
            some = [one.number for one in several[at : at + 100]]
            with contextlib.suppress(SlurmSilent):  # what is over already cannot be ended
                if at_once:
                    _told("scancel", *some)
                else:
                    _told("scancel", "--state=PENDING", *some)
                    _told("scancel", "--state=RUNNING", "--signal=INT", *some)
        self.asked_at = float("-inf")


def _told(*command: str) -> list[str]:
    """The lines that a command of Slurm's writes.

    Raises:
      SlurmSilent: it fails.
    """
    try:
        said = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
            start_new_session=True,  # Ctrl-C is for the sweep
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmSilent(f"{command[0]} does not answer: {error}") from error
    if said.returncode:
        raise SlurmSilent(f"{command[0]} failed: {_words(said.stderr)}")
    return said.stdout.splitlines()


def _words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines or ["without a word"])[-1].rpartition("error: ")[2]


def refuse_without_slurm() -> None:
    """Refuses where jobs cannot be handed in.

    Raises:
      ConfigError: submitit is not installed, or Slurm's commands are not.
    """
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError('to run on Slurm, install submitit: pip install "fidgpt[slurm]"')
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"there is no {missing[0]} on this machine: start the sweep where jobs are handed in "
            "to Slurm, such as the cluster's login node."
        )


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """While entered, tasks are pickled with their code, so that a node need not load all of it."""
    import cloudpickle

    for module in _SENT:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in _SENT:
            cloudpickle.unregister_pickle_by_value(module)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """While entered, Ctrl-C waits, for what is started meanwhile too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """While entered, what this process inherited of a job that it is part of is not passed on."""
    import submitit.helpers

    conf = os.environ.get("SLURM_CONF")
    with submitit.helpers.clean_env():
        if conf is not None:
            os.environ["SLURM_CONF"] = conf
        yield
