"""The command `plot`: files of every kind, and what it says where it cannot draw."""

import errno
import itertools
import json
import math
import sys
from pathlib import Path

import pytest
from absl.testing import flagsaver

from fidgpt.cli import app, plot


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two directories with metrics, one of them without evaluations."""
    for number, name in enumerate(["slow", "fast"], start=1):
        (tmp_path / name).mkdir()
        rows = [
            {
                "step": step,
                "loss": 1 + 6 * math.exp(-number * step / 40),
                "learning_rate": 1e-3,
                "tokens": 64 * step,
                "tokens_per_second": 1e5 * number,
            }
            | ({"validation/loss": 2.0} if number == 2 and step % 20 == 0 else {})
            for step in range(1, 101)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "metrics.jsonl").write_text(text, encoding="utf-8")
    return [str(tmp_path / "slow"), str(tmp_path / "fast")]


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


@pytest.mark.parametrize("kind", ["html", "pdf", "png", "svg"])
def test_runs_are_drawn_into_a_file_that_is_the_same_again(
    kind: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}.{kind}" for name in ("one", "two")]
    for file in files:
        asked = ["--metric=loss", "--metric=validation*", f"--out={file}", "--title=Both"]
        assert plotted(*runs, *asked) == 0
    told = capsys.readouterr()
    assert "loss, validation/loss of slow, fast." in told.out
    assert told.err.count("warning: slow has no number of validation/loss.") == 2
    first, second = (file.read_bytes() for file in files)
    assert first == second
    start = {"html": b"<!doctype html>", "pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[kind]
    assert first.startswith(start)
    if kind == "html":
        assert b"<td>fast</td>" in first and b"http://127" not in first


def test_axes_may_be_logarithmic_and_over_anything(runs: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = set()
    for asked in (
        ["--over=step", "--log_x", "--log_y"],
        ["--over=tokens", "--log_x"],
        ["--over=tokens"],
        ["--over=time"],
    ):
        out = tmp_path / "curves.svg"
        asked = [*asked, f"--out={out}", "--metric=l*", "--first_step=10"]
        assert plotted(*runs, *asked) == 0
        drawn.add(out.read_bytes())
    assert len(drawn) == 4


def test_every_run_has_its_colour_and_numbers_do_not_overlap() -> None:
    pytest.importorskip("matplotlib")
    from fidgpt.curves.drawing import Look, draw
    from fidgpt.curves.series import Curve

    curves = [
        Curve(f"run {i}", [1, 2], [5.0, 1 + i / 1e3], [5.0, 1 + i / 1e3], False) for i in range(10)
    ]
    (panel,) = draw({"loss": curves}, look=Look(over="step")).axes
    heights = sorted(text.xy[1] for text in panel.texts)  # pyright: ignore[reportAttributeAccessIssue]
    assert len(heights) == 10
    assert min(b - a for a, b in itertools.pairwise(heights)) > 0.05
    assert len({str(line.get_color()) for line in panel.lines}) == 10
    many = [Curve(f"run {i}", [1, 2], [2, 1], [2, 1], False) for i in range(25)]
    (panel,) = draw({"loss": many}, look=Look(over="step")).axes
    assert len({str(line.get_color()) for line in panel.lines}) == 25


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        "no run": ([], "name the runs to draw"),
        "no such run": (["{tmp}/none"], "none holds no run: .* (no such directory)"),
        "a folder of runs": (["{tmp}"], "holds no run: .*Runs are inside: .*fast, .*slow"),
        "no row": (["{tmp}/empty"], "has nothing to draw: .* has no row of a step yet"),
        "twice": (["{tmp}/slow", "{tmp}/./slow"], "name each run once"),
        "a metric": (["{tmp}/slow", "--metric=lossy"], "no run has the metric lossy. Did you mean"),
        "a kind": (["{tmp}/slow", "--out=a.jpeg"], "must end in one of: .html, .pdf, .png, .svg"),
        "a place": (["{tmp}/slow", "--out={tmp}/no/a.png"], "cannot be written: No such file"),
        "too late": (["{tmp}/slow", "--first_step=999"], "see --first_step"),
        "an axis": (["{tmp}/slow", "--over=epochs"], "value should be one of <step|tokens|time>"),
    }.values(),
)
@pytest.mark.usefixtures("runs")
def test_a_mistake_is_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    assert plotted(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments)) == 2
    said = capsys.readouterr().err
    at = -1
    for part in message.split(".*"):
        at = said.find(part.strip(), at + 1)
        assert at >= 0, said


def test_what_has_nothing_to_draw_is_left_out_of_what_has(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    huge = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1e308}\n{"step": 3, "loss": 1e100}\n'
    below = '{"step": 1, "loss": -2.0}\n'
    for name, text in {"begun": "", "below": below, "huge": huge}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(text)
    others = [str(tmp_path / name) for name in ("begun", "below", "huge")]
    assert plotted(*runs, *others, "--metric=loss", "--log_y", f"--out={tmp_path}/a.svg") == 0
    told = capsys.readouterr()
    assert "a.svg shows loss of slow, fast, huge." in told.out
    assert (
        "huge has numbers of loss that are left out, as they are NaN, infinite or too" in told.err
    )
    assert "at step 2." in told.err
    assert f"warning: {tmp_path}/begun has nothing to draw" in told.err
    assert "warning: below has no number of loss above 0, as --log_y needs." in told.err
    assert plotted(others[1], "--metric=loss", "--log_y", f"--out={tmp_path}/b.svg") == 2
    assert "no run has a number of loss above 0, as --log_y needs" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["html", "png"])
def test_a_disk_without_room_leaves_the_file_that_was_there(
    kind: str, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"curves.{kind}"
    assert plotted(*runs, f"--out={file}") == 0
    before = file.read_bytes()

    def cut_short(draft: Path, path: Path) -> None:
        draft.write_bytes(draft.read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", cut_short)
    assert plotted(*runs, f"--out={file}", "--metric=loss") == 2
    assert file.read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_without_matplotlib_the_extra_is_named(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plotted(*runs) == 2
    assert 'pip install "fidgpt[plot]"' in capsys.readouterr().err
