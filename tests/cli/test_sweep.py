"""The command `sweep.py`: grids, searches and bisections, and flags that do not go together."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sweep
from fidgpt.compose.composition import compose
from fidgpt.graph import dump, load
from fidgpt.sweep import axis, plan, running
from fidgpt.train.trackers.trackers import read_rows

from .conftest import Command

pytestmark = pytest.mark.slow

Lines = list[list[str]]
QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
FLAGS = [f"--config={directive}" for directive in QUICK]
RATES = "--sweep=tag:LearningRate=1e-3,3e-3"
SPACE = "--space=tag:LearningRate=log(1e-4,1e-1)"
SEARCH = [*FLAGS, "--search=tpe:3", SPACE, "--objective=validation/loss"]


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "table.jsonl").read_text().splitlines()]


def test_print_shows_the_points_alone(command: Command, tmp_path: Path, processes: Lines) -> None:
    axes = [f"{RATES},0.003", "--sweep=set:seed=0,1"]
    flags = (*axes, "--print", f"--run_dir={tmp_path / 'sweep'}")
    status, out, _ = command(sweep.main, *FLAGS, *flags)
    head, *rows = out.splitlines()
    assert status == 0
    assert head.split() == ["point", "fingerprint", "parameters", "FLOPs", "about"]
    points = plan([*QUICK, axis("tag:LearningRate=1e-3,3e-3"), axis("set:seed=0,1")]).points
    assert [row.split()[:4] for row in rows[:4]] == [
        [*point.name.split(), point.short, "41,152"] for point in points
    ]
    assert rows[4].startswith("4 points, about ")
    assert [row.strip() for row in rows[5:]] == [
        "2 more are the same runs as some of these",
        "tag:LearningRate changes 1 parameter",
        "set:seed changes 2 parameters",
        f"in {tmp_path / 'sweep'}",
    ]
    assert not (tmp_path / "sweep").exists() and not processes


def test_points_take_what_their_plan_says(command: Command) -> None:
    """A budget in hours leaves out the most costly points."""
    flags = [*FLAGS, RATES, "--sweep=set:seq_len=32,1024", "--print", "--hardware=cpux1"]
    points = plan([*QUICK, axis("set:seq_len=32,1024")]).points
    short, long = map(running.planned_pace(points, "cpux1", allowed=()).seconds, points)
    assert "in sequence, as planned for cpux1" in command(sweep.main, *flags).out
    hours = f"--budget={(short + long) / 3600:.9f}h"
    assert command(sweep.main, *flags, hours).status == 2
    assert "no point is within" in command(sweep.main, *flags, "--budget=1", "--drop").err
    assert command(sweep.main, *flags, hours, "--drop").out.count("dropped, ") == 2


def test_a_sweep_trains_each_point_once(command: Command, tmp_path: Path, processes: Lines) -> None:
    flags = [*FLAGS, RATES, f"--run_dir={tmp_path}"]
    status, out, _ = command(sweep.main, *flags)
    assert status == 0
    points = plan([*QUICK, axis("tag:LearningRate=1e-3,3e-3")]).points
    found = [tmp_path / point.fingerprint[:12] for point in points]
    rates = [load((path / "config.json").read_text()).optimizer.lr for path in found]
    assert rates == [1e-3, 3e-3]
    rows = [read_rows(path / "metrics.jsonl") for path in found]
    assert [len(one) for one in rows] == [2, 2]
    assert rows[0][-1]["loss"] != rows[1][-1]["loss"]
    again = command(sweep.main, *flags)
    assert again.status == 0 and len(processes) == 2
    assert all(f"{rows[1][-1]['loss']:.4f}" in text for text in (out, again.out))


def test_a_failed_point_is_retried_alone(
    command: Command, tmp_path: Path, processes: Lines
) -> None:
    flags = [*FLAGS, "--sweep=tag:LearningRate=1e30,1e-3", f"--run_dir={tmp_path}"]
    status, out, _ = command(sweep.main, *flags, "--config=set:num_steps=4")
    assert status == 1 and "finished" in out and "diverged" in out
    assert len(processes) == 2
    command(sweep.main, *flags, "--config=set:num_steps=4", "--retries=1")
    assert len(processes) == 4
    assert all("--resume" in line[-1] for line in processes[2:])


def test_a_search_prints_the_best_point(command: Command, tmp_path: Path, processes: Lines) -> None:
    pytest.importorskip("optuna")
    flags = [*SEARCH, f"--run_dir={tmp_path}", "--stop=median", "--config=set:seed=4"]
    shown = command(sweep.main, *flags, "--print")
    assert shown.status == 0 and not processes
    assert "3 trials by tpe, for validation/loss, in" in shown.out
    assert "tag:LearningRate changes 1 parameter" in shown.out
    status, out, _ = command(sweep.main, *flags)
    assert status == 0 and len(processes) == 3
    assert "3 trials" in out and "python train.py --config=config:debug" in out
    rows = rows_of(tmp_path)
    assert {row["status"] for row in rows} == {"finished"}
    assert rows[0]["directives"][-2].startswith("tag:LearningRate=")
    assert rows[0]["directives"][-1] == "set:seed=4"
    configs = [load((tmp_path / row["directory"] / "config.json").read_text()) for row in rows]
    rates = [float(row["values"]["LearningRate"]) for row in rows]
    assert [cfg.optimizer.lr for cfg in configs] == rates
    assert command(sweep.main, *flags).status == 0
    assert len(processes) == 3


def test_a_bisection_names_the_difference(
    command: Command, tmp_path: Path, processes: Lines
) -> None:
    for name, changes in {"good": [], "bad": ["set:seed=3", "tag:LearningRate=3.0"]}.items():
        (tmp_path / name).mkdir()
        cfg = compose([*QUICK, *changes]).config
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
    assert f"--config=patch:{tmp_path}/bisect/patches/" in out
    again = command(sweep.main, *flags)
    assert again.status == 0 and "~ optimizer.lr: 0.001 -> 3.0" in again.out
    assert len(processes) == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([RATES, "--print=json"], "--print=json shows one config"),
        ([RATES, "--run_dir={run}"], "holds a run: name a directory of the sweep's own"),
        (["--search=tpe:3", SPACE], "--search needs a metric to compare: --objective="),
        ([*SEARCH[3:-1], "--objective=validatoin/loss"], "no run reports --objective=validatoin"),
        (["--bisect=a:b", "--objective=loss"], "--config has no effect with --bisect"),
    ],
)
def test_mistakes_start_nothing(
    flags: list[str],
    message: str,
    command: Command,
    processes: Lines,
    tmp_path: Path,
) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").touch()
    flags = [flag.format(run=tmp_path / "run") for flag in flags]
    place = [] if "--run_dir" in "".join(flags) else [f"--run_dir={tmp_path / 'new'}"]
    status, out, err = command(sweep.main, *FLAGS, *place, *flags)
    assert (status, out) == (2, "") and message in err
    assert not processes and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("runs", "message"),
    {"runs/good": "--bisect needs two run directories", "no:none": "no holds no run"}.items(),
)
def test_a_bisection_needs_two_runs(runs: str, message: str, command: Command) -> None:
    status, _, err = command(sweep.main, f"--bisect={runs}", "--objective=loss")
    assert status == 2 and message in err
