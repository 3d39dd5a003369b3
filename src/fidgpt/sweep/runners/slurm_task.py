"""The task of a Slurm job: trains one point, and returns to the queue when asked.

It is sent to the nodes by value, so it imports little but the standard library, with submitit for a
point of several processes. It writes its state to a file for those who watch.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from types import FrameType
from typing import IO, Any

from fidgpt.files import lock, read_json, write_whole
from fidgpt.sweep.runners.remote import failure_reason, of_rank

RUNNING, REFUSED, REQUEUED, ENDED = "running", "refused", "requeued", "ended"
_TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h
_PAUSE = 0.1  # seconds between two polls of the process
_MAX_IDLE = 3  # starts in a row without a step
_FOR_OTHERS = 20.0  # seconds that rank 0 has to report a failure before Slurm ends all processes
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


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
