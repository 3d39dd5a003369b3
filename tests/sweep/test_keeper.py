"""The keeper of a process: signals are passed on, and the process ends with who asked for it."""

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen

from fidgpt.sweep.runners import keeper

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"


def keep(log: Path, *command: str, patience: float = 60) -> Popen[bytes]:
    """A keeper started as a worker does it, whose signals are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with log.open("ab") as file:
            kept = Popen(
                [sys.executable, "-I", keeper.__file__, str(patience), *command],
                stdin=PIPE,
                stdout=PIPE,
                stderr=file,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert kept.wait() == 0
    return kept


def status_of(kept: Popen[bytes]) -> int:
    """How its process ended; waits for it."""
    assert kept.stdin is not None and kept.stdout is not None
    with kept.stdin, kept.stdout:
        return int(kept.stdout.read())


def wait_for_words(log: Path) -> None:
    deadline = time.monotonic() + 30
    while not log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_writes_to_the_log_and_its_status_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keep(log, sys.executable, "-c", "import sys; print('words'); sys.exit('an error')")
    assert status_of(kept) == 1
    assert sorted(log.read_text().splitlines()) == ["an error", "words"]


def test_a_signal_is_passed_on_though_it_was_blocked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keep(log, "sh", "-c", "echo 1; exec sleep 60")
    wait_for_words(log)
    assert kept.stdin is not None
    os.write(kept.stdin.fileno(), bytes([signal.SIGINT]))
    assert status_of(kept) == -signal.SIGINT


def test_without_its_owner_a_process_is_terminated_and_then_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keep(log, sys.executable, "-c", f"{STUBBORN}; time.sleep(60)", patience=0.3)
    wait_for_words(log)
    assert kept.stdin is not None and kept.stdout is not None
    kept.stdin.close()
    with kept.stdout:
        assert kept.stdout.read() == str(-signal.SIGKILL).encode()
