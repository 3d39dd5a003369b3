"""The toys of sweeps on clusters save as runs do; and what such a sweep does wrong is told."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.results import Wrong
from faults.sweeps import toy
from faults.sweeps.children import DONE, Journal, Trained
from faults.sweeps.cluster_results import refuse_other
from faults.sweeps.results import SweepResult

STEPS = [str(step) for step in range(1, toy.NUM_STEPS + 1)]
TOY = Trained("a", 1, "")


def begin_toy(folder: Path, *, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    """Starts a toy."""
    command = [sys.executable, toy.__file__, str(folder / "a"), str(folder / "journal")]
    return subprocess.Popen([*command, str(seconds)])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_toy_that_is_struck_goes_on_where_it_saved(
    tmp_path: Path, number: int, status: int
) -> None:
    journal = Journal(tmp_path / "journal")
    first = begin_toy(tmp_path, seconds=0.1)
    while journal.num_steps() < 2:
        time.sleep(0.01)
    first.send_signal(number)
    assert first.wait(30) == status
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9}\n')  # of a step that was not saved
    assert begin_toy(tmp_path).wait(30) == 0
    assert [line.what for line in journal.lines()] == [*STEPS, DONE]
    rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [str(json.loads(row)["step"]) for row in rows] == STEPS
    assert json.loads(rows[-1]) == toy.LAST


@pytest.mark.parametrize(
    ("whats", "told"),
    [
        ([*STEPS[:2], *STEPS[1:], DONE], "saved the steps"),
        (STEPS[:-1], "saved the steps"),
        ([*STEPS, DONE], None),
    ],
)
def test_a_step_that_is_lost_or_made_twice_is_told(
    tmp_path: Path, whats: list[str], told: str | None
) -> None:
    expected = a_sweep(tmp_path)
    lines = [TOY._replace(what=what) for what in whats]
    if told is None:
        refuse_other(tmp_path, lines, expected, real=[])
        return
    with pytest.raises(Wrong, match=told):
        refuse_other(tmp_path, lines, expected, real=[])


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("results.csv", "name\n", "rows of"),
        ("table.jsonl", "", "rows of"),
        ("a/done.json", "{}", "done.json is"),
        ("a/metrics.jsonl", '{"step": 1}\n', "has rows"),
    ],
)
def test_what_is_lost_of_the_results_is_told(
    tmp_path: Path, file: str, text: str, told: str
) -> None:
    expected = a_sweep(tmp_path)
    (tmp_path / file).write_text(text)
    lines = [TOY._replace(what=what) for what in [*STEPS, DONE]]
    with pytest.raises(Wrong, match=told):
        refuse_other(tmp_path, lines, expected, real=[])


def a_sweep(directory: Path) -> SweepResult:
    """One of a single toy, as it must be."""
    (directory / "a").mkdir()
    row = {"directory": "a", "name": "seed=1", "fingerprint": "f", "status": "finished"}
    (directory / "table.jsonl").write_text(json.dumps(row | {"metrics": toy.LAST}) + "\n")
    (directory / "results.csv").write_text("name\nseed=1\n")
    (directory / "a" / "done.json").write_text(json.dumps(toy.LAST))
    rows = [json.dumps({"step": int(step), "loss": 1 / int(step)}) + "\n" for step in STEPS]
    (directory / "a" / "metrics.jsonl").write_text("".join(rows))
    return SweepResult([row | {"metrics": {}}], [], {}, {}, [])
