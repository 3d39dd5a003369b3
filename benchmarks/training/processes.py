"""Contestants of a benchmark: processes that are warm, and take a turn when asked for one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def started(
    command: Sequence[str], *, name: str, threads: int
) -> Iterator[tuple[subprocess.Popen[str], Any] | None]:
    """A process and the row that it prints when it is warm; None, with the reason, if it ends."""
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
        if ready := process.stdout.readline():
            print(f"{name} is warm", file=sys.stderr)
            yield process, json.loads(ready)
        else:
            reason = process.stderr.read().strip().splitlines()[-1:]
            print(f"{name} is left out: {''.join(reason)}", file=sys.stderr)
            yield None
    finally:
        process.kill()
        process.wait()


def take_turn(process: subprocess.Popen[str]) -> Any:
    """Let a process take a turn, and return the row that it prints at the end."""
    assert process.stdin and process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())
