"""A sweep of real runs: stopped and gone on with, one point that fails, and what is written."""

import csv
import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from fidgpt.compose.composition import compose
from fidgpt.compose.runs import build_trainer, new_run
from fidgpt.graph import ConfigError, fingerprint, load
from fidgpt.sweep import Job, LocalRunner, Sweep, axis, read_results, repeat
from fidgpt.sweep.axes import Item
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import ResultsTable, read_table
from fidgpt.train.trackers.trackers import read_rows, reproducible

from .conftest import Toys
from .test_local import interrupt_when

RATES = "tag:LearningRate=1e-3,1e20"
RUN = ["config:debug", "set:samples=None", "set:num_steps=60", "set:evaluators={}"]


def rows_of(path: Path) -> list[dict[str, float]]:
    """The numbers of a run that do not depend on how fast it went."""
    return [reproducible(row) for row in read_rows(path / "metrics.jsonl")]


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_stopped_sweep_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRunner, "pause", 0.02)
    sweep = Sweep(*RUN, axis(RATES), directory=tmp_path / "sweep")
    first, wild = sweep.points
    metrics = sweep.directory / first.short / "metrics.jsonl"
    thread = interrupt_when(lambda: metrics.exists() and metrics.stat().st_size)
    results = sweep.run(console=Console(file=io.StringIO()))
    thread.join()
    assert [row["status"] for row in results] == ["stopped", "waiting"]
    assert 0 < len(rows_of(metrics.parent)) < 60

    console = Console(file=io.StringIO())
    results = sweep.run(console=console)
    assert [row["status"] for row in results] == ["finished", "diverged"]
    assert [row["attempts"] for row in results] == [2, 1]
    assert "goes on, it was at step" in said(console)
    assert "step 2 diverged" in results[1]["last_words"]
    for point in (first, wild):
        cfg = load((sweep.directory / point.short / "config.json").read_text())
        assert fingerprint(cfg) == point.fingerprint

    cfg = compose(first.directives).config
    whole = new_run(cfg, directives=first.directives, path=str(tmp_path / "whole"))
    build_trainer(cfg).train(whole)
    assert rows_of(metrics.parent) == rows_of(whole.path)

    best = read_results(sweep.directory).best()
    assert best is not None and best["name"] == first.name


class ToySweep(Sweep):
    """A sweep whose points are toys."""

    toys: Toys

    @property
    def jobs(self) -> list[Job]:
        return self.toys.jobs(["1", "2", "3"])


@pytest.fixture
def sweep(toys: Toys) -> ToySweep:
    made = ToySweep(axis("set:seed=1,2,3"), directory=toys.directory)
    made.toys = toys
    return made


def test_the_results_are_plain_files(sweep: ToySweep) -> None:
    second = sweep.jobs[1]
    sweep.toys.fail(second, times=9, words="error: no, never")
    results = sweep.run(console=Console(file=io.StringIO()))
    lines = (sweep.directory / "table.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(results) == list(sweep.results())
    expected = {
        "name": "seed=2",
        "fingerprint": second.point.fingerprint,
        "status": "failed",
        "directory": second.directory.name,
        "values": {"seed": "2"},
        "directives": ["set:seed=2"],
        "step": 2,
        "metrics": {"step": 2, "loss": 0.5},
        "attempts": 1,
        "last_words": "no, never",
    }
    assert {key: results[1][key] for key in expected} == expected
    sheet = list(csv.DictReader(io.StringIO((sweep.directory / "results.csv").read_text())))
    assert [row["status"] for row in sheet] == ["finished", "failed", "finished"]
    assert [(row["seed"], row["loss"]) for row in sheet] == [
        ("1", "0.2"),
        ("2", "0.5"),
        ("3", "0.2"),
    ]
    assert "no, never" in results._repr_html_() and "seed=3" in results._repr_html_()


def test_results_can_be_read_while_points_run(sweep: ToySweep) -> None:
    sweep.toys.seconds = 0.1
    seen: list[list[str]] = []

    def look() -> None:
        while not (sweep.directory / "table.jsonl").exists():
            time.sleep(0.01)
        for _ in range(20):
            seen.append([row["status"] for row in read_results(sweep.directory)])
            time.sleep(0.02)

    thread = Thread(target=look)
    thread.start()
    sweep.run(jobs=3, console=Console(file=io.StringIO()))
    thread.join()
    assert ["running"] * 3 in seen


def test_what_is_done_is_not_done_again_and_other_code_is_said_aloud(sweep: ToySweep) -> None:
    sweep.run(console=Console(file=io.StringIO()))
    table = sweep.directory / "table.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[1]["code"] = "another"
    stranger = rows[0] | {"fingerprint": "f" * 64, "name": "seed=9"}
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, stranger]))
    console = Console(file=io.StringIO(), width=1000)
    results = sweep.run(console=console)
    assert "3 of 3 points are done already" in said(console)
    assert "warning: 1 point was run by another version of the code" in said(console)
    assert "seed=2" in said(console)
    assert [row["attempts"] for row in results] == [1, 1, 1]
    assert [row["name"] for row in sweep.results()] == ["seed=1", "seed=2", "seed=3", "seed=9"]


