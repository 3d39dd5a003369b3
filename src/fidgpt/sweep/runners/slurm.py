"""Jobs on Slurm: submitted as arrays by submitit, followed by squeue and the files of tasks."""

import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from fidgpt import files
from fidgpt.data.errors import import_extra
from fidgpt.graph import ConfigError
from fidgpt.sweep.runners import remote
from fidgpt.sweep.runners.jobs import Events, Exit, Job, Runner, State
from fidgpt.train.estimates.summary_text import counted
from fidgpt.train.trackers.trackers import GROUP

_FOLDER, _BOOK = "slurm", "jobs.jsonl"
_NOTICE = 120  # seconds before its time is over in which a run saves
_MAX_TASKS = 1000  # of an array: Slurm's default limit
_ANSWER = 120.0  # seconds for a command of Slurm
_COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
_OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", ""}
_ORDINARY = {"BeginTime", "Cleaning", "JobArrayTaskLimit", "None", "Priority", "Resources", ""}
BY_VALUE = (files, remote)  # modules that nodes need not import


class SlurmError(ConfigError):
    """A command of Slurm failed or did not answer."""


class JobState(NamedTuple):
    """The state of a job in Slurm.

    Attributes:
      state: such as PENDING; "" if Slurm knows no such job.
      reason: why it waits.
      number: of the job, such as 17_3.
    """

    state: str = ""
    reason: str = ""
    number: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it waits for more than its turn, such as an administrator."""
        return self.state == "PENDING" and self.reason not in _ORDINARY


@dataclass(eq=False)
class SlurmAttempt:
    """An attempt at a job as a task of a Slurm array.

    Attributes:
      job: the job.
      runner: submits it, and knows its state.
      name: of the array, and its index in it.
    """

    job: Job
    runner: "SlurmRunner"
    name: str = ""
    _over_since: float | None = None

    @property
    def folder(self) -> Path:
        """The folder for all that concerns Slurm, which all nodes see."""
        return self.job.log.parent.parent.absolute() / _FOLDER

    @property
    def record(self) -> Path:
        """The file in which its first process records its state."""
        return self.folder / "records" / f"{self.name}.json"

    @property
    def state(self) -> JobState:
        """Its state when Slurm was asked last."""
        return self.runner.states.get(self.name, JobState())

    def poll(self) -> State:
        """Return its state; see Attempt.

        Raises:
          SlurmError: Slurm accepts no jobs, and has none.
        """
        self.runner.update()
        if self not in self.runner.active or self.state.state == "PENDING":
            return "pending"
        record = files.read_json(self.record)
        if record.get("state") == remote.REFUSED:
            state: State = "refused"
        elif has_ended(record) or self._is_overdue(record):
            state = self._exit(record)
        else:
            return "running" if record.get("state") == remote.RUNNING else "pending"
        self.runner.active.remove(self)
        return state

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its processes; see Attempt."""
        self.runner.end(self, at_once=number == signal.SIGKILL)

    def _is_overdue(self, record: Mapping[str, Any]) -> bool:
        """Return whether the task is over, and would have recorded its end by now."""
        if self.state.state not in _OVER:
            self._over_since = None
            return False
        if self.state.state == "CANCELLED" and record.get("state") != remote.RUNNING:
            return True
        now = time.monotonic()
        self._over_since = self._over_since or now
        return now - self._over_since >= self.runner.grace

    def _exit(self, record: Mapping[str, Any]) -> Exit:
        """Return how a task ended, from its record, or from Slurm if it could not write one."""
        status = record.get("status", 1)
        if status == 0:
            return Exit(0)
        if self.state.state == "CANCELLED" or record.get("is_cancelled"):
            return Exit(status, "cancelled in Slurm", is_cancelled=True)
        if record.get("state") == remote.ENDED:
            ranks = range(self.runner.num_processes)
            records = [files.read_json(remote.of_rank(self.record, rank)) for rank in ranks]
            reasons = [record.get("reason", "") for record in records if record.get("status")]
            return Exit(status, remote.first_cause(reasons))
        match self.state.state:
            case "FAILED" | "COMPLETED" if record.get("state") == remote.REQUEUED:
                # Slurm may start it again before the node has forgotten the last start.
                reason = "returned to the queue, but Slurm did not restart it"
                return Exit(1, reason, is_lost=True)
            case "FAILED" | "COMPLETED":
                output = self.folder / "tasks" / f"{self.state.number}_0_log.out"
                return Exit(1, remote.failure_reason(output, start=0, status=1))
            case "TIMEOUT":
                reason = "it ran out of time before it had saved: increase timeout_min."
                return Exit(1, reason, is_lost=True)
            case "OUT_OF_MEMORY":
                return Exit(1, "out of memory, as Slurm counts it: increase mem_gb.")
            case state:
                return Exit(1, f"its node is gone: {state or 'unknown to Slurm'}", True)


