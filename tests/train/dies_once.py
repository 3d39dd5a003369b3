"""Run as torchrun runs it: the training command, whose first start one process does not survive."""

import os
import signal
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

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
    # What torchrun does, but with forks, which have imported torch.
    config = LaunchConfig(
        *(1, 1, 2),  # nodes, and processes on each
        max_restarts=1,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
    )
    elastic_launch(config, process)(*sys.argv[1:])
