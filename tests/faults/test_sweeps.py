"""Sweeps that are disturbed lose nothing and train nothing twice; and the harness can fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults.results import Wrong
from faults.sweeps.children import DONE, Trained
from faults.sweeps.results import SweepResult, refuse_other, refuse_second_training, sweep_result

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.xdist_group("faults")
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("count", [1, pytest.param(24, marks=pytest.mark.long)])
def test_disturbed_sweeps_end_like_undisturbed_ones(count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "faults", "--sweeps", f"--num={count}", "--seed=4"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", done.stdout, re.M)[0])
    assert times == exact >= count, done.stdout


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["1 1", "1 2", f"1 {DONE}", "2 2"], "trained again after its end"),
        (["1 1", "2 1", "1 2"], "by 2 processes at a time"),
    ],
)
def test_a_second_training_is_told(lines: list[str], told: str) -> None:
    journal = [Trained("a", int(pid), what) for pid, what in map(str.split, lines)]
    with pytest.raises(Wrong, match=told):
        refuse_second_training(journal, lost=set())


def test_a_point_that_was_killed_or_removed_may_be_trained_again() -> None:
    killed = [Trained("a", 1, "1"), Trained("a", 2, "1"), Trained("a", 2, DONE)]
    refuse_second_training([*killed, Trained("a", 3, DONE)], lost=set())
    refuse_second_training([*killed, Trained("a", 3, "1")], lost={"a"})


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (SweepResult([], [], {}, {}, []), "has rows of"),
        (SweepResult([{"name": "x", "step": 1}], [], {}, {}, []), "step is 1, not 2"),
        (SweepResult([{"name": "x", "step": 2}], [], {}, {}, [4]), "a trial is 4 instead of None"),
    ],
)
def test_every_difference_of_sweeps_is_told(found: SweepResult, told: str) -> None:
    expected = SweepResult([{"name": "x", "step": 2}], [], {}, {}, [])
    with pytest.raises(Wrong, match=told):
        refuse_other(found, expected)
    refuse_other(expected, expected)


@pytest.mark.parametrize("text", ['{"fingerprint": "a"', '{"fingerprint": "a"}\n' * 2])
def test_a_table_that_is_not_whole_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.jsonl").write_text(text if text.endswith("\n") else f"{text}\n")
    with pytest.raises(Wrong, match="not whole|two rows"):
        sweep_result(tmp_path)
