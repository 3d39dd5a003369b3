"""Run `python -m fidgpt.launch`: torchrun, which ends with the error of a process and no more.

It takes the arguments of torchrun. After a user's mistake, whose message a process has printed, it
exits with that process's status and prints neither torch's traceback nor its table of failures.
Nodes may leave and join (`--nnodes=1:4`), and processes receive SIGUSR1, which Slurm can send as a
notice. A node that does not come is reported soon. Where there is no accelerator, processes are
forked from this one, once it has imported what a run needs, so that they begin, and begin again,
seconds sooner. `--preload` as the first argument does so elsewhere too, and `--no-preload` nowhere.
"""

import contextlib
import functools
import importlib.util
import inspect
import logging
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousTimeoutError,
)

from fidgpt import forking
from fidgpt.cli.app import MISTAKE, fail

_DEFAULTS = {  # of the environment
    # Torch shares one store among all starts, whose address nodes that join never learn.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
}
_TOO_FEW = "clients joined"  # in the error of a store that processes of other nodes do not reach
_LONGEST = 60  # seconds for all nodes to come, if none may be replaced; torchrun waits 600 or 900
_UNKNOWN = 5.0  # seconds until a host that no name server knows is refused
_REPORTING = 10.0  # seconds that other nodes get to print what has failed
_LOGGERS = (  # of how each process ended
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)


def main() -> int:
    """Start the processes and wait for them; return the exit status."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    wait = _Wait()
    torchrun.config_from_args = _checked(wait, forks=_is_to_fork())
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        torchrun.main()
    except SignalException as stopped:
        return 128 + stopped.sigval  # as a shell does
    except RendezvousClosedError:
        fail("the other nodes have ended the run. To resume it, start it again on all nodes.")
        return 1
    except (RendezvousError, DistError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, RendezvousTimeoutError) or _TOO_FEW in reason:
            fail(
                f"a node is missing: fewer than those of --nnodes came to {wait.place} in "
                f"{wait.seconds} s. Start the same command on all nodes; all of them must reach "
                f"that one. If some start later, add --rdzv-conf={wait.setting}=600."
            )
        else:
            fail(
                f"the nodes cannot meet at --rdzv-endpoint: {reason:.200}. Name a node that stays "
                "and that all others reach, and start the run again on all nodes."
            )
        return 1
    except ChildFailedError as error:
        failures = {failure.exitcode: (rank, failure) for rank, failure in error.failures.items()}
        status = max(failures)  # of one that failed by itself: torchrun ends others by signals
        if MISTAKE in failures:
            status = MISTAKE
        else:
            rank, failure = failures[status] if status > 0 else error.get_first_failure()
            how = f"exit status {status}" if status > 0 else failure.signal_name()
            fail(f"process {rank} of {wait.program or error.name} ended with {how}.")
        wait.for_reports()
        return max(status, 1)
    except (ValueError, AssertionError, OSError) as error:  # of torchrun's own arguments
        reason = str(error) or (
            "--nproc-per-node and --monitor-interval must be above 0, and --max-restarts not below."
        )
        fail(f"torchrun refuses its arguments: {reason}")
        return MISTAKE
    return 0


class _Wait:
    """How nodes wait for each other.

    Attributes:
      place: where they meet.
      setting: of --rdzv-conf for how long they wait.
      seconds: how long they wait.
      program: the script or module that the processes run.
    """

    program = ""

    def __init__(self) -> None:
        self.place, self.setting, self.seconds = "--rdzv-endpoint", "join_timeout", 600
        self._has_others = False

    def for_reports(self) -> None:
        """Let processes on other nodes report first what has failed on this one.

        Where nodes meet in this process, torchrun ends all of theirs at once when this one ends.
        """
        if self._has_others:
            sys.stderr.flush()
            with contextlib.suppress(KeyboardInterrupt, SignalException):
                time.sleep(_REPORTING)

    def bound(self, arguments: Any, config: Any) -> None:
        """Bound the wait, but for nodes that may come and go, which torchrun lets wait longer.

        Args:
          arguments: flags of torchrun.
          config: what torchrun makes of them.
        """
        self.program = arguments.training_script
        self.place, self._has_others = config.rdzv_endpoint, config.max_nodes > 1
        if config.rdzv_backend == "static":
            self.setting = "timeout"
        chosen = {pair.partition("=")[0].strip() for pair in arguments.rdzv_conf.split(",")}
        is_fixed = config.min_nodes == config.max_nodes and not config.max_restarts
        if is_fixed and self.setting not in chosen:
            config.rdzv_configs[self.setting] = _LONGEST
        seconds = str(config.rdzv_configs.get(self.setting, self.seconds))
        if not seconds.isdecimal():
            raise ValueError(f"--rdzv-conf={self.setting}={seconds} must be whole seconds.")
        self.seconds = int(seconds)


def _require_program(arguments: Any) -> None:
    """Raise ValueError if there is no script, module or program of the name that is to run."""
    name = arguments.training_script
    kind, find = "script", os.path.exists
    if arguments.module:
        kind, find = "module", lambda name: importlib.util.find_spec(name.partition(".")[0])
    elif arguments.no_python:
        kind, find = "program", shutil.which
    if not find(name):
        raise ValueError(f"there is no {kind} {name!r}.")


def _require_address(endpoint: str) -> None:
    """Raise ValueError if the host of an endpoint stays unknown, which torch would wait for."""
    host = endpoint.rpartition(":")[0] or endpoint
    deadline = time.monotonic() + _UNKNOWN
    while host:
        try:
            socket.getaddrinfo(host.strip("[]"), None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ValueError(
                    f"the host {host!r} of --rdzv-endpoint is unknown ({error.strerror}): name a "
                    "node that all others reach."
                ) from error
            time.sleep(1)


def _is_to_fork() -> bool:
    """Return whether processes are forked from this one, and remove its flag."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # or forks could not use CUDA
    if sys.argv[1:2] in (["--preload"], ["--no-preload"]):
        return sys.argv.pop(1) == "--preload"
    return forking.is_safe()


