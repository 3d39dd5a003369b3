"""Runs that are disturbed end as the undisturbed one, bit for bit; and the harness can fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults.results import Result, Wrong, refuse_difference

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
    ("found", "told"),
    [
        (Result([{"step": 1, "loss": 2.0}], {}), r"steps \[1\] instead of \[1, 2\]"),
        (Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}], {}), "loss is 1.5, not 1.0"),
        (Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], {"a": "0"}), "bytes in a"),
    ],
)
def test_every_difference_is_told(found: Result, told: str) -> None:
    expected = Result([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], {"a": "1"})
    with pytest.raises(Wrong, match=told):
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
