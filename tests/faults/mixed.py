"""The command `sweep.py`, where toys stand in for the training of all points but a few."""

import os
import sys
from pathlib import Path

from faults import toy
from fidgpt.cli import sweep
from fidgpt.sweep import Job
from fidgpt.sweep.runners.slurm import SlurmRunner

SLURM_HERE = "SLURM_HERE"  # not SLURM_CONF, by which all is known that goes down with the node
_SECONDS = 0.4  # of a toy's step


def main(journal: str, real: str, *arguments: str) -> None:
    """Runs the command.

    Args:
      journal: where toys note their steps.
      real: the directories of the points that are trained, with commas.
      arguments: of the command.
    """
    names = real.split(",")
    trained = {
        name: getattr(Job, name).fget for name in ("command", "start_command", "resume_command")
    }

    def instead(name: str) -> property:
        def command(job: Job) -> list[str]:
            if job.directory.name in names:
                return trained[name](job)
            run = str(job.directory.absolute())
            return [sys.executable, str(Path(toy.__file__)), run, journal, str(_SECONDS)]

        return property(command)

    for name in trained:
        setattr(Job, name, instead(name))
    if conf := os.environ.get(SLURM_HERE):
        os.environ["SLURM_CONF"] = conf
    SlurmRunner.pause, SlurmRunner.interval = 0.05, 0.3  # seconds; a shared cluster is asked less
    SlurmRunner.grace, SlurmRunner.patience = 2.0, 0.5
    sys.argv = [sweep.__file__, *arguments]
    sweep.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
