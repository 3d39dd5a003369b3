"""Run `python -m fidgpt.launch`: torchrun, which ends with the error of a process and no more.

It takes the arguments of torchrun. After a user's mistake, whose message a process has printed, it
exits with that process's status and prints neither torch's traceback nor its table of failures.
Nodes may leave and join (`--nnodes=1:4`), and processes receive SIGUSR1, which Slurm can send as a
notice.
"""

import logging
import os
import sys

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

from fidgpt.cli.app import MISTAKE, fail

_DEFAULTS = {  # of the environment
    # Torch shares one store among all starts, whose address nodes that join never learn.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
}
_LOGGER = "torch.distributed.elastic.multiprocessing.api"  # of how each process ended


def main() -> int:
    """Start the processes and wait for them; return the exit status."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
    try:
        torchrun.main()
    except SignalException as stopped:
        return 128 + stopped.sigval  # as a shell does
    except RendezvousClosedError:
        fail("the other nodes have ended the run. To resume it, start it again on all nodes.")
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


def run() -> None:
    """Entry point of the command."""
    sys.exit(main())


if __name__ == "__main__":
    run()
