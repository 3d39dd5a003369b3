"""Run `python -m fidgpt.launch`: torchrun, which ends with the error of a process and no more.

It takes the arguments of torchrun. After a user's mistake, whose message a process has printed, it
exits with that process's status and prints neither torch's traceback nor its table of failures.
Nodes may leave and join (`--nnodes=1:4`), and processes receive SIGUSR1, which Slurm can send as a
notice. With `--preload` as the first argument, processes are forked from one that has imported
torch and fidgpt already, so that a run which lost one continues seconds sooner.
"""

import importlib
import logging
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
)

from fidgpt.cli.app import MISTAKE, fail

_DEFAULTS = {  # of the environment
    # Torch shares one store among all starts, whose address nodes that join never learn.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
}
# What a run imports until its first step. None of these defines flags, or uses a device.
_PRELOADED = (
    "fidgpt.configs",
    "fidgpt.fiddlers",
    "fidgpt.interop",
    "fidgpt.compose.runs",
    "fidgpt.train.summary_text",
    "rich.console",
    "rich.table",
    "torch._dynamo",
    "torch.distributed.checkpoint.default_planner",
    "torch.distributed.fsdp",
)
_LOGGERS = (  # of how each process ended
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)


def main() -> int:
    """Start the processes and wait for them; return the exit status."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if sys.argv[1:2] == ["--preload"]:
        del sys.argv[1]
        torchrun.config_from_args = _preloaded(torchrun.config_from_args)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        torchrun.main()
    except SignalException as stopped:
        return 128 + stopped.sigval  # as a shell does
    except RendezvousClosedError:
        fail("the other nodes have ended the run. To resume it, start it again on all nodes.")
        return 1
    except RendezvousTimeoutError:
        fail(
            "a node is missing: fewer than those of --nnodes came to --rdzv-endpoint in 600 s, or "
            "in the seconds of --rdzv-conf=join_timeout=... Start the same command on all nodes; "
            "all of them must reach the endpoint."
        )
        return 1
    except (RendezvousError, DistError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        fail(
            f"the nodes cannot meet at --rdzv-endpoint: {reason:.200}. Name a node that stays and "
            "that all others reach, and start the run again on all nodes."
        )
        return 1
    except ChildFailedError as error:
        failures = {one.exitcode: (rank, one) for rank, one in error.failures.items()}
        if MISTAKE in failures:
            return MISTAKE
        status = max(failures)  # of one that failed by itself: torchrun ends others by signals
        rank, failure = failures[status] if status > 0 else error.get_first_failure()
        how = f"exit status {status}" if status > 0 else failure.signal_name()
        fail(f"process {rank} of {error.name} ended with {how}.")
        return max(status, 1)
    return 0


def _preloaded(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Import what a run needs; return what lets torchrun fork processes from this one.

    Args:
      read: makes a configuration, a program and its arguments of those of torchrun.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a fork may not inherit CUDA
    for name in _PRELOADED:
        importlib.import_module(name)

    def forking(arguments: Any) -> Any:
        config, _, _ = read(arguments)
        config.start_method = "fork"
        os.register_at_fork(after_in_child=_forget_handlers)
        script = arguments.training_script
        return config, _work, [script, arguments.module, arguments.training_script_args]

    return forking


def _forget_handlers() -> None:
    """Let signals do in a new process what they do by default, and not what they do in torchrun."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _work(script: str, is_module: bool, arguments: list[str]) -> None:
    """Run a program in a forked process, as Python would."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    sys.argv = [script, *arguments]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")


def run() -> None:
    """Entry point of the command."""
    sys.exit(main())


if __name__ == "__main__":
    run()
