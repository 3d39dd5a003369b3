"""What a task of a Slurm job does: it trains one point, and goes back to the queue when told.

It is pickled as it stands and loads the standard library alone, with submitit where a point has
several processes. What becomes of it stands in a file, for whoever looks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from types import FrameType
from typing import IO, Any

from fidgpt.files import lock
from fidgpt.sweep.runners.work import of_rank

RUNNING, REFUSED, REQUEUED, ENDED = "running", "refused", "requeued", "ended"
_TEMPORARY_FAILURE = 75  # as sysexits.h calls it
_PAUSE = 0.1  # seconds between two looks at the process
_MAX_IDLE = 3  # starts in a row without a step
_FOR_OTHERS = 20.0  # seconds that a failed process leaves to the first one, before Slurm ends all
_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class Task:
    """One point, as the processes of a Slurm job train it.

    SIGUSR1, which Slurm sends some time before the job's time is over, lets the run save where it
    is, and puts the job back into the queue, from where it goes on. So does SIGTERM as it comes
    before a preemption. SIGTERM as it comes from `scancel`, and SIGINT, end it for good.

    Attributes:
      beginning: the command from the first step.
      going_on: the command from the newest checkpoint.
      directory: the run directory.
      log: what takes the words of the process; those of further processes go into files beside.
      record: the file that says how the first process stands.
      environment: what the process gets where the job says nothing of it.
      processes: of the point, in all.
    """

    beginning: Sequence[str]
    going_on: Sequence[str]
    directory: Path
    log: Path
    record: Path
    environment: Mapping[str, str]
    processes: int

    def __call__(self) -> None:
        told: list[int] = []
        process: Popen[bytes] | None = None

        def heed(number: int, frame: FrameType | None) -> None:
            told.append(number)
            if process is not None:
                process.send_signal(signal.SIGTERM)

        for number in _HEEDED:
            signal.signal(number, heed)
        rank = int(os.environ.get("SLURM_PROCID", "0"))
        log = of_rank(self.log, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            if rank == 0 and (not lock(file) or (self.directory / "done.json").exists()):
                self._write(rank, REFUSED)
                sys.exit(_TEMPORARY_FAILURE)  # by which Slurm ends the other processes
            before = self._rows()
            self._write(rank, RUNNING, log_at=file.seek(0, os.SEEK_END))
            process = self._launch(file)
            if told:
                process.send_signal(signal.SIGTERM)
            while (status := process.poll()) is None:
                time.sleep(_PAUSE)
        if rank:
            self._leave(rank, status, told)
        elif status and _asks_for_requeue(told):
            self._requeue(status, told, is_idle=self._rows() <= before)
        else:
            self._end(status, told)

    def _launch(self, log: IO[bytes]) -> Popen[bytes]:
        if self.processes > 1:
            import submitit.helpers

            several = submitit.helpers.TorchDistributedEnvironment()
            several.export(set_cuda_visible_devices=False, overwrite=True)
        begun = (self.directory / "config.json").exists()
        return Popen(
            self.going_on if begun else self.beginning,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env={**self.environment, **os.environ},
            start_new_session=True,
        )

    def _leave(self, rank: int, status: int, told: Sequence[int]) -> None:
        """Ends a further process: Slurm ends all at a failure, and the first one is to tell it."""
        self._write(rank, ENDED, status=status)
        if status and not told:
            time.sleep(_FOR_OTHERS)
            sys.exit(1)

    def _requeue(self, status: int, told: Sequence[int], *, is_idle: bool) -> None:
        """Puts the job back into the queue, unless it gets nowhere."""
        idle = int((read_record(self.record) or {}).get("idle", 0)) + 1 if is_idle else 0
        if idle >= _MAX_IDLE:
            words = f"was taken from its node {idle} times before it had made a step"
            self._end(status, told, words=f"{words}: give it more time.")
        self._write(0, REQUEUED, idle=idle)
        said = subprocess.run(
            ["scontrol", "requeue", _job_id()], capture_output=True, text=True, check=False
        )
        if said.returncode:
            words = f"does not go back to the queue: {said.stderr.strip()}"
            self._end(status, told, words=words)
        sys.exit(0)

    def _end(self, status: int, told: Sequence[int], *, words: str = "") -> None:
        self._write(0, ENDED, status=status, told=list(told), words=words)
        if status:
            sys.exit(status if status > 0 else 128 - status)

    def _rows(self) -> int:
        """The size of what the run has written of its steps."""
        path = self.directory / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _write(self, rank: int, state: str, **facts: Any) -> None:
        """Says how a process stands; what was known before stays."""
        path = of_rank(self.record, rank)
        start = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        known = read_record(path) or {}
        text = json.dumps({**known, "state": state, "start": start, **facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, path)


def read_record(path: Path) -> dict[str, Any] | None:
    """What a process wrote of itself; None where it did not yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _asks_for_requeue(told: Sequence[int]) -> bool:
    """Whether signals mean that the job goes on later."""
    if signal.SIGINT in told:
        return False
    if signal.SIGUSR1 in told or signal.SIGUSR2 in told:
        return True
    return signal.SIGTERM in told and _is_running()


def _is_running() -> bool:
    """Whether Slurm calls this job a running one, as it does before a preemption.

    A job that was cancelled, or was put back already, is not.
    """
    asking = ["squeue", "--array", "--noheader", "--format=%T", f"--jobs={_job_id()}"]
    said = subprocess.run(asking, capture_output=True, text=True, check=False)
    return said.stdout.strip() == "RUNNING"


def _job_id() -> str:
    """What Slurm calls this job; by the other number of a task, its whole array may be meant."""
    told = os.environ
    if "SLURM_ARRAY_JOB_ID" in told:
        return f"{told['SLURM_ARRAY_JOB_ID']}_{told['SLURM_ARRAY_TASK_ID']}"
    return told["SLURM_JOB_ID"]
