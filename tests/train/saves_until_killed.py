"""Kills processes that save checkpoints and looks at what each one left: RUN_DIRECTORY KILLS."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.train.checkpoints import Checkpoints, newest_good, verify

CHECKPOINTS = Checkpoints(every=1, keep_last=2)


def save_for_ever(run: Path, report: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Saves each step twice, the second time over the first, and reports each step that is done."""
    step = newest_good(run) or 0
    while True:
        step += 1
        for attempt in (1, 2):
            CHECKPOINTS.save(
                run, step=step, model=model, optimizer=optimizer, state={"attempt": attempt}
            )
            os.write(report, step.to_bytes(8, "big"))


def kill_one(run: Path, delay: float, model: nn.Module, optimizer: Optimizer) -> bytes:
    """Starts a process, kills it `delay` seconds after its first save, returns what it reported."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(run, write, model, optimizer)
    os.close(write)
    reported = os.read(read, 8)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 4096):
        reported += more
    os.close(read)
    return reported


def main(run: Path, kills: int) -> None:
    """Prints how many kills fell into a save, and how many saves were whole."""
    torch.set_num_threads(1)
    model = nn.Linear(700, 700)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    nn.functional.mse_loss(model(torch.ones(700)), torch.zeros(700)).backward()
    optimizer.step()  # here, because the first step's imports take a second in every child
    delays = random.Random(0)
    interrupted = saves = 0
    for _ in range(kills):
        reported = kill_one(run, delays.uniform(0, 0.1), model, optimizer)
        last = int.from_bytes(reported[-8:], "big")
        left = list((run / "checkpoints").iterdir())
        for path in left:
            if path.name.startswith("step_"):
                verify(path)
        newest = newest_good(run)
        assert newest is not None and last <= newest <= last + 1, (last, newest, left)
        interrupted += any(path.name.startswith(".") for path in left)
        saves += len(reported) // 8
    print(interrupted, saves)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