def has_ended(record: Mapping[str, Any]) -> bool:
    """Return whether a task has ended for good.

    One that SIGTERM ended may be in the queue again: Slurm knows whether it was cancelled.
    """
    return record.get("state") == remote.ENDED and not record.get("is_terminated")


def _names_of_points(path: Path) -> dict[str, str]:
    """Return the newest task of each point, by fingerprint, of earlier processes."""
    lines = files.read_bytes(path).splitlines() if path.exists() else []
    rows = map(files.parse_json, lines)
    return {point: f"{row['name']}-{i}" for row in rows for i, point in enumerate(row["points"])}


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

    pause: ClassVar[float] = 0.5
    patience: ClassVar[float | None] = 5.0
    interval: ClassVar[float] = 10.0  # seconds between two queries of Slurm, which serves many
    grace: ClassVar[float] = 30.0  # seconds in which a shared file system shows the last writes

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; see Runner. All jobs of a sequence are submitted at once.

        Ctrl-C, SIGTERM and SIGHUP leave jobs to Slurm. A second Ctrl-C within a few seconds lets
        each run save and exit, a third one ends them at once.

        Raises:
          DataError: submitit is not installed.
          ConfigError: there is no Slurm, or it accepts no such jobs.
        """
        import_extra("submitit", extra="slurm", purpose="a sweep on Slurm")
        if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
            raise ConfigError(
                f"there is no {missing[0]} on this machine: start the sweep where jobs are "
                "submitted to Slurm, such as the cluster's login node."
            )
        import cloudpickle

        for module in BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        self._events = events
        self.active: list[SlurmAttempt] = []
        self.states: dict[str, JobState] = {}  # by the name of the array and the index in it
        self._waiting: list[SlurmAttempt] = []
        self._ending: dict[bool, list[str]] = {False: [], True: []}  # numbers, by whether at once
        self._shown: set[str] = set()
        self._earlier = functools.cache(_names_of_points)
        self._refresh()
        try:
            return super().run(jobs, events)
        finally:
            self.close()

    def num_slots(self, jobs: Iterable[Job | None]) -> int:
        """Return the number of attempts at a time, most of which may wait in Slurm."""
        return max(self.jobs, len(jobs)) if isinstance(jobs, Sequence) else self.jobs

    def _refresh(self) -> None:
        self._refreshed_at = time.monotonic()
        lines = _run("squeue", "--me", "--array", "--states=all", "-h", "-o%i|%T|%r|%j")
        self.states = {}
        for number, state, reason, name in (line.split("|", 3) for line in lines):
            index = number.partition("_")[2] or "0"
            self.states[f"{name}-{index}"] = JobState(state, reason, number)

    def adopt(self, job: Job) -> SlurmAttempt | None:
        """Return the attempt of an earlier process, if it is active or finished; see Runner."""
        attempt = SlurmAttempt(job, self)
        name = self._earlier(attempt.folder / _BOOK).pop(job.point.fingerprint, None)
        if name is None:
            return None
        attempt.name = name
        record = files.read_json(attempt.record)
        is_over = record.get("state") == remote.REFUSED or has_ended(record)
        if (is_over or attempt.state.state in _OVER) and record.get("status") != 0:
            return None
        self.active.append(attempt)
        return attempt

    def launch(self, job: Job, log: IO[bytes], slot: int) -> SlurmAttempt:
        """Submit a job at the next update, together with others; see Runner."""
        self._waiting.append(attempt := SlurmAttempt(job, self))
        return attempt

    def update(self) -> None:
        """Cancel, submit and look up the jobs that are due.

        Raises:
          SlurmError: Slurm accepts no jobs, and has none.
        """
        self.close()
        try:
            room = self.jobs - len(self.active) if self.active else _MAX_TASKS
            if some := self._waiting[: max(0, room)]:
                self._submit(some)
            if time.monotonic() - self._refreshed_at > self.interval:
                self._refresh()
        except SlurmError as error:
            if not self.active:
                raise
            self._show_once(f"{error} It will be retried.")
        for active in self.active:
            if active.state.is_held:
                self._show_once(f"Slurm holds {active.job.point.name} back: {active.state.reason}.")

    def _submit(self, some: Sequence[SlurmAttempt]) -> None:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        folder = some[0].folder
        name = f"{folder.parent.name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        row = {"name": name, "points": [attempt.job.point.fingerprint for attempt in some]}
        with (folder / _BOOK).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        executor = submitit.SlurmExecutor(folder / "tasks")
        executor.update_parameters(**self.parameters, job_name=name, array_parallelism=self.jobs)
        for i, attempt in enumerate(some):
            attempt.name = f"{name}-{i}"
        tasks = [self.task(attempt.job, attempt.record) for attempt in some]
        try:
            with _outside_of_jobs():
                submitted = executor.submit_array(tasks)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise SlurmError(
                f"Slurm rejected the jobs: {_last_error(str(error))}. sinfo shows what there is."
            ) from error
        self.active += some
        del self._waiting[: len(some)]
        number = submitted[0].job_id.partition("_")[0]
        self._events.log(f"In Slurm as job {number}: {counted(len(some), 'point')}.")
        self._refresh()

    def _show_once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._events.log(text)

    def end(self, attempt: SlurmAttempt, *, at_once: bool) -> None:
        """End an attempt at the next update."""
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        elif attempt.state.number:
            self._ending[at_once].append(attempt.state.number)

    def close(self) -> None:
        """Cancel the jobs to end: running jobs save first, unless they end at once."""
        for at_once, numbers in self._ending.items():
            if not numbers:
                continue
            with contextlib.suppress(SlurmError):  # some may be over already
                if at_once:
                    _run("scancel", *numbers)
                else:
                    _run("scancel", "--state=PENDING", *numbers)
                    _run("scancel", "--state=RUNNING", "--signal=INT", *numbers)
            numbers.clear()
            self._refreshed_at = float("-inf")

    @property
    def num_processes(self) -> int:
        """The processes of a point."""
        return self.nodes * self.processes

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of submitit's executor."""
        notice = min(_NOTICE, 60 * self.timeout_min // 3)
        parameters = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "mem": None if self.mem_gb is None else f"{round(self.mem_gb * 1024)}M",
            "gpus_per_node": self.gpus * self.processes or None,
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
        return {name: value for name, value in parameters.items() if value is not None}

    def task(self, job: Job, record: Path) -> remote.Task:
        """Return the task of a job, which records its state in a file."""
        directory = job.directory.absolute()
        return remote.Task(
            start_command=job.start_command,
            resume_command=job.resume_command,
            directory=directory,
            log=job.log.absolute(),
            record=record,
            environment={GROUP: directory.parent.name, "OMP_NUM_THREADS": str(self.cpus)},
            processes=self.num_processes,
        )


def _options(extra: str | None) -> dict[str, str | bool]:
    """Parse options of sbatch in their long form."""
    options: dict[str, str | bool] = {}
    for word in shlex.split(extra or ""):
        name, equals, value = word.removeprefix("--").partition("=")
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
            check=True,
            timeout=_ANSWER,
            start_new_session=True,  # Ctrl-C is for the sweep
        )
    except subprocess.CalledProcessError as error:
        raise SlurmError(f"{command[0]} failed: {_last_error(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} does not answer: {error}") from error
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
