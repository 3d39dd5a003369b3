"""The command `sweep.py`: every combination once, none if one is wrong, none a second time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sweep
from fidgpt.graph import ConfigError, ConfigErrors, load
from fidgpt.sweep import Point, axis, axis_values, plan
from fidgpt.sweep.runners import local
from fidgpt.train.trackers.trackers import read_rows

QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
FLAGS = [f"--config={directive}" for directive in QUICK]
Command = Callable[..., Any]


def points_of(directives: list[str], axes: list[str]) -> list[Point]:
    return plan([*directives, *map(axis, axes)]).points


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "Popen", None)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("tag:LearningRate=1e-3,3e-3", ["tag:LearningRate=1e-3", "tag:LearningRate=3e-3"]),
        ("set:num_steps=2", ["set:num_steps=2"]),
        (
            "set:optimizer.betas=(0.9,0.95),(0.9,0.99)",
            ["set:optimizer.betas=(0.9,0.95)", "set:optimizer.betas=(0.9,0.99)"],
        ),
        (
            "fiddler:use_gqa(1),use_gqa(num_kv_heads=2),use_gelu",
            ["fiddler:use_gqa(1)", "fiddler:use_gqa(num_kv_heads=2)", "fiddler:use_gelu"],
        ),
        ("config:debug, base", ["config:debug", "config:base"]),
        (
            "use:model.norm=RMSNorm(eps=1e-3),RMSNorm(eps=1e-4)",
            ["use:model.norm=RMSNorm(eps=1e-3)", "use:model.norm=RMSNorm(eps=1e-4)"],
        ),
        ("set:num_steps*=2,3", ["set:num_steps*=2", "set:num_steps*=3"]),
        ("set:evaluators['a=b'].every=2", ["set:evaluators['a=b'].every=2"]),
    ],
)
def test_the_values_of_an_axis(axis: str, values: list[str]) -> None:
    assert axis_values(axis) == values


@pytest.mark.parametrize(
    "axis", ["", "tag", "tag:LearningRate", "tag:LearningRate=", "fiddler:", "set:a=1,,2", "a=1,2"]
)
def test_an_axis_without_values(axis: str) -> None:
    with pytest.raises(ConfigError):
        axis_values(axis)


def test_axes_multiply() -> None:
    points = points_of(QUICK, ["set:seed=1,2", "fiddler:use_gelu,use_gqa(1),use_wsd"])
    assert len(points) == len({point.fingerprint for point in points}) == 6
    assert points[1].varied == ("set:seed=1", "fiddler:use_gqa(1)")
    assert points[1].directives == (*QUICK, *points[1].varied)


def test_points_that_are_the_same_run_are_one() -> None:
    points = points_of(QUICK, ["tag:LearningRate=1e-3,0.001,3e-3", "set:seed=0,1"])
    assert [point.varied for point in points] == [
        ("tag:LearningRate=1e-3", "set:seed=0"),
        ("tag:LearningRate=1e-3", "set:seed=1"),
        ("tag:LearningRate=3e-3", "set:seed=0"),
        ("tag:LearningRate=3e-3", "set:seed=1"),
    ]


@pytest.mark.parametrize("values", ["set:seed*=1,2", "tag:LearningRate=1e-3,0.001"])
def test_an_axis_that_changes_nothing_is_refused(values: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        points_of(QUICK, [values])
    assert caught.value.messages[0].startswith(f"--sweep={values} changes nothing")


def test_configs_can_be_an_axis() -> None:
    assert len(points_of([], ["config:debug,base"])) == 2


def wrong(number: int, directive: str, piece: str, why: str) -> str:
    carets = " " * (len("--config=") + directive.rindex(piece)) + "^" * len(piece)
    return f"directive {number} is wrong:\n  --config={directive}\n  {carets}\n  {why}"


def test_every_wrong_point_is_named() -> None:
    with pytest.raises(ConfigErrors) as caught:
        points_of(QUICK, ["set:model.hidden_dim=32,33,x", "set:seed=1,y"])
    assert caught.value.messages == [
        wrong(5, "set:seed=y", "y", "seed: 'y' is not an int."),
        "set:model.hidden_dim=33 set:seed=1:\n  model.blocks[0].attention (Attention): "
        "hidden_dim=33 is not a whole "
        "number of heads of head_dim=16; change one of them, or set num_heads.",
        wrong(4, "set:model.hidden_dim=x", "x", "model.hidden_dim: 'x' is not an int."),
        wrong(4, "set:model.hidden_dim=x", "x", "model.hidden_dim: 'x' is not an int.")
        + "\n\n"
        + wrong(5, "set:seed=y", "y", "seed: 'y' is not an int."),
    ]


@pytest.mark.usefixtures("no_process")
def test_one_wrong_point_starts_none(command: Command, tmp_path: Path) -> None:
    axis = "--sweep=tag:LearningRate=1e-3,fast"
    status, out, err = command(sweep.main, *FLAGS, axis, f"--run_dir={tmp_path / 'sweep'}")
    assert (status, out) == (2, "")
    assert err.startswith("error: directive 4 is wrong:\n  --config=tag:LearningRate=fast\n")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "error: name an axis: --sweep=tag:LearningRate=1e-3,3e-3"),
        (
            ["--sweep=tag:NumKVHeads=1,2"],
            "error: directive 1 is wrong:\n  --config=tag:NumKVHeads=1",
        ),
        (["--sweep=set:seed=1", "stray"], "error: 'stray' is no flag."),
        (
            ["--config=set:seed=1", "--sweep=config:debug"],
            "error: directive 2 is wrong:\n  --config=config:debug",
        ),
    ],
)
def test_mistakes(command: Command, flags: list[str], message: str) -> None:
    status, out, err = command(sweep.main, *flags)
    assert (status, out) == (2, "")
    assert err.startswith(message)


@pytest.mark.usefixtures("no_process")
def test_print_shows_the_points_and_runs_none(command: Command, tmp_path: Path) -> None:
    axes = ["--sweep=tag:LearningRate=1e-3,3e-3,0.003", "--sweep=set:seed=0,1"]
    flags = (*axes, "--print", f"--run_dir={tmp_path / 'sweep'}")
    status, out, _ = command(sweep.main, *FLAGS, *flags)
    head, *rows = out.splitlines()
    assert status == 0
    assert head.split() == ["point", "fingerprint", "parameters", "FLOPs", "about"]
    points = points_of(QUICK, ["tag:LearningRate=1e-3,3e-3", "set:seed=0,1"])
    assert [row.split()[:4] for row in rows[:4]] == [
        [*point.name.split(), point.short, "41,152"] for point in points
    ]
    assert rows[4].startswith("4 points, about ")
    assert [row.strip() for row in rows[5:]] == [
        "2 more are the same runs as some of these",
        "tag:LearningRate moves 1 parameter",
        "set:seed moves 2 parameters",
        f"in {tmp_path / 'sweep'}",
    ]
    assert not (tmp_path / "sweep").exists()


@pytest.mark.usefixtures("no_process")
def test_flags_keep_their_places(command: Command) -> None:
    flags = ["--config=config:debug", "--sweep=set:seq_len=16,32", "--config=set:samples=None"]
    more = ["--zip=set:batch_size=1,2;tag:LearningRate=1,2", "--sweep=tag:WeightDecay=0,1"]
    rest = ["--repeat=seed:2", "--ablate=fiddler:use_gelu,use_gqa(1)", "--config=set:num_steps=3"]
    assert command(sweep.main, *flags, *more, *rest, "--print").out.splitlines()[-2] == (
        "fiddler:use_gqa(1) moves 1 parameter"
    )
    late = command(sweep.main, *flags, *more, "--config=set:seq_len=64", "--print")
    assert late.status == 2
    assert "set:seq_len=64 (directive 7) overwrites" in late.err


def test_a_learning_rate_sweep_trains_and_what_is_done_is_done(
    command: Command, tmp_path: Path, processes: list[list[str]]
) -> None:
    flags = [*FLAGS, "--sweep=tag:LearningRate=1e-3,3e-3", f"--run_dir={tmp_path}"]
    status, out, _ = command(sweep.main, *flags)
    assert status == 0
    points = points_of(QUICK, ["tag:LearningRate=1e-3,3e-3"])
    found = [tmp_path / point.fingerprint[:12] for point in points]
    rates = [load((path / "config.json").read_text()).optimizer.lr for path in found]
    assert rates == [1e-3, 3e-3]
    rows = [read_rows(path / "metrics.jsonl") for path in found]
    assert [len(one) for one in rows] == [2, 2]
    assert rows[0][-1]["loss"] != rows[1][-1]["loss"]
    assert f"{rows[1][-1]['loss']:.4f}" in out
    again = command(sweep.main, *flags)
    assert again.status == 0
    assert f"{rows[1][-1]['loss']:.4f}" in again.out
    assert len(processes) == 2


def test_a_point_that_failed_is_tried_again_and_the_others_go_on(
    command: Command, tmp_path: Path, processes: list[list[str]]
) -> None:
    flags = [*FLAGS, "--sweep=tag:LearningRate=1e30,1e-3", f"--run_dir={tmp_path}"]
    status, out, _ = command(sweep.main, *flags, "--config=set:num_steps=4")
    assert status == 1
    assert "finished" in out
    assert "diverged" in out
    assert len(processes) == 2
    command(sweep.main, *flags, "--config=set:num_steps=4", "--retries=1")
    assert len(processes) == 4
    assert all("--resume" in line[-1] for line in processes[2:])


def test_points_that_measure_no_objective_are_said(command: Command, tmp_path: Path) -> None:
    said = [*FLAGS, "--sweep=tag:LearningRate=1e-3,3e-3", "--objective=moe/load_max"]
    status, out, err = command(sweep.main, *said, f"--run_dir={tmp_path}")
    assert status == 2
    assert out.count("warning: no run reports moe/load_max. There are") == 1
    assert "no run reports --objective=moe/load_max. There are" in err


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--objective=lost", "no run reports --objective=lost. Did you mean loss"),
        ("--objective=max", "--objective=max must name a metric"),
        ("--print=json", "--print=json shows one config"),
        ("--ablate=", "--ablate= leaves nothing out"),
        ("--sweep=LearningRate=1,2", "--sweep=LearningRate=1,2 lacks the kind of directive"),
    ],
)
def test_what_makes_no_sweep_starts_none(
    command: Command, tmp_path: Path, flag: str, message: str
) -> None:
    said = [*FLAGS, "--sweep=tag:LearningRate=1e-3,3e-3", f"--run_dir={tmp_path / 'new'}"]
    status, _, err = command(sweep.main, *said, flag)
    assert status == 2 and message in err
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_place_for_a_sweep(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = [*FLAGS, "--sweep=tag:LearningRate=1e-3,3e-3", f"--run_dir={tmp_path / 'file' / 'a'}"]
    status, _, err = command(sweep.main, *said)
    assert status == 2 and "lies in one: name a directory" in err


def test_a_run_is_no_place_for_a_sweep(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    said = [*FLAGS, "--sweep=tag:LearningRate=1e-3,3e-3", f"--run_dir={tmp_path}"]
    status, _, err = command(sweep.main, *said)
    assert status == 2 and "holds a run: name a directory of the sweep's own" in err
