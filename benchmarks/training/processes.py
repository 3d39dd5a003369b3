"""Contestants of a benchmark: processes that are warm, and take a turn when asked for one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Contestant:
    """A process that takes a turn when asked for one.

    Attributes:
      process: reads a line for each turn, and prints a row of JSON at its end.
      warm_up: seconds from the start of the process until it was warm.
      rows: of all turns.
    """

    process: subprocess.Popen[str]
    warm_up: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def take_turn(self, question: str = "") -> dict[str, Any]:
        """Let the process take a turn, and return its row; one that fails ends this process."""
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        row = self.process.stdout.readline()
        if not row:
            sys.exit(f"{self.process.args}: {question}\n{self.process.stderr.read()}")
        self.rows.append(json.loads(row))
        return self.rows[-1]

    def each(self, name: str) -> list[Any]:
        """Return an item of the row of each turn."""
        return [row[name] for row in self.rows]


@contextmanager
def started(command: Sequence[str], *, name: str, threads: int) -> Iterator[Contestant | None]:
    """A contestant as soon as it prints that it is warm; None, with the reason, if it ends."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Installed peers have compiled Python files, and fidgpt may write its own.
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": ""},
    )
    try:
        assert process.stdout and process.stderr
        if process.stdout.readline():
            print(f"{name} is warm", file=sys.stderr)
            yield Contestant(process, time.perf_counter() - begin)
        else:
            reason = process.stderr.read().strip().splitlines()[-1:]
            print(f"{name} is left out: {''.join(reason)}", file=sys.stderr)
            yield None
    finally:
        process.kill()
        process.wait()
