"""The part of a runner that executes on a cluster's nodes.

It is sent to the nodes by value, so it imports little but the standard library, and no torch.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

from fidgpt.files import lock, parse_json

_MAX_WIDTH = 300
# How a process reports the failure of another process of its run.
_SECONDARY = ("process ", "processes ", "another process ")


class Tail:
    """Reads the rows that were added to a metrics file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the new rows; lines that are damaged or incomplete are skipped."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:  # truncated by a run that resumed
                    self._at = 0
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        rows: list[dict[str, Any]] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                row = parse_json(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(row)
        return rows


def of_rank(path: Path, rank: int) -> Path:
    """Return the file of one of several processes; rank 0 uses the file of the point."""
    return path.with_suffix(f".{rank}{path.suffix}") if rank else path


def failure_reason(log: Path, *, start: int, status: int) -> str:
    """Return why a process ended, in a line.

    Args:
      log: its output.
      start: where its output begins in the log.
      status: its exit status, or the negative number of the signal that killed it.
    """
    if status < 0:
        is_known = -status in set(signal.Signals)
        return f"killed by {signal.Signals(-status).name if is_known else -status}"
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
    except OSError:  # the log was removed
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if line.startswith("error:")]
    reason = lines[-1] if lines else f"exit status {status} without output"
    if errors:
        reason = " ".join(lines[errors[-1] :]).removeprefix("error:").strip()
    return reason if len(reason) <= _MAX_WIDTH else reason[: _MAX_WIDTH - 3] + "..."


def first_cause(reasons: Sequence[str]) -> str:
    """Return the first reason that does not blame another process of the run."""
    return next((reason for reason in reasons if not reason.startswith(_SECONDARY)), reasons[0])


class Claim(NamedTuple):
    """What a node offers a process that it will start.

    Attributes:
      log_start: where the output of the process begins in the log; None if the log is locked.
      node: the identity of the node.
      address: its address, at which other processes find it.
      port: a free port.
      gpus: the GPUs that the process may use.
    """

    log_start: int | None
    node: str
    address: str
    port: int
    gpus: Sequence[str]


class Place:
    """Runs one process on a node, under a keeper that ends it when this object is gone."""

    def __init__(self) -> None:
        self._log = -1
        self._keeper: Popen[bytes] | None = None

    def claim(self, log: str) -> Claim:
        """Lock the log for the process.

        Raises:
          OSError: this node cannot open the log.
        """
        import ray

        self._log = os.open(log, os.O_WRONLY | os.O_APPEND)
        start = os.lseek(self._log, 0, os.SEEK_END) if lock(self._log) else None
        if start is None:
            os.close(self._log)
        here = ray.get_runtime_context()
        gpus = here.get_accelerator_ids().get("GPU", [])
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return Claim(start, here.get_node_id(), ray.util.get_node_ip_address(), port, gpus)

    def launch(
        self, command: Sequence[str], *, environment: Mapping[str, str], directory: str
    ) -> None:
        """Start the process, whose command includes its keeper.

        Raises:
          OSError: this node has no such directory or interpreter.
        """
        self._keeper = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=self._log, env=environment, cwd=directory
        )
        self._keeper.wait()  # for the first of its two processes, which exits at once
        os.close(self._log)

    def wait(self) -> int:
        """Return the exit status once the process ends."""
        assert self._keeper is not None and self._keeper.stdout is not None  # it was launched
        return int(self._keeper.stdout.read() or -signal.SIGKILL)  # a killed keeper writes nothing

    def send(self, number: int) -> None:
        """Send the process a signal, if it still runs."""
        assert self._keeper is not None and self._keeper.stdin is not None  # it was launched
        with contextlib.suppress(BrokenPipeError):
            os.write(self._keeper.stdin.fileno(), bytes([number]))
