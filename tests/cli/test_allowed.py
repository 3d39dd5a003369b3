"""Commands that a user copies from a run's words name the packages that the run was allowed."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sample, train

Command = Callable[..., Any]
PART = "class Flat:\n    def __call__(self, step: int) -> float:\n        return 1.0\n"
ALLOW = "--allow=site_of_mine"
USE = "--config=use:schedule=site_of_mine.Flat()"
SHORT = ("--config=config:debug", "--config=set:num_steps=2", "--config=set:samples=None")


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A package of the user's own that has to be allowed."""
    (tmp_path / "site_of_mine.py").write_text(PART, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("site_of_mine", None)


@pytest.mark.usefixtures("allowed")
def test_what_is_printed_after_a_run_works_as_it_stands(command: Command, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    done = command(train.main, *SHORT, ALLOW, USE, f"--run_dir={run}")
    assert done.status == 0, done.err
    (hint,) = re.findall("python -m fidgpt.sample (.+)", done.out)
    assert shlex.split(hint) == [ALLOW, run]
    assert command(sample.main, *shlex.split(hint), "--num_tokens=2").status == 0
    refused = command(train.main, *SHORT, f"--run_dir={run}")
    (hint,) = re.findall(r"resume (?:it )?with (.+)\.", refused.err)
    assert shlex.split(hint) == [ALLOW, f"--resume={run}"]
    assert command(train.main, *shlex.split(hint)).status == 0


@pytest.mark.usefixtures("allowed")
def test_what_goes_on_with_a_package_names_it_from_then_on(
    command: Command, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert command(train.main, *SHORT, f"--run_dir={run}").status == 0
    assert not (run / "flags.txt").exists()
    more = ("--config=set:num_steps=3", USE)
    done = command(train.main, ALLOW, f"--resume={run}", *more)
    assert done.status == 0, done.err
    assert f"fidgpt.sample {ALLOW} {run}" in done.out
    assert command(train.main, ALLOW, f"--resume={run}").status == 0


@pytest.mark.usefixtures("allowed")
def test_repro_names_it(command: Command) -> None:
    out = command(train.main, ALLOW, *SHORT, USE, "--repro").out
    program, *flags = shlex.split(out)[1:]
    assert (program, flags[0]) == ("train.py", ALLOW)
    assert command(train.main, *flags, "--print").status == 0
