"""Disturbed runs and sweeps end as undisturbed ones, bit for bit; and the harness can fail."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import python_path

from faults.cases import Wrong, refuse_difference
from faults.sweeps import DONE, Trained, refuse_second_training, table_of

TESTS = Path(__file__).parents[1]


@pytest.mark.slow(40)
@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--num=6", "--seed=0"],
        pytest.param(["--num=1000", "--seed=0"], marks=pytest.mark.long),
        ["--sweeps", "--num=1", "--seed=1"],
        pytest.param(["--sweeps", "--num=24", "--seed=4"], marks=pytest.mark.long),
        ["--elastic", "--num=1", "--seed=1", "--variant=shards, saved in memory"],
        pytest.param(["--elastic", "--num=30", "--seed=0"], marks=pytest.mark.long),
        ["--machines", "--num=1", "--seed=0"],
        pytest.param(["--machines", "--num=60", "--seed=0"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_disturbed_commands_end_like_undisturbed_ones(arguments: list[str]) -> None:
    done = _harness(*arguments)
    assert done.returncode == 0, done.stderr[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", done.stdout, re.M)[0])
    assert times == exact > 0, done.stdout


@pytest.mark.slow(20)
def test_a_run_that_differs_in_a_bit_is_found() -> None:
    """The harness reports where an average that is not restored shows."""
    forget = "from fidgpt.train import Ema; Ema.load_state_dict = lambda self, state: None"
    done = _harness("--num=120", "--seed=0", "--variant=average", "--only=SIGTERM", before=forget)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"Wrong: step \d+, validation/averaged/\w+ is ", done.stderr), done.stderr


EXPECTED = {"steps": [1, 2], "files": {"a": "1"}}


def second(*lines: str) -> None:
    """Look for a second training of a point in lines of a process and what it did."""
    journal = [Trained("a", int(pid), what) for pid, what in map(str.split, lines)]
    refuse_second_training(journal, lost=set())


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda: refuse_difference({**EXPECTED, "steps": [1]}, EXPECTED), r"steps is \[1\], not"),
        (lambda: refuse_difference({**EXPECTED, "files": {"a": "0"}}, EXPECTED), "a is 0, not 1"),
        (lambda: refuse_difference({**EXPECTED, "files": {}}, EXPECTED), "files is "),
        (lambda: second("1 1", "1 2", f"1 {DONE}", "2 2"), "trained again after its end"),
        (lambda: second("1 1", "2 1", "1 2"), "by 2 processes at a time"),
    ],
)
def test_the_harness_finds_differences(look: Callable[[], None], message: str) -> None:
    with pytest.raises(Wrong, match=message):
        look()


def test_two_rows_of_a_point_are_found(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text('{"directory": "a", "metrics": {}}\n' * 2)
    with pytest.raises(Wrong, match="two rows"):
        table_of(tmp_path)


def _harness(*arguments: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """In a process of its own, which forks and must have one thread."""
    code = f"{before}\nimport runpy; runpy.run_module('faults', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(TESTS)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
