"""Running the points of a sweep on a Slurm cluster, as tasks of a job array."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners.attempt import Attempt
from fidgpt.sweep.runners.job import Events, Job
from fidgpt.sweep.runners.slurm_attempt import Desk, Left
from fidgpt.sweep.runners.slurm_jobs import SlurmJobs, refuse_without_slurm
from fidgpt.sweep.runners.slurm_task import Task
from fidgpt.sweep.runners.work import Work
from fidgpt.train.tracking.described import GROUP

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
    _desk: Desk | None = field(default=None, init=False)

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

        def desk_of(job: Job) -> Desk:
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

    def _opened(self, directory: Path, events: Events) -> Desk:
        return Desk(
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