def _checked(wait: _Wait, *, forks: bool) -> Callable[[Any], Any]:
    """Return what reads the flags of torchrun.

    Args:
      wait: for other nodes, which is bounded.
      forks: whether to import what a run needs, and let torchrun fork processes from this one.
    """
    read = inspect.unwrap(torchrun.config_from_args)

    @functools.wraps(read)
    def reading(arguments: Any) -> Any:
        _require_program(arguments)
        _require_address(arguments.rdzv_endpoint)
        config, *program = read(arguments)
        if not 0 <= arguments.node_rank < config.max_nodes:
            raise ValueError(
                f"--node-rank={arguments.node_rank} must be from 0 to {config.max_nodes - 1}: "
                f"there are at most {config.max_nodes} nodes."
            )
        if arguments.standalone and config.min_nodes > 1:
            raise ValueError(f"--standalone is one node, and --nnodes={arguments.nnodes}.")
        wait.bound(arguments, config)
        if forks and not arguments.no_python:  # which is for Python alone to run
            forking.preload()
            config.start_method = "fork"
            os.register_at_fork(after_in_child=_forget_handlers)
            script = arguments.training_script
            program = [_work, [script, arguments.module, arguments.training_script_args]]
        return config, *program

    return reading


def _forget_handlers() -> None:
    """Let signals do in a new process what they do by default, and not what they do in torchrun."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _work(script: str, is_module: bool, arguments: list[str]) -> None:
    """Run a program in a forked process, as Python would."""
    try:
        forking.run_program(script, arguments, is_module=is_module)
    except Exception:  # which torch would keep for a caller
        traceback.print_exc()
        sys.exit(1)


def run() -> None:
    """Entry point of the command."""
    sys.exit(main())


if __name__ == "__main__":
    run()
