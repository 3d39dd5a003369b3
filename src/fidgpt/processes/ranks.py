"""Processes on this machine that compute together, for checks: forked, with gloo on CPUs."""

import datetime
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RanksError", "run_ranks"]


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
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Python warns of threads, as those of torch's pool, which children with one do not use.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        gc.freeze()
        readers: list[Any] = []
        processes = []
        for rank in range(number):
            reader, writer = fork.Pipe(duplex=False)
            process = fork.Process(
                target=_begin,
                args=(function, rank, number, Path(folder, "store"), seconds, writer),
                daemon=True,
            )
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        gc.unfreeze()
        try:
            return _collect(readers, deadline=time.monotonic() + seconds)
        finally:
            for process in processes:
                process.join(5.0 if sys.exc_info()[0] is None else 0.0)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(readers: list[Any], *, deadline: float) -> list[Any]:
    """Return what each process sends; of several errors, raise the first."""
    results: dict[int, Any] = {}
    while len(results) < len(readers):
        waiting = [one for rank, one in enumerate(readers) if rank not in results]
        ready = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            ranks = [rank for rank in range(len(readers)) if rank not in results]
            raise RanksError(
                f"processes {ranks} of {len(readers)} have not ended in time: they may wait for "
                "each other in different collectives."
            )
        for rank, reader in enumerate(readers):
            if reader in ready:
                try:
                    error, result = reader.recv()
                except EOFError:
                    raise RanksError(f"process {rank} of {len(readers)} has died.") from None
                if error is not None:
                    raise RanksError(f"process {rank} of {len(readers)} failed:\n{error}")
                results[rank] = result
    return [results[rank] for rank in range(len(readers))]


def _begin(
    function: Callable[[], Any],
    rank: int,
    number: int,
    store: Path,
    seconds: float,
    writer: Any,
) -> None:
    """Call the function in a process of its own, and send what it returns."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=number,
            timeout=datetime.timedelta(seconds=2 * seconds),  # the parent is first
        )
        writer.send((None, function()))
        dist.barrier()  # those that end first would break the connections of others
    except BaseException:
        writer.send((traceback.format_exc(), None))
    writer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # groups that are freed before the interpreter may abort the process
