"""Jobs on Slurm: submitted as arrays by submitit, followed by squeue and the files of tasks."""

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from fidgpt import files
from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import remote, slurm_task
from fidgpt.sweep.runners.jobs import Events, Exit, Job, Runner, State
from fidgpt.sweep.runners.slurm_task import ENDED, REFUSED, REQUEUED, RUNNING, Task, read_record
from fidgpt.train.trackers.background import GROUP

_FOLDER, _BOOK = "slurm", "jobs.jsonl"
_NOTICE = 120  # seconds before its time is over in which a run saves
_MAX_TASKS = 1000  # of an array: Slurm's default limit
_ANSWER = 120.0  # seconds for a command of Slurm
_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
_CANCELLED = "cancelled in Slurm"
_OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", ""}
_ORDINARY = {"BeginTime", "Cleaning", "JobArrayTaskLimit", "None", "Priority", "Resources", ""}
_SHOWN = {"partition", "account", "qos", "time", "nodes", "cpus_per_task", "gpus_per_node", "mem"}
BY_VALUE = (slurm_task, files, remote)  # modules that nodes need not import


class SlurmError(ConfigError):
    """A command of Slurm failed or did not answer."""


class Left(Exception):
    """The user has left; jobs in Slurm continue."""


class JobState(NamedTuple):
    """The state of a job in Slurm.

    Attributes:
      state: such as PENDING; "" if Slurm knows no such job.
      reason: why it waits.
    """

    state: str = ""
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER

    @property
    def is_held(self) -> bool:
        """Whether it waits for more than its turn, such as an administrator."""
        return self.state == "PENDING" and self.reason not in _ORDINARY


