"""Disturbed runs and sweeps end as undisturbed ones, bit for bit; and the harness can fail."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Python, python_path

from faults import harm
from faults.cases import Wrong, refuse_difference
from faults.sweeps import DONE, Trained, refuse_second_training, table_of

TESTS = Path(__file__).parents[1]


@pytest.mark.slow(40)
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
def test_disturbed_commands_end_like_undisturbed_ones(arguments: list[str], tmp_path: Path) -> None:
    status, table, errors = _harness(*arguments, folder=tmp_path)
    assert status == 0, errors[-6000:]
    times, exact = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \|", table, re.M)[0])
    assert times == exact > 0, table


@pytest.mark.slow(20)
def test_a_run_that_differs_in_a_bit_is_found(tmp_path: Path) -> None:
    """The harness reports where an average that is not restored shows."""
    one = ["--num=120", "--seed=0", "--variant=average", "--only=SIGTERM"]
    status, table, errors = _harness(*one, folder=tmp_path, first=harm.forget_averages)
    assert status == 1, table + errors
    assert re.search(r"Wrong: step \d+, validation/averaged/\w+ is ", errors), errors


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


def _harness(
    *arguments: str, folder: Path, first: Callable[[], None] | None = None
) -> tuple[int, str, str]:
    """Return status, table and errors of a process of its own, which forks: it has one thread."""
    printed = folder / "table"
    process = Python(
        *("-m", "faults", *arguments),
        output=folder / "errors",
        printed=printed,
        environment=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(TESTS)},
        first=first,
    )
    return process.end(seconds=7200), printed.read_text(), process.output
