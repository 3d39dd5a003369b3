"""Disturbed runs and sweeps end as undisturbed ones, bit for bit; and the harness can fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.runs import Result, Wrong, refuse_difference
from faults.sweeps import toy
from faults.sweeps.cases import (
    DONE,
    Journal,
    SweepResult,
    Trained,
    refuse_second_training,
    sweep_result,
)
from faults.sweeps.cluster_case import refuse_other

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
@pytest.mark.parametrize("count", [26, pytest.param(1000, marks=pytest.mark.long)])
def test_disturbed_runs_end_like_undisturbed_ones(count: int) -> None:
    done = _harness(f"--num={count}", "--seed=0")
    assert done.returncode == 0, done.stderr[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", done.stdout, re.M)[0])
    assert times == exact == count, done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
def test_a_run_that_goes_on_a_bit_differently_is_found() -> None:
    """Were the average of weights not restored, the harness would say where it shows."""
    forget = "from fidgpt.train import Ema; Ema.load_state_dict = lambda self, state: None"
    done = _harness("--num=120", "--seed=0", "--variant=average", "--only=SIGTERM", before=forget)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"Wrong: step \d+: validation/averaged/\w+ is ", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Result([{"step": 1, "loss": 2.0}], {}), r"steps \[1\] instead of \[1, 2\]"),
        (Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], {}), "loss is 1.5, not 1.0"),
        (Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], {"a": "0"}), "bytes in a"),
    ],
)
def test_every_difference_is_found(found: Result, message: str) -> None:
    expected = Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], {"a": "1"})
    with pytest.raises(Wrong, match=message):
        refuse_difference(found, expected)
    refuse_difference(expected, expected)


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("count", [1, pytest.param(24, marks=pytest.mark.long)])
def test_disturbed_sweeps_end_like_undisturbed_ones(count: int) -> None:
    done = _harness("--sweeps", f"--num={count}", "--seed=4")
    assert done.returncode == 0, done.stderr[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", done.stdout, re.M)[0])
    assert times == exact >= count, done.stdout


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


TESTS = Path(__file__).parents[1]


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


@pytest.mark.parametrize("text", ['{"fingerprint": "a"', '{"fingerprint": "a"}\n' * 2])
def test_a_table_that_is_not_whole_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.jsonl").write_text(text if text.endswith("\n") else f"{text}\n")
    with pytest.raises(Wrong, match="not whole|two rows"):
        sweep_result(tmp_path)


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
    ("whats", "message"),
    [
        ([*STEPS[:2], *STEPS[1:], DONE], "saved the steps"),
        (STEPS[:-1], "saved the steps"),
        ([*STEPS, DONE], None),
    ],
)
def test_a_step_that_is_lost_or_repeated_is_found(
    tmp_path: Path, whats: list[str], message: str | None
) -> None:
    expected = a_sweep(tmp_path)
    lines = [TOY._replace(what=what) for what in whats]
    if message is None:
        refuse_other(tmp_path, lines, expected, real=[])
        return
    with pytest.raises(Wrong, match=message):
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
