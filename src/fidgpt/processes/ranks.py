"""Processes for checks: some that are forked and compute on this machine's CPUs, or fake ones."""

import datetime
import gc
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes


class RanksError(RuntimeError):
    """A process failed, or the processes wait for each other; the message has the reason."""


def run_ranks(number: int, function: Callable[[], Any], *, seconds: float = 110.0) -> list[Any]:
    """Call a function in so many processes that share a process group; return what each returns.

    The processes are forked, so that they have what this one has imported and built; torch does not
    allow that after a backward pass in this one. Each computes with one thread.

    Args:
      number: of processes.
      function: called in each of them; what it returns is pickled.
      seconds: after which processes that wait are ended.

    Raises:
      RanksError: one of them failed or ended, or they take longer.
    """
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        # Python warns of threads, such as torch's pool, which children with one thread do not use.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        folder, deadline = Path(name), time.monotonic() + seconds
        gc.freeze()
        arguments = (function, number, folder, seconds)
        context = start_processes(
            _run, arguments, number, join=False, daemon=True, start_method="fork"
        )
        gc.unfreeze()
        assert context is not None
        try:
            while not context.join(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    waiting = [rank for rank in range(number) if not (folder / f"{rank}").exists()]
                    raise RanksError(
                        f"processes {waiting} of {number} have not ended in time: they may wait "
                        "for each other in different collectives."
                    )
        except ProcessException as error:
            raise RanksError(f"process {error.error_index} of {number} failed: {error}") from error
        finally:
            for process in filter(None, context.processes):
                if process.is_alive():
                    process.kill()
                process.join()
        return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(number)]


def _run(rank: int, function: Callable[[], Any], number: int, folder: Path, seconds: float) -> None:
    """Call the function in a process of its own, and leave what it returns in a file."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=number,
        timeout=datetime.timedelta(seconds=2 * seconds),  # the parent is first
    )
    (folder / f"{rank}").write_bytes(pickle.dumps(function()))
    dist.barrier()  # those that end first would break the connections of others
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # groups that are freed before the interpreter may abort the process
