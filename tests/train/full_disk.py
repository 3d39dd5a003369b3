"""Run by each of two processes: one cannot write its part of a checkpoint; both print errors."""

import errno
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fidgpt import parallel, train
from fidgpt.train.checkpoints import tensors


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main(run: Path) -> None:
    """Saves a sharded model, and then once more, when the disk of process 1 is full."""
    with parallel.DataParallel() as processes:
        model = nn.Linear(7, 5)
        fully_shard(model)
        parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "state": {}}
        checkpoints = train.Checkpoints(every=1, keep_last=1, writer=train.BackgroundWriter())
        checkpoints.save(run, step=1, **parts)
        checkpoints.wait()
        if processes.rank == 1:
            tensors.write_pieces = refuse
        try:
            checkpoints.save(run, step=2, **parts)
            checkpoints.wait()
        except (train.CheckpointError, parallel.ParallelError) as error:
            print(processes.rank, type(error).__name__, str(error).splitlines()[0], flush=True)
        processes.world.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
