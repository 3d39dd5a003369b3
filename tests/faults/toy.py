"""A process that acts as a run does, and writes down each step that it has saved; loads nothing."""

import json
import os
import signal
import sys
import time
from pathlib import Path

NUM_STEPS = 4  # as `sweeps.STEPS` of the points that are trained
LAST = {"step": NUM_STEPS, "loss": 1 / NUM_STEPS}


def main(folder: Path, journal: Path, seconds: float) -> int:
    """Makes the steps that are left, or stops after one of them; returns the status of that."""
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: stopped.append(number))
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    metrics, saved = folder / "metrics.jsonl", folder / "step"
    begin = int(saved.read_text()) if saved.exists() else 0
    rows = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    _replace(metrics, "".join(rows[:begin]))
    if begin and f"{begin}" not in _noted(journal, folder):  # killed between the one and the other
        _note(journal, folder, f"{begin}")
    for step in range(begin + 1, NUM_STEPS + 1):
        time.sleep(seconds)
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1 / step}) + "\n")
        _replace(saved, str(step))
        _note(journal, folder, str(step))
        if stopped:
            return 130
    _note(journal, folder, "done")
    return 0


def _replace(path: Path, text: str) -> None:
    """Writes a file that is there whole, or not at all, when this process is killed."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _note(journal: Path, folder: Path, what: str) -> None:
    with journal.open("ab", buffering=0) as file:
        file.write(f"{folder.name} {os.getpid()} {what}\n".encode())


def _noted(journal: Path, folder: Path) -> list[str]:
    lines = [line.split() for line in journal.read_text().splitlines()]
    return [what for point, _, what in lines if point == folder.name]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