@dataclass
class SlurmAttempt:
    """An attempt at a job as a task of a Slurm array.

    Attributes:
      job: the job.
      submitter: submits it, and knows its state.
      number: of the task, such as 17_3; "" before it is submitted.
      record: the file in which its first process records its state.
    """

    job: Job
    submitter: "JobSubmitter"
    number: str = ""
    record: Path = Path()
    _over_since: float | None = None

    @property
    def state(self) -> JobState:
        """Its state when Slurm was asked last."""
        return self.submitter.states.get(self.number, JobState())

    def poll(self) -> State:
        """Return its state; see Attempt.

        Raises:
          Left: the user has left.
          SlurmError: Slurm accepts no jobs, and has none.
        """
        self.submitter.update()
        if not self.number or self.state.state == "PENDING":
            return "pending"
        record = read_record(self.record) or {}
        state: State = "running" if record.get("state") == RUNNING else "pending"
        if record.get("state") == REFUSED:
            state = "refused"
        elif has_ended(record) or self._is_overdue(record):
            state = self._exit(record) if record.get("state") == ENDED else self._lost(record)
        if state == "refused" or isinstance(state, Exit):
            self.submitter.active.remove(self)
        return state

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its processes; see Attempt."""
        self.submitter.end(self, at_once=number == signal.SIGKILL)

    def _is_overdue(self, record: Mapping[str, Any]) -> bool:
        """Return whether the task is over, and would have recorded its end by now."""
        if not self.state.is_over:
            self._over_since = None
            return False
        if not record and self.state.state == "CANCELLED":
            return True
        now = time.monotonic()
        self._over_since = self._over_since or now
        return now - self._over_since >= self.submitter.runner.grace

    def _exit(self, record: Mapping[str, Any]) -> Exit:
        status = record["status"]
        if status == 0:
            return Exit(0)
        self.submitter.refresh()
        if self.state.state == "CANCELLED" or signal.SIGINT in record["told"]:
            return Exit(status, _CANCELLED, is_cancelled=True)
        if record["words"]:
            return Exit(status, record["words"])
        reasons = []
        for rank in range(self.submitter.runner.num_processes):
            one = read_record(remote.of_rank(self.record, rank)) or {}
            if one.get("status"):
                log = remote.of_rank(self.job.log, rank)
                reason = remote.failure_reason(log, start=one["log_at"], status=one["status"])
                reasons.append(reason)
        return Exit(status, remote.first_cause(reasons))

    def _lost(self, record: Mapping[str, Any]) -> Exit:
        """Return the exit of a task that could not record it."""
        match self.state.state:
            case "CANCELLED":
                return Exit(1, _CANCELLED, is_cancelled=True)
            case "FAILED" | "COMPLETED" if record.get("state") == REQUEUED:
                # Slurm may start it again before the node has forgotten the last start.
                reason = "returned to the queue, from where Slurm did not start it again"
                return Exit(1, reason, is_lost=True)
            case "FAILED" | "COMPLETED":
                output = self.submitter.folder / "tasks" / f"{self.number}_0_log.out"
                return Exit(1, remote.failure_reason(output, start=0, status=1))
            case "TIMEOUT":
                reason = "its time in Slurm was over before it had saved: give more timeout_min."
                return Exit(1, reason, is_lost=True)
            case "OUT_OF_MEMORY":
                return Exit(1, "out of memory, as Slurm counts it: give more mem_gb.")
            case state:
                return Exit(1, f"its node is gone: {state or 'Slurm no longer knows it'}", True)


def has_ended(record: Mapping[str, Any]) -> bool:
    """Return whether a task has ended for good.

    One that SIGTERM ended may be in the queue again: Slurm knows whether it was cancelled.
    """
    if record.get("state") != ENDED:
        return False
    return record["status"] == 0 or signal.SIGTERM not in record["told"]


class JobSubmitter:
    """Submits jobs in arrays, and asks Slurm about all of them at once, now and then.

    Args:
      runner: its settings.
      folder: where its files lie, which all nodes see.
      events: shows what a user may want to know.

    Attributes:
      active: the attempts that were submitted.
      states: of all jobs in Slurm, by their numbers.
    """

    def __init__(self, runner: "SlurmRunner", folder: Path, events: Events) -> None:
        self.runner = runner
        self.folder = folder.absolute()
        self.active: list[SlurmAttempt] = []
        self.states: dict[str, JobState] = {}
        self._events = events
        self._waiting: list[SlurmAttempt] = []
        self._ending: dict[bool, list[str]] = {False: [], True: []}  # numbers, by whether at once
        self._refreshed_at = float("-inf")
        self._leaves_at: float | None = None
        self._is_left = False
        self._shown: set[str] = set()
        self._earlier = self._earlier_tasks(self.refresh())

    def refresh(self) -> dict[str, str]:
        """Ask Slurm for the states of all jobs; returns the numbers of arrays by their names.

        Raises:
          SlurmError: Slurm does not answer.
        """
        self._refreshed_at = time.monotonic()
        lines = _run("squeue", "--me", "--array", "--states=all", "-h", "-o%i|%T|%r|%j")
        rows = [line.split("|", 3) for line in lines if line.count("|") >= 3]
        self.states = {number: JobState(state, why) for number, state, why, _ in rows}
        return {name: number.partition("_")[0] for number, _, _, name in rows}

    def _earlier_tasks(self, numbers: Mapping[str, str]) -> dict[str, tuple[str, Path]]:
        """Return the newest task of each point, by fingerprint, of earlier processes.

        An array whose submitter died before it recorded the number is found by its name.
        """
        path = self.folder / _BOOK
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rows = {row["name"]: row for row in map(json.loads, lines)}
        known: dict[str, tuple[str, Path]] = {}
        for name, row in rows.items():
            if number := row["number"] or numbers.get(name):
                known |= dict(
                    zip(row["points"], self._tasks(number, name, row["points"]), strict=True)
                )
        return known

    def _tasks(self, number: str, name: str, points: Sequence[str]) -> list[tuple[str, Path]]:
        """Return the number and the record of each task of an array."""
        several = len(points) > 1
        return [
            (f"{number}_{i}" if several else number, self._record(name, i))
            for i in range(len(points))
        ]

    def _record(self, name: str, index: int) -> Path:
        return self.folder / "records" / f"{name}-{index}.json"

    def adopt(self, job: Job) -> SlurmAttempt | None:
        """Return the attempt that an earlier process submitted, if it is active or finished."""
        if (task := self._earlier.pop(job.point.fingerprint, None)) is None:
            return None
        attempt = SlurmAttempt(job, self, *task)
        record = read_record(attempt.record) or {}
        is_over = attempt.state.is_over or record.get("state") == REFUSED or has_ended(record)
        if is_over and record.get("status") != 0:
            return None
        self.active.append(attempt)
        return attempt

    def submit(self, job: Job) -> SlurmAttempt:
        """Submit a job at the next update, together with others."""
        self._waiting.append(attempt := SlurmAttempt(job, self))
        return attempt

    def update(self) -> None:
        """Do what is due.

        Raises:
          Left: the user has left, and has not come back.
          SlurmError: Slurm accepts no jobs, and has none.
        """
        if self._leaves_at is not None:
            if time.monotonic() < self._leaves_at:
                return
            self._is_left = True
            raise Left
        self.close()
        try:
            room = self.runner.jobs - len(self.active) if self.active else _MAX_TASKS
            if some := self._waiting[: max(0, room)]:
                self._submit(some)
            if time.monotonic() - self._refreshed_at > self.runner.interval:
                self.refresh()
        except SlurmError as error:
            if not self.active:
                raise
            self._show_once(f"{error} It is tried again.")
        for one in self.active:
            if one.state.is_held:
                self._show_once(f"Slurm holds {one.job.point.name} back: {one.state.reason}.")

    def _submit(self, some: Sequence[SlurmAttempt]) -> None:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        name = f"{self.folder.parent.name}-{uuid.uuid4().hex[:8]}"
        points = [one.job.point.fingerprint for one in some]
        self._note(name, points, None)
        executor = submitit.SlurmExecutor(self.folder / "tasks")
        parameters = self.runner.parameters
        executor.update_parameters(**parameters, job_name=name, array_parallelism=self.runner.jobs)
        tasks = [self.runner.task(one.job, self._record(name, i)) for i, one in enumerate(some)]
        try:
            with _outside_of_jobs():
                submitted = executor.submit_array(tasks)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            shown = [f"{key}={value}" for key, value in parameters.items() if key in _SHOWN]
            raise SlurmError(
                f"Slurm does not accept the jobs: {_last_error(str(error))}. They ask for "
                f"{', '.join(shown)}; sinfo shows what there is."
            ) from error
        number = submitted[0].job_id.partition("_")[0]
        self._note(name, points, number)
        for one, task in zip(some, self._tasks(number, name, points), strict=True):
            one.number, one.record = task
        self.active += some
        del self._waiting[: len(some)]
        self._events.log(
            f"In Slurm as job {number}: {len(some)} point{'' if len(some) == 1 else 's'}."
        )
        self.refresh()

    def _note(self, name: str, points: Sequence[str], number: str | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        row = {"name": name, "number": number, "points": list(points)}
        with (self.folder / _BOOK).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _show_once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._events.log(text)

    def leave(self) -> None:
        """Leave jobs to Slurm, unless a further signal comes soon."""
        self._leaves_at = time.monotonic() + self.runner.patience
        self._events.log(
            "Leaving: jobs in Slurm continue, and the same command follows them again. Press again "
            f"within {self.runner.patience:.0f} seconds to let each run save and exit."
        )

    def end(self, attempt: SlurmAttempt, *, at_once: bool) -> None:
        """End an attempt at the next update; not after the user has left."""
        if self._is_left:
            return
        self._leaves_at = None
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        elif attempt.number:
            self._ending[at_once].append(attempt.number)

    def close(self) -> None:
        """Cancel what is to be ended: running jobs save first, unless it is at once."""
        for at_once, numbers in self._ending.items():
            while numbers:
                some = numbers[:100]
                del numbers[:100]
                with contextlib.suppress(SlurmError):  # some may be over already
                    if at_once:
                        _run("scancel", *some)
                    else:
                        _run("scancel", "--state=PENDING", *some)
                        _run("scancel", "--state=RUNNING", "--signal=INT", *some)
                self._refreshed_at = float("-inf")


@dataclass
class SlurmRunner(Runner):
    """Runs jobs on a Slurm cluster whose nodes all see the directory of the sweep.

    All points that are known at once are one job array. A run whose time is over, or that Slurm
    takes from its node, saves and returns to the queue; so `timeout_min` limits no run. This does
    not count as a retry.

    Submitted jobs do not need this process: when it ends, or its machine does, the same sweep
    follows them again. `slurm/jobs.jsonl` in the directory of the sweep names them.

    The last digits of numbers depend on the number of threads and processes.

    Attributes:
      jobs: points at a time.
      retries: how often a point that failed is retried, from its newest checkpoint.
      partition: where to run; defaults to Slurm's default.
      account: whom to charge.
      qos: the quality of service.
      timeout_min: minutes of a task before it returns to the queue.
      cpus: cores of each process, and its threads unless OMP_NUM_THREADS is set.
      gpus: GPUs of each process.
      mem_gb: memory of each node; defaults to Slurm's default.
      nodes: machines of a point.
      processes: of a point on each node; each reads its own rows of a batch.
      extra: further options of sbatch in their long form, such as "--constraint=h100 --exclusive".

    Raises:
      ConfigError: one of these is invalid.
    """

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
    _submitter: JobSubmitter | None = field(default=None, init=False, repr=False)
    _events: Events | None = field(default=None, init=False, repr=False)

    pause: ClassVar[float] = 0.5
    leaves: ClassVar[bool] = True
    interval: ClassVar[float] = 10.0  # seconds between two queries of Slurm, which serves many
    grace: ClassVar[float] = 30.0  # seconds in which a shared file system shows the last writes
    patience: ClassVar[float] = 5.0  # seconds in which a second signal ends the jobs

    def __post_init__(self) -> None:
        for name in ("jobs", "timeout_min", "cpus", "nodes", "processes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.gpus < 0 or self.retries < 0:
            raise ConfigError(f"gpus={self.gpus}, retries={self.retries} must be at least 0.")
        _options(self.extra)

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; see Runner. All jobs of a sequence are submitted at once.

        Ctrl-C, SIGTERM and SIGHUP leave jobs to Slurm. A second Ctrl-C within a few seconds lets
        each run save and exit, a third one ends them at once.

        Raises:
          ConfigError: submitit is not installed, there is no Slurm, or it accepts no such jobs.
        """
        if importlib.util.find_spec("submitit") is None:
            raise ConfigError('to run on Slurm, install submitit: pip install "fidgpt[slurm]"')
        if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
            raise ConfigError(
                f"there is no {missing[0]} on this machine: start the sweep where jobs are "
                "submitted to Slurm, such as the cluster's login node."
            )
        import cloudpickle

        for module in BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        self._submitter, self._events = None, events
        try:
            return super().run(jobs, events)
        except Left:
            return False
        finally:
            if self._submitter is not None:
                self._submitter.close()

    def num_slots(self, jobs: Iterable[Job | None]) -> int:
        """Return the number of attempts at a time, most of which may wait in Slurm."""
        return max(self.jobs, len(jobs)) if isinstance(jobs, Sequence) else self.jobs

    def launch(self, job: Job, log: IO[bytes], slot: int) -> SlurmAttempt:
        """Submit a job; see Runner."""
        return self._submitter_of(job).submit(job)

    def adopt(self, job: Job) -> SlurmAttempt | None:
        """Return the attempt that an earlier process submitted; see Runner."""
        return self._submitter_of(job).adopt(job)

    def leave(self) -> None:
        """Leave jobs to Slurm; see Runner."""
        if self._submitter is not None:
            self._submitter.leave()

    def _submitter_of(self, job: Job) -> JobSubmitter:
        if self._submitter is None:
            assert self._events is not None  # it was run
            self._submitter = JobSubmitter(self, job.log.parent.parent / _FOLDER, self._events)
        return self._submitter

    @property
    def num_processes(self) -> int:
        """The processes of a point."""
        return self.nodes * self.processes

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of submitit's executor."""
        optional = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}M",
            "gpus_per_node": self.gpus * self.processes or None,
        }
        notice = min(_NOTICE, 60 * self.timeout_min // 3)
        return {name: value for name, value in optional.items() if value is not None} | {
            "time": self.timeout_min,
            "nodes": self.nodes,
            "ntasks_per_node": self.processes,
            "cpus_per_task": self.cpus,
            # Since Slurm 22.05 srun does not inherit this from its job.
            "srun_args": [f"--cpus-per-task={self.cpus}", "--kill-on-bad-exit=1"],
            "stderr_to_stdout": True,
            "additional_parameters": {
                "requeue": True,
                "signal": f"USR1@{notice}",
                **_options(self.extra),
            },
        }

    def task(self, job: Job, record: Path) -> Task:
        """Return the task of a job, which records its state in a file."""
        directory = job.directory.absolute()
        return Task(
            start_command=job.start_command,
            resume_command=job.resume_command,
            directory=directory,
            log=job.log.absolute(),
            record=record,
            environment={GROUP: directory.parent.name, "OMP_NUM_THREADS": str(self.cpus)},
            processes=self.num_processes,
        )


def _options(extra: str | None) -> dict[str, str | bool]:
    """Parse options of sbatch.

    Raises:
      ConfigError: one of them is malformed.
    """
    options: dict[str, str | bool] = {}
    for word in shlex.split(extra or ""):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigError(
                f"extra={extra!r}: {word!r} is not an option in its long form. Write each as "
                "--name=value, or as --name if it has no value."
            )
        options[name] = value if equals else True
    return options


def _run(*command: str) -> list[str]:
    """Return the lines that a command of Slurm prints.

    Raises:
      SlurmError: it fails.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER,
            start_new_session=True,  # Ctrl-C is for the sweep
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} does not answer: {error}") from error
    if done.returncode:
        raise SlurmError(f"{command[0]} failed: {_last_error(done.stderr)}")
    return done.stdout.splitlines()


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines or ["no output"])[-1].rpartition("error: ")[2]


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """While entered, what sbatch starts inherits nothing of this process's job, and no Ctrl-C."""
    import submitit.helpers

    conf = os.environ.get("SLURM_CONF")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with submitit.helpers.clean_env():
            if conf is not None:
                os.environ["SLURM_CONF"] = conf
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
