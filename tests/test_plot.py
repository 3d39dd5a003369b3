"""Curves of runs: as numbers, as files of every kind, and the command with its mistakes."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from absl.testing import flagsaver

from fidgpt.cli import app, plot
from fidgpt.curves import (
    Curve,
    Recorded,
    chosen_metrics,
    curve_of,
    draw,
    read_runs,
    save,
)
from fidgpt.train import RunError

pytestmark = pytest.mark.slow


def write_run(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    return str(path)


def recorded(*losses: float, name: str = "one") -> Recorded:
    rows = [
        {"step": step, "loss": loss, "tokens": 8 * step, "tokens_per_second": 4.0}
        for step, loss in enumerate(losses, start=1)
    ]
    return Recorded(name, rows)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two runs, one of them without evaluations."""
    pytest.importorskip("matplotlib")
    found = []
    for speed, name in enumerate(["slow", "fast"], start=1):
        rows = [
            {"step": step, "loss": 1 + 6 * math.exp(-speed * step / 40), "learning_rate": 1e-3}
            | {"tokens": 64 * step, "tokens_per_second": 1e5 * speed}
            | ({"validation/loss": 2.0} if speed == 2 and step % 20 == 0 else {})
            for step in range(1, 101)
        ]
        found.append(write_run(tmp_path / name, rows))
    return found


@flagsaver.flagsaver
def plotted(*arguments: str) -> int:
    """The exit status of the command."""
    app.FLAGS.unparse_flags()
    try:
        return app.call(plot.main, app.parse_flags(["plot", *arguments])[1:])
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        app.FLAGS.unparse_flags()


@pytest.mark.parametrize(
    ("kind", "start"),
    {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}.items(),
)
def test_equal_runs_make_equal_files(
    kind: str, start: bytes, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{name}.{kind}" for name in ("one", "two")]
    for file in files:
        flags = ["--metric=loss", "--metric=validation*", f"--out={file}", "--title=Both"]
        assert plotted(*runs, *flags) == 0
    shown = capsys.readouterr()
    assert "loss, validation/loss of slow, fast." in shown.out
    assert shown.err.count("warning: slow has no value of validation/loss.") == 2
    first, second = (file.read_bytes() for file in files)
    assert first == second and first.startswith(start)


def test_axes_may_be_logarithmic_and_over_anything(runs: list[str], tmp_path: Path) -> None:
    drawn, out = set(), tmp_path / "curves.svg"
    for flags in ("--over=step --log_x --log_y", "--over=tokens --log_x", "--over=tokens", ""):
        flags = (flags or "--over=time").split()
        assert plotted(*runs, *flags, f"--out={out}", "--metric=l*", "--first_step=10") == 0
        drawn.add(out.read_bytes())
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        "": "name the runs to draw",
        "{tmp}/none": "none holds no run: .* (no such directory)",
        "{tmp}": "holds no run: .*Runs are inside: .*fast, .*slow",
        "{tmp}/slow {tmp}/./slow": "name each run once",
        "{tmp}/slow --metric=lossy": "no run has the metric lossy. Did you mean",
        "{tmp}/slow --out=a.jpeg": "must end in one of: .pdf, .png, .svg",
        "{tmp}/slow --over=epochs": "value should be one of <step|tokens|time>",
    }.items(),
)
@pytest.mark.usefixtures("runs")
def test_mistakes_are_named(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "empty", [])
    assert plotted(*arguments.format(tmp=tmp_path).split()) == 2
    error, at = capsys.readouterr().err, -1
    for part in message.split(".*"):
        at = error.find(part.strip(), at + 1)
        assert at >= 0, error


def test_runs_and_points_that_cannot_be_drawn_are_left_out(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {"begun": [], "below": [-2.0], "huge": [2.0, 1e308, 1e100]}
    others = [
        write_run(tmp_path / name, [{"step": i, "loss": one} for i, one in enumerate(values, 1)])
        for name, values in losses.items()
    ]
    assert plotted(*runs, *others, "--metric=loss", "--log_y", f"--out={tmp_path}/a.svg") == 0
    shown = capsys.readouterr()
    assert "a.svg shows loss of slow, fast, huge." in shown.out
    assert "huge has numbers of loss that are omitted, as they are NaN, infinite" in shown.err
    assert "at step 2." in shown.err
    assert f"warning: {tmp_path}/begun has nothing to draw" in shown.err
    assert "warning: below has no value of loss above 0, as --log_y needs." in shown.err
    assert plotted(others[1], "--metric=loss", "--log_y", f"--out={tmp_path}/b.svg") == 2
    assert "no run has a value of loss above 0, as --log_y needs" in capsys.readouterr().err


def curve(run: Recorded, metric: str = "loss", *, over: str = "step", **settings: Any) -> Curve:
    made = curve_of(run, metric, over=over, **settings)
    assert made is not None
    return made


def test_points_lie_over_steps_tokens_or_time() -> None:
    run = recorded(3.0, 2.0, 1.0)
    for over, x in {"step": [1, 2, 3], "tokens": [8, 16, 24], "time": [2.0, 4.0, 6.0]}.items():
        made = curve(run, over=over, smooth=0)
        assert (made.x, made.y, made.smooth) == (x, [3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    run.rows[1]["validation/loss"] = 5.0
    assert not curve(recorded(*[2.0] * 9), over="tokens").is_sparse
    sparse = curve(run, "validation/loss", over="tokens")
    assert sparse.is_sparse and (sparse.x, sparse.smooth) == ([16], [5.0])
    del run.rows[1]["tokens_per_second"]
    with pytest.raises(RunError, match=r"one cannot be drawn over time: .* tokens_per_second"):
        curve_of(run, "loss", over="time")


def test_a_legend_of_many_runs_leaves_room_for_the_panel(tmp_path: Path) -> None:
    curves = [Curve(f"a/{i}", [1, 2], [2.0, 1.0], [2.0, 1.0], False) for i in range(24)]
    save(draw({"loss": curves}, over="step"), tmp_path / "a.png")  # a warning is an error


def test_metrics_are_chosen_and_named_as_shortly_as_possible(tmp_path: Path) -> None:
    runs = [recorded(1.0), Recorded("two", [{"step": 1, "validation/loss": 2.0, "note": "a"}])]
    assert chosen_metrics(runs, []) == ["loss", "validation/loss", "tokens_per_second"]
    assert chosen_metrics(runs, ["*loss", "loss"]) == ["loss", "validation/loss"]
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for path in paths:
        write_run(path, [{"step": 1, "loss": 1.0}])
    assert [run.name for run in read_runs(paths)] == ["a/run", "b/run"]
    assert [run.name for run in read_runs(paths[:1])] == ["run"]
