"""Run `python -m fidgpt.launch`: torchrun that prints only the failing process's error.

It takes the arguments of torchrun. After a user's mistake, whose message a process has printed, it
exits with that process's status and prints neither torch's traceback nor its table of failures.
Nodes may leave and join (`--nnodes=1:4`), and processes receive SIGUSR1, which Slurm can send as a
notice. A node that does not come is reported soon.
"""

import argparse
import contextlib
import logging
import os
import sys
import time
from typing import NamedTuple

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
_TOO_FEW = "clients joined"  # in the error of a store that processes of other nodes do not reach
_LONGEST = 60  # seconds for all nodes to come, if none may be replaced
_OF_TORCHRUN = {"join_timeout": 600, "timeout": 900}  # seconds otherwise, by their setting
_REPORTING = 10.0  # seconds that other nodes get to print what has failed
_LOGGERS = (  # of how each process ended
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)


class Wait(NamedTuple):
    """How nodes wait for each other.

    Attributes:
      setting: of --rdzv-conf for how long they wait.
      seconds: how long they wait.
      has_others: whether there may be other nodes.
    """

    setting: str
    seconds: int
    has_others: bool


def main() -> int:
    """Start the processes and wait for them; return the exit status."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    arguments = torchrun.parse_args(sys.argv[1:])
    wait = bound_wait(arguments)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        torchrun.run(arguments)
    except SignalException as stopped:
        return 128 + stopped.sigval  # as a shell does
    except RendezvousClosedError:
        fail("the other nodes have ended the run. To resume it, start it again on all nodes.")
        return 1
    except (RendezvousError, DistError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, RendezvousTimeoutError) or _TOO_FEW in reason:
            place = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port}"
            fail(
                f"a node is missing: fewer than those of --nnodes came to {place} in "
                f"{wait.seconds} s. Start the same command on all nodes; all of them must reach "
                f"that one. If some start later, add --rdzv-conf={wait.setting}=600."
            )
            return 1
        fail(
            f"the nodes cannot meet at --rdzv-endpoint: {reason:.200}. Name a node that stays and "
            "that all others reach, and start the run again on all nodes."
        )
        return 1
    except ChildFailedError as error:
        failures = {one.exitcode: (rank, one) for rank, one in error.failures.items()}
        status = max(failures)  # of one that failed by itself: torchrun ends others by signals
        if MISTAKE in failures:
            status = MISTAKE
        else:
            rank, failure = failures[status] if status > 0 else error.get_first_failure()
            how = f"exit status {status}" if status > 0 else failure.signal_name()
            fail(f"process {rank} of {error.name} ended with {how}.")
        if wait.has_others:
            # Processes on other nodes report first what has failed on this one: where nodes meet
            # in this process, torchrun ends all of theirs at once when this one ends.
            sys.stderr.flush()
            with contextlib.suppress(KeyboardInterrupt, SignalException):
                time.sleep(_REPORTING)
        return max(status, 1)
    return 0


def bound_wait(arguments: argparse.Namespace) -> Wait:
    """Bound the wait for other nodes, unless it was chosen; return how they wait.

    Nodes that may come and go wait as long as torchrun lets them.

    Args:
      arguments: of torchrun, of which the settings of the rendezvous are changed.
    """
    setting = "timeout" if arguments.rdzv_backend == "static" else "join_timeout"
    pairs = [pair.split("=") for pair in arguments.rdzv_conf.split(",") if "=" in pair]
    chosen = {name.strip(): value for name, value in pairs}
    least, most = torchrun.parse_min_max_nnodes(arguments.nnodes)
    if setting not in chosen and least == most and not arguments.max_restarts:
        chosen[setting] = str(_LONGEST)
        arguments.rdzv_conf = ",".join(f"{name}={value}" for name, value in chosen.items())
    return Wait(setting, int(chosen.get(setting, _OF_TORCHRUN[setting])), most > 1)


def run() -> None:
    """Entry point of the command."""
    sys.exit(main())


if __name__ == "__main__":
    run()
