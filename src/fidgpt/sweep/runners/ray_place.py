"""Where one process of a point runs on a Ray cluster: an actor that holds its share of a node."""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from subprocess import PIPE, Popen
from typing import NamedTuple

from fidgpt.files import lock


class Claim(NamedTuple):
    """What a place has to say before its process is started.

    Attributes:
      log_at: where in the log the words of the process begin; None where the log is locked.
      node: the identity of the node.
      address: of the node, where the other processes find it.
      port: one that is free there.
      gpus: those of the node that the process may use.
    """

    log_at: int | None
    node: str
    address: str
    port: int
    gpus: Sequence[str]


class Place:
    """One process on a node of the cluster.

    Ray ends it with its driver, with the placement group, or with the node; by that the process's
    keeper knows that nobody asks for the process any more. The module is sent to the nodes as it
    is, so that a place loads no more than Ray and what stands above.
    """

    def __init__(self) -> None:
        self._log = -1
        self._keeper: Popen[bytes] | None = None

    def claim(self, log: str) -> tuple[int | None, str, str, int, Sequence[str]]:
        """Locks the log for the process; returns the values of a Claim.

        Raises:
          FileNotFoundError: this node does not see the log.
        """
        import ray

        self._log = os.open(log, os.O_WRONLY | os.O_APPEND)
        at = os.lseek(self._log, 0, os.SEEK_END) if lock(self._log) else None
        here = ray.get_runtime_context()
        gpus = here.get_accelerator_ids().get("GPU", [])
        return at, here.get_node_id(), ray.util.get_node_ip_address(), _free_port(), gpus

    def launch(
        self, keeping: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> None:
        """Starts the process.

        Args:
          keeping: the command of its keeper, with that of the process.
          environment: of the process, all of it.
          directory: where it runs.

        Raises:
          OSError: this node has no such directory, or no such interpreter.
        """
        self._keeper = Popen(
            keeping, stdin=PIPE, stdout=PIPE, stderr=self._log, env=environment, cwd=directory
        )
        self._keeper.wait()  # for the first of its two processes, which leaves at once
        os.close(self._log)

    def wait(self, seconds: float) -> int | None:
        """How the process ended, as soon as it did; None where it runs on for so long."""
        assert self._keeper is not None and self._keeper.stdout is not None  # it was launched
        ended, *_ = select.select([self._keeper.stdout], [], [], seconds)
        if not ended:
            return None
        return int(self._keeper.stdout.read() or -signal.SIGKILL)  # a keeper says nothing if killed

    def send(self, number: int) -> None:
        """Sends a signal to the process, if it is still there."""
        assert self._keeper is not None and self._keeper.stdin is not None  # it was launched
        with contextlib.suppress(BrokenPipeError):
            os.write(self._keeper.stdin.fileno(), bytes([number]))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]
