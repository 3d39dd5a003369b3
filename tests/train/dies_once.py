"""The training command, in processes of a launcher: one does not survive the first start."""

import os
import signal
import sys
from pathlib import Path

from fidgpt.cli import train
from fidgpt.train import TrainStep

FLAG = "--run_dir="
DIES_AT = 5

launch = TrainStep.launch


def deadly(self, run, state, *batch, **options):
    """Launches steps, until process 1 gets to that step for the first time."""
    folder = Path(next(one for one in sys.argv if one.startswith(FLAG)).removeprefix(FLAG))
    if os.environ["RANK"] == "1" and state.step == DIES_AT and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return launch(self, run, state, *batch, **options)


def process(*flags: str) -> None:
    """Train, in one of the processes of a run."""
    sys.argv = [__file__, *flags]
    TrainStep.launch = deadly
    train.run()


if __name__ == "__main__":
    process(*sys.argv[1:])
