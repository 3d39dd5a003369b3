"""The parts of runners that execute on a cluster's nodes: a place of Ray, and a task of Slurm.

They are sent to the nodes by value, so they import little but the standard library, and no torch;
a task of several processes imports submitit.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from types import FrameType
from typing import IO, Any, NamedTuple

from fidgpt.files import lock, parse_json, read_json, write_whole

_MAX_WIDTH = 300
# How a process reports the failure of another process of its run.
_SECONDARY = ("process ", "processes ", "another process ")
RUNNING, REFUSED, REQUEUED, ENDED = "running", "refused", "requeued", "ended"
_TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h
_PAUSE = 0.1  # seconds between two polls of the process
_MAX_IDLE = 3  # starts in a row without a step
_FOR_OTHERS = 20.0  # seconds that rank 0 has to report a failure before Slurm ends all processes
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Tail:
    """Reads the rows that were added to a metrics file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the new rows; lines that are damaged or incomplete are skipped."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # truncated by a run that resumed
                    self._at = 0
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        rows: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                row = parse_json(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(row)
        return rows


def of_rank(path: Path, rank: int) -> Path:
    """Return the file of one of several processes; rank 0 uses the file of the point."""
    return path.with_suffix(f".{rank}{path.suffix}") if rank else path


def failure_reason(log: Path, *, start: int, status: int) -> str:
    """Return why a process ended, in a line.

    Args:
      log: its output.
      start: where its output begins in the log.
      status: its exit status, or the negative number of the signal that killed it.
    """
    if status < 0:
        is_known = -status in set(signal.Signals)
        return f"killed by {signal.Signals(-status).name if is_known else -status}"
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
    except OSError:  # the log was removed
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error:")]
    reason = lines[-1] if lines else f"exit status {status} without output"
    if errors:
        reason = " ".join(lines[errors[-1] :]).removeprefix("error:").strip()
    return reason if len(reason) <= _MAX_WIDTH else reason[: _MAX_WIDTH - 3] + "..."


def first_cause(reasons: Sequence[str]) -> str:
    """Return the first reason that does not blame another process of the run."""
    return next((reason for reason in reasons if not reason.startswith(_SECONDARY)), reasons[0])


class Claim(NamedTuple):
    """What a node offers a process that it will start.

    Attributes:
      log_start: where the output of the process begins in the log; None if the log is locked.
      node: the identity of the node.
      address: its address, at which other processes find it.
      port: a free port.
      gpus: the GPUs that the process may use.
    """

    log_start: int | None
    node: str
    address: str
    port: int
    gpus: Sequence[str]


class Place:
    """Runs one process on a node, under a keeper that ends it when this object is gone."""

    def __init__(self) -> None:
        self._log = -1
        self._keeper: Popen[bytes] | None = None

    def claim(self, log: str) -> Claim:
        """Lock the log for the process.

        Raises:
          OSError: this node cannot open the log.
        """
        import ray

        self._log = os.open(log, os.O_WRONLY | os.O_APPEND)
        start = os.lseek(self._log, 0, os.SEEK_END) if lock(self._log) else None
        if start is None:
            os.close(self._log)
        here = ray.get_runtime_context()
        gpus = here.get_accelerator_ids().get("GPU", [])
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return Claim(start, here.get_node_id(), ray.util.get_node_ip_address(), port, gpus)

    def launch(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> None:
        """Start the process, whose command includes its keeper.

        Raises:
          OSError: this node has no such directory or interpreter.
        """
        self._keeper = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=self._log, env=environment, cwd=directory
        )
        self._keeper.wait()  # for the first of its two processes, which exits at once
        os.close(self._log)

    def wait(self) -> int:
        """Return the exit status once the process ends."""
        assert self._keeper is not None and self._keeper.stdout is not None  # it was launched
        return int(self._keeper.stdout.read() or -signal.SIGKILL)  # a killed keeper writes nothing

    def send(self, number: int) -> None:
        """Send the process a signal, if it still runs."""
        assert self._keeper is not None and self._keeper.stdin is not None  # it was launched
        with contextlib.suppress(BrokenPipeError):
            os.write(self._keeper.stdin.fileno(), bytes([number]))


@dataclass
class Task:
    """One point, as the processes of a Slurm job train it.

    SIGUSR1, which Slurm sends before the job's time is over, lets the run save and returns the job
    to the queue, from where it continues. So does the SIGTERM of a preemption. The SIGTERM of
    `scancel`, and SIGINT, end it.

    Attributes:
      start_command: trains from the first step.
      resume_command: trains from the newest checkpoint.
      directory: the run directory.
      log: for the output of rank 0; other ranks use files beside it.
      record: the file for the state of rank 0; other ranks use files beside it.
      environment: defaults of environment variables.
      processes: of the point.
    """

    start_command: Sequence[str]
    resume_command: Sequence[str]
    directory: Path
    log: Path
    record: Path
    environment: Mapping[str, str]
    processes: int
    _signals: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        process: Popen[bytes] | None = None

        def forward(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)
            if process is not None:
                process.send_signal(signal.SIGTERM)

        for number in _HANDLED:
            signal.signal(number, forward)
        rank = int(os.environ.get("SLURM_PROCID", "0"))
        log, self.record = of_rank(self.log, rank), of_rank(self.record, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            if rank == 0 and (not lock(file) or (self.directory / "done.json").exists()):
                self._write(REFUSED)
                sys.exit(_TEMPORARY_FAILURE)  # upon which Slurm ends the other processes
            size, log_start = self._metrics_size(), file.seek(0, os.SEEK_END)
            self._write(RUNNING)
            process = self._launch(file)
            if self._signals:
                process.send_signal(signal.SIGTERM)
            while (status := process.poll()) is None:
                time.sleep(_PAUSE)
        reason = failure_reason(log, start=log_start, status=status) if status else ""
        if status and rank == 0 and self._is_requeued():
            reason = self._requeue(is_idle=self._metrics_size() <= size) or reason
        is_cancelled = signal.SIGINT in self._signals
        is_terminated = bool(status) and signal.SIGTERM in self._signals
        facts = {"is_cancelled": is_cancelled, "is_terminated": is_terminated}
        self._write(ENDED, status=status, reason=reason, **facts)
        if rank and self._signals:
            return  # a failure would end rank 0 before it has returned the job to the queue
        if rank and status:
            time.sleep(_FOR_OTHERS)
        if status:
            sys.exit(status if status > 0 else 128 - status)

    def _launch(self, log: IO[bytes]) -> Popen[bytes]:
        if self.processes > 1:
            import submitit.helpers

            distributed = submitit.helpers.TorchDistributedEnvironment()
            distributed.export(set_cuda_visible_devices=False, overwrite=True)
        is_begun = (self.directory / "config.json").exists()
        return Popen(
            self.resume_command if is_begun else self.start_command,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env={**self.environment, **os.environ},
            start_new_session=True,
        )

    def _is_requeued(self) -> bool:
        """Return whether the signals ask for the job to continue later."""
        if signal.SIGINT in self._signals:
            return False
        if {signal.SIGUSR1, signal.SIGUSR2} & {*self._signals}:
            return True
        # Before a preemption, the job still counts as running; one that was cancelled does not.
        query = ("squeue", "--array", "--noheader", "--format=%T", f"--jobs={_job_id()}")
        return signal.SIGTERM in self._signals and _slurm(*query).stdout.strip() == "RUNNING"

    def _requeue(self, *, is_idle: bool) -> str:
        """Return the job to the queue and exit; or return why that is not done."""
        idle = read_json(self.record).get("idle", 0) + 1 if is_idle else 0
        if idle >= _MAX_IDLE:
            return f"was taken from its node {idle} times before it made a step: give it more time."
        self._write(REQUEUED, idle=idle)
        done = _slurm("scontrol", "requeue", _job_id())
        if done.returncode == 0:
            sys.exit(0)
        return f"could not return to the queue: {done.stderr.strip()}"

    def _metrics_size(self) -> int:
        path = self.directory / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _write(self, state: str, **facts: Any) -> None:
        """Update the record of this process."""
        start, idle = os.environ.get("SLURM_RESTART_COUNT"), read_json(self.record).get("idle", 0)
        text = json.dumps({"state": state, "start": int(start or 0), "idle": idle, **facts})
        self.record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.record, text + "\n")


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _job_id() -> str:
    """Return the number of this job; in an array, the number of this task."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]
