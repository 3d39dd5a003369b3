"""Sweeps: stopped and continued, their files, what they are compared by and what they show."""

import csv
import io
import json
import re
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked import Python
from rich.console import Console
from spared import fork_points

from fidgpt.graph import ConfigError, fingerprint, load
from fidgpt.sweep import Job, LocalRunner, Sweep, axis, read_results
from fidgpt.sweep.axes import Item
from fidgpt.sweep.objective import Objective, objective_of, read_objective
from fidgpt.sweep.report import read_report
from fidgpt.sweep.results import Results, read_table

from .conftest import Toys, rows_of


class ToySweep(Sweep):
    """A sweep whose points are toys."""

    toys: Toys

    @property
    def jobs(self) -> list[Job]:
        return self.toys.jobs(["1", "2", "3"])


def toy_sweep(toys: Toys, *items: Item, **settings: Any) -> ToySweep:
    made = ToySweep(*(items or [axis("set:seed=1,2,3")]), directory=toys.directory, **settings)
    made.toys = toys
    return made


def run(sweep: Sweep, **settings: Any) -> tuple[Results, str]:
    """The results of a sweep, and what it prints."""
    text = io.StringIO()
    return sweep.run(console=Console(file=text, width=1000), **settings), text.getvalue()


@pytest.mark.slow
def test_a_stopped_sweep_continues_exactly(tmp_path: Path) -> None:
    quick = ["config:debug", "set:samples=None", "set:num_steps=100", "set:evaluators={}"]
    sweep = Sweep(*quick, axis("tag:LearningRate=1e-3"), directory=tmp_path / "sweep")
    (first,) = sweep.points
    path = sweep.directory / first.short
    metrics, flags = path / "metrics.jsonl", [f"--config={one}" for one in quick]

    def started(name: str, *more: str, first: Any = None) -> Python:
        command = ["-m", f"fidgpt.cli.{name}", *flags, *more]
        return Python(*command, output=tmp_path / "output", first=first)

    def swept() -> Python:
        rates, place = "--sweep=tag:LearningRate=1e-3", f"--run_dir={sweep.directory}"
        return started("sweep", rates, place, first=partial(fork_points, pause=0.02))

    driver = swept()
    while not (metrics.exists() and metrics.stat().st_size) and driver.status is None:
        time.sleep(0.01)
    driver.send_signal(signal.SIGINT)
    assert driver.end(seconds=300) == 128 + signal.SIGINT, driver.output
    assert [row["status"] for row in read_results(sweep.directory)] == ["stopped"]
    assert 0 < len(rows_of(path)) < 100
    driver = swept()
    assert driver.end(seconds=300) == 0, driver.output
    (row,) = read_results(sweep.directory)
    assert (row["status"], row["attempts"]) == ("finished", 2)
    assert "resumes after step" in driver.output
    assert fingerprint(load((path / "config.json").read_text())) == first.fingerprint
    whole = tmp_path / "whole"
    alone = started("train", "--config=tag:LearningRate=1e-3", f"--run_dir={whole}")
    assert alone.end(seconds=300) == 0, alone.output
    assert rows_of(path) == rows_of(whole)
    best = read_results(sweep.directory).best()
    assert best is not None and best["name"] == first.name


def test_results_are_plain_files(toys: Toys) -> None:
    sweep = toy_sweep(toys)
    second = sweep.jobs[1]
    toys.fail(second, times=9, words="error: no, never")
    results, _ = run(sweep)
    lines = (toys.directory / "table.jsonl").read_text().splitlines()
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
    sheet = csv.DictReader(io.StringIO((toys.directory / "results.csv").read_text()))
    assert [(row["seed"], row["loss"], row["status"]) for row in sheet] == [
        *(("1", "0.2", "finished"), ("2", "0.5", "failed"), ("3", "0.2", "finished")),
    ]
    assert "no, never" in results._repr_html_() and "seed=3" in results._repr_html_()


@pytest.mark.slow
def test_finished_points_are_not_run_again_and_other_code_is_warned_of(toys: Toys) -> None:
    sweep = toy_sweep(toys)
    run(sweep)
    rows = read_table(toys.directory)
    rows[1]["code"] = "another"
    rows.append(rows[0] | {"fingerprint": "f" * 64, "name": "seed=9"})
    (toys.directory / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results, text = run(sweep)
    assert "3 of 3 points are done already" in text
    assert "warning: 1 point ran with another version of the code: seed=2." in text
    assert [row["attempts"] for row in results] == [1, 1, 1]
    assert [row["name"] for row in sweep.results()] == ["seed=1", "seed=2", "seed=3", "seed=9"]


class Unreachable(LocalRunner):
    """Runs no job."""

    def run(self, jobs: Iterable[Job | None], events: Any) -> bool:
        time.sleep(0.5)  # in which a terminal would be drawn again
        raise ConfigError("no cluster answers")


@pytest.mark.slow
def test_a_terminal_shows_what_runs(toys: Toys) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(ConfigError, match="no cluster answers"):
        toy_sweep(toys).run(runner=Unreachable(), console=console)
    assert console.file.getvalue() == ""  # pyright: ignore[reportAttributeAccessIssue]
    toys.seconds = 0.1
    toy_sweep(toys).run(jobs=2, console=console)
    shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "0 of 3 done" in shown and "2 of 3 done" in shown and "best so far" in shown
    assert re.search(r"[1-5]/5", shown) and "left" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("validation/loss", Objective("validation/loss")),
        ("min:loss", Objective("loss")),
        ("max:tasks/arc_easy/acc", Objective("tasks/arc_easy/acc", is_larger_better=True)),
        ("min:tasks/arc_easy/acc", Objective("tasks/arc_easy/acc")),
        *((text, "must name a metric") for text in ("", "max:", "max", "more:loss", ":loss")),
        ("tasks/lambada_openai/acc", "lacks the direction that is better: write --objective=max:t"),
        ("tasks/gsm8k/exact_match/strict", "lacks the direction"),
    ],
)
def test_an_objective_has_a_direction(text: str, expected: Objective | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            objective_of(text)
    else:
        assert objective_of(text) == expected
        assert expected.text == text or text.startswith("min:")


def test_a_sweep_records_what_it_is_compared_by(toys: Toys) -> None:
    toys.lasts["1"] = 3  # of fewer steps, and so of a larger loss
    sweep = toy_sweep(toys, objective="max:loss")
    results, text = run(sweep)
    best = results.best()
    assert best is not None and best["name"] == "seed=1"
    assert "best so far seed=1 with 0.3333" in text
    assert read_results(toys.directory).best() == best
    assert results.best("min:loss") == results[1]
    assert read_objective(toys.directory) == Objective("loss", is_larger_better=True)
    assert read_report(toys.directory).objective.is_larger_better
    assert not read_report(toys.directory, objective="loss").objective.is_larger_better
    assert toy_sweep(toys).compared_by == sweep.objective


def test_unreported_objectives_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no sweep"):
        read_results(tmp_path)
    seeds, directory = axis("set:seed=1,2"), tmp_path / "new"
    sweep = Sweep("config:debug", seeds, objective="max:tasks/acc", directory=directory)
    with pytest.raises(ConfigError, match="it has no evaluator 'tasks'"):
        sweep.run()
    assert not sweep.directory.exists()
