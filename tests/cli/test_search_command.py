"""`sweep.py --search` and `--bisect`: what they train, what they print, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sweep
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import dump, load

Command = Callable[..., Any]
QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
FLAGS = [f"--config={directive}" for directive in QUICK]
SPACE = "--space=tag:LearningRate=log(1e-4,1e-1)"
SEARCH = [*FLAGS, "--search=tpe:3", SPACE, "--objective=validation/loss"]


def test_a_search_trains_points_and_prints_the_best_command(
    command: Command, tmp_path: Path, processes: list[list[str]]
) -> None:
    pytest.importorskip("optuna")
    flags = [*SEARCH, f"--run_dir={tmp_path}", "--stop=median", "--config=set:seed=4"]
    status, out, _ = command(sweep.main, *flags)
    assert status == 0
    assert len(processes) == 3
    assert "3 trials" in out and "python train.py --config=config:debug" in out
    lines = (tmp_path / "table.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["status"] for row in rows} == {"finished"}
    assert rows[0]["directives"][-2].startswith("tag:LearningRate=")
    assert rows[0]["directives"][-1] == "set:seed=4"
    rates = [
        load((tmp_path / row["directory"] / "config.json").read_text()).optimizer.lr for row in rows
    ]
    assert rates == [float(row["values"]["LearningRate"]) for row in rows]
    assert command(sweep.main, *flags).status == 0
    assert len(processes) == 3


def test_a_search_can_be_looked_at(command: Command, processes: list[list[str]]) -> None:
    pytest.importorskip("optuna")
    status, out, _ = command(sweep.main, *SEARCH, "--print")
    assert status == 0 and not processes
    assert "3 trials by tpe, so that validation/loss gets small" in out
    assert "tag:LearningRate moves 1 parameter" in out


def test_a_bisection_names_the_difference_and_is_not_done_twice(
    command: Command, tmp_path: Path, processes: list[list[str]]
) -> None:
    for name, changes in {"good": [], "bad": ["set:seed=3", "tag:LearningRate=3.0"]}.items():
        (tmp_path / name).mkdir()
        cfg = compose([*QUICK, *changes], own_catalogue())
        (tmp_path / name / "config.json").write_text(dump(cfg))
    flags = [
        *(f"--bisect={tmp_path}/good:{tmp_path}/bad", "--objective=validation/loss"),
        *("--steps=3", f"--run_dir={tmp_path}/bisect"),
    ]
    status, out, _ = command(sweep.main, *flags, "--print")
    assert status == 0 and not processes
    assert "~ optimizer.lr: 0.001 -> 3.0" in out
    status, out, _ = command(sweep.main, *flags)
    assert status == 0
    assert len(processes) == 4  # the ends, and each of the two differences
    assert "1 of 2 differences makes validation/loss bad" in out
    assert f"python train.py --config=config_file:{tmp_path}/good/config.json" in out
    assert "--config=set:num_steps=3 --config=set:optimizer.lr=3.0" in out
    again = command(sweep.main, *flags)
    assert again.status == 0 and "~ optimizer.lr: 0.001 -> 3.0" in again.out
    assert len(processes) == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--search=tpe:3", SPACE], "--search needs a number to compare: --objective="),
        ([*SEARCH, "--sweep=set:seed=1,2"], "--sweep has no effect with --search"),
        ([SPACE, "--sweep=set:seed=1,2"], "--space has no effect with a sweep"),
        (["--bisect=runs/good", "--objective=loss"], "--bisect needs two run directories"),
        (["--bisect=nowhere:nobody", "--objective=loss"], "nowhere holds no run"),
        (["--bisect=a:b", *FLAGS, "--objective=loss"], "--config has no effect with --bisect"),
        (
            [*SEARCH[:-1], "--objective=validatoin/loss"],
            "no run reports --objective=validatoin/loss",
        ),
        ([*SEARCH, "--objective=loss"], "--objective=loss: already defined as validation/loss"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: list[str], message: str, command: Command, processes: list[list[str]]
) -> None:
    pytest.importorskip("optuna")
    status, _, err = command(sweep.main, *flags)
    assert status == 2 and message in err
    assert not processes
