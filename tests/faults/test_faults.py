"""Disturbed runs and sweeps end as undisturbed ones, bit for bit; and the harness can fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from faults import toy
from faults.cases import Wrong, refuse_difference
from faults.clusters import refuse_other
from faults.sweeps import DONE, Journal, Trained, refuse_second_training, table_of

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--num=26", "--seed=0"],
        pytest.param(["--num=1000", "--seed=0"], marks=pytest.mark.long),
        ["--sweeps", "--num=1", "--seed=4"],
        pytest.param(["--sweeps", "--num=24", "--seed=4"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_disturbed_commands_end_like_undisturbed_ones(arguments: list[str]) -> None:
    done = _harness(*arguments)
    assert done.returncode == 0, done.stderr[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", done.stdout, re.M)[0])
    assert times == exact > 0, done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
def test_a_run_that_differs_in_a_bit_is_found() -> None:
    """The harness reports where an average that is not restored shows."""
    forget = "from fidgpt.train import Ema; Ema.load_state_dict = lambda self, state: None"
    done = _harness("--num=120", "--seed=0", "--variant=average", "--only=SIGTERM", before=forget)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"Wrong: step \d+, validation/averaged/\w+ is ", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"steps": [1], "files": {"a": "1"}}, r"steps is \[1\], not \[1, 2\]"),
        ({"steps": [1, 2], "files": {"a": "0"}}, "files, a is 0, not 1"),
        ({"steps": [1, 2], "files": {}}, "files is "),
    ],
)
def test_every_difference_is_found(found: dict[str, Any], message: str) -> None:
    expected = {"steps": [1, 2], "files": {"a": "1"}}
    with pytest.raises(Wrong, match=message):
        refuse_difference(found, expected)
    refuse_difference(expected, expected)


def _harness(*arguments: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """In a process of its own, which forks and must have one thread."""
    code = f"{before}\nimport runpy; runpy.run_module('faults', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1 1", "1 2", f"1 {DONE}", "2 2"], "trained again after its end"),
        (["1 1", "2 1", "1 2"], "by 2 processes at a time"),
    ],
)
def test_a_second_training_is_found(lines: list[str], message: str) -> None:
    journal = [Trained("a", int(pid), what) for pid, what in map(str.split, lines)]
    with pytest.raises(Wrong, match=message):
        refuse_second_training(journal, lost=set())


def test_two_rows_of_a_point_are_found(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"directory": "a", "metrics": {}}\n' * 2)
    with pytest.raises(Wrong, match="two rows"):
        table_of(tmp_path)


STEPS = [str(step) for step in range(1, toy.NUM_STEPS + 1)]


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
    ("whats", "message"),
    [
        ([*STEPS[:2], *STEPS[1:], DONE], "saved is "),
        (STEPS[:-1], "saved is "),
        ([*STEPS, DONE], None),
    ],
)
def test_a_step_that_is_lost_or_repeated_is_found(
    tmp_path: Path, whats: list[str], message: str | None
) -> None:
    expected = a_sweep(tmp_path)
    lines = [Trained("a", 1, what) for what in whats]
    with pytest.raises(Wrong, match=message) if message else nullcontext():
        refuse_other(tmp_path, lines, expected, real=[])


def a_sweep(directory: Path) -> dict[str, Any]:
    """One of a single toy, as it must be."""
    (directory / "a").mkdir()
    row = {"directory": "a", "name": "seed=1", "fingerprint": "f", "status": "finished"}
    (directory / "table.jsonl").write_text(json.dumps(row | {"metrics": toy.LAST}) + "\n")
    (directory / "results.csv").write_text("name\nseed=1\n")
    (directory / "a" / "done.json").write_text(json.dumps(toy.LAST))
    rows = [json.dumps({"step": int(step), "loss": 1 / int(step)}) + "\n" for step in STEPS]
    (directory / "a" / "metrics.jsonl").write_text("".join(rows))
    return {"table.jsonl": {"a": row}, "order": {"results.csv": ["seed=1"]}}