def test_a_point_keeps_what_it_has_on_the_axes_of_an_earlier_sweep(toys: Toys) -> None:
    toys.directory.mkdir()
    (job,) = toys.jobs(["1"])
    wider = {"WeightDecay": "0.1", **job.point.values}
    point = replace(job.point, name="WeightDecay=0.1 seed=1", values=wider)
    ResultsTable(toys.directory, [replace(job, point=point)]).write()
    ResultsTable(toys.directory, [job]).write()
    (row,) = read_table(toys.directory)
    assert (row["name"], row["values"]) == (point.name, wider)
    other = replace(job.point, name="width=8 seed=1", values={"width": "8", "seed": "1"})
    ResultsTable(toys.directory, [replace(job, point=other)]).write()
    (row,) = read_table(toys.directory)
    assert (row["name"], row["values"]) == (other.name, {**wider, "width": "8"})


@pytest.mark.parametrize(
    ("items", "is_said"),
    [
        (["set:seq_len=8", axis("set:seed=1,2")], True),
        ([axis("set:num_steps=1,2")], True),
        ([axis("set:seed=1,2,3,4")], False),
        ([axis("set:seed=1,2"), axis("set:num_steps=1,2")], False),
        ([axis("set:seed=1,2"), repeat("tag:Seed:2")], False),
    ],
)
def test_points_of_another_sweep_in_the_directory_are_said(
    sweep: ToySweep, items: list[Item], is_said: bool
) -> None:
    sweep.run(console=Console(file=io.StringIO()))
    other = ToySweep(*items, directory=sweep.directory)
    other.toys = sweep.toys
    console = Console(file=io.StringIO())
    other.run(console=console)
    assert ("holds points of another sweep too, config:base over seed:" in said(console)) == is_said


def test_nothing_is_drawn_before_something_runs(sweep: ToySweep) -> None:
    class Unreachable:
        def run(self, jobs: list[Job], events: Screen) -> bool:
            time.sleep(0.5)  # in which a terminal would be drawn anew
            raise ConfigError("no cluster answers")

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(ConfigError, match="no cluster answers"):
        sweep.run(runner=Unreachable(), console=console)  # pyright: ignore
    assert said(console) == ""


def test_a_terminal_shows_what_runs(sweep: ToySweep) -> None:
    sweep.toys.seconds = 0.1
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    sweep.run(jobs=2, console=console)
    shown = said(console)
    assert "0 of 3 done" in shown and "2 of 3 done" in shown and "best so far" in shown
    assert re.search(r"[1-5]/5", shown) and "left" in shown


def test_a_notebook_gets_lines(
    sweep: ToySweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do
    sweep.run()
    shown = capsys.readouterr().out
    assert "[3/3] seed=3: finished, step 5/5" in shown
    assert "\x1b[2K" not in shown  # nothing is drawn over


def test_another_engine_may_run_the_points(sweep: ToySweep) -> None:
    class Backwards:
        def run(self, jobs: list[Job], events: object) -> bool:
            return LocalRunner().run(jobs[::-1], events)  # pyright: ignore

    console = Console(file=io.StringIO())
    assert {row["status"] for row in sweep.run(runner=Backwards(), console=console)} == {"finished"}  # pyright: ignore
    assert said(console).index("seed=3: begins") < said(console).index("seed=1: begins")


def test_where_no_sweep_ran_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no sweep"):
        read_results(tmp_path)
