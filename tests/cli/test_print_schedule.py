"""`--print=schedule`: a curve drawn in a terminal, and its values where it turns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.optim import Constant, LinearDecay, NoDecay, Phases, Schedule
from fidgpt.train.summary_text import Turn, schedule_text, turns_of

PEAKS = [("matrices", 0.5)]


def drawn(text: str) -> list[str]:
    """What stands in the drawing, from the top row down."""
    return [line.partition("┤")[2] or line.partition("│")[2] for line in text.splitlines()[2:12]]


def curve(schedule: Schedule, num_steps: int) -> list[float]:
    return [schedule(step) for step in range(num_steps)]


def test_every_row_fits_and_the_curve_is_filled_from_below() -> None:
    schedule = Phases(num_steps=1000, warmup=0.5, shape=LinearDecay(), min_lr_ratio=0.0)
    text = schedule_text(schedule, num_steps=1000, peaks=PEAKS)
    assert max(map(len, text.splitlines())) == 80
    rows = drawn(text)
    assert len(rows) == 10
    filled = [sum(mark != " " for mark in row) for row in rows]
    assert filled == sorted(filled)
    assert rows[-1].strip("▁▂▃▄▅▆▇█ ") == ""
    middle = [len(row) - len(row.lstrip()) + len(row.strip()) / 2 for row in rows]
    assert all(place == pytest.approx(len(max(rows, key=len)) / 2, abs=1.0) for place in middle)


def test_a_constant_is_a_full_rectangle_and_axes_have_numbers() -> None:
    text = schedule_text(Constant(), num_steps=3, peaks=PEAKS, width=40)
    assert len({*drawn(text)}) == 1
    assert {*drawn(text)[0]} == {"█"}
    assert text.splitlines()[0] == "learning rate of matrices over 3 steps"
    assert [line.split()[0] for line in text.splitlines() if "┤" in line] == ["0.5", "0.25"]
    assert text.splitlines()[13].split() == ["1", "3"]


def test_steps_at_which_it_turns_are_marked() -> None:
    schedule = Phases(num_steps=100, warmup=10, decay=20, rewarmup=5, cycles=2, shape=LinearDecay())
    assert turns_of(curve(schedule, 100)) == [
        Turn(1, 0.1, "first step"),
        Turn(10, 1.0, "stays from here"),
        Turn(30, 1.0, "falls from here"),
        Turn(50, 0.1, "minimum"),
        Turn(55, 1.0, "stays from here"),
        Turn(80, 1.0, "falls from here"),
        Turn(100, 0.1, "last step"),
    ]
    assert turns_of([0.0, 0.0, 1.0, 0.5, 0.5]) == [
        Turn(1, 0.0, "first step"),
        Turn(2, 0.0, "rises from here"),
        Turn(3, 1.0, "peak"),
        Turn(4, 0.5, "stays from here"),
        Turn(5, 0.5, "last step"),
    ]
    assert turns_of([0.5]) == [Turn(1, 0.5, "first step")]


def test_the_first_and_the_last_of_many_turns_are_shown() -> None:
    schedule = Phases(num_steps=1000, warmup=0, cycles=50, shape=LinearDecay())
    lines = schedule_text(schedule, num_steps=1000, peaks=PEAKS).splitlines()
    assert len(lines) < 40
    assert lines[-1].split() == ["1,000", "0.05", "0.1", "last", "step"]
    assert lines[-2].split() == ["...", "84", "more"]


def test_the_largest_rate_can_be_drawn() -> None:
    text = schedule_text(lambda step: 1.0, num_steps=500, peaks=[("matrices", 1.7e308)])
    assert {mark for row in drawn(text) for mark in row} == {"█"}
    assert text.splitlines()[-1].split() == ["500", "1.7e+308", "1", "last", "step"]


def test_groups_with_another_learning_rate_are_shown() -> None:
    peaks = [("matrices", 0.1), ("vectors", 0.1), ("tables", 0.05)]
    schedule = Phases(num_steps=10, warmup=2, shape=NoDecay())
    assert schedule_text(schedule, num_steps=10, peaks=peaks).splitlines()[-1] == (
        "tables: 0.5 times as much"
    )


def test_the_command_draws_what_the_run_would_do(command: Callable[..., Any]) -> None:
    done = command(
        train.main,
        *("--config=config:debug", "--config=fiddler:use_wsd", "--config=tag:LearningRate=0.25"),
        *("--config=set:num_steps=50", "--print=schedule"),
    )
    assert (done.status, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()[-4:]] == [
        ["1", "0.05"],
        ["5", "0.25"],
        ["40", "0.25"],
        ["50", "0"],
    ]


def test_a_curve_with_jumps_is_shown_by_its_jumps() -> None:
    assert turns_of([0.25, 0.25, 0.5, 0.5, 1.0]) == [
        Turn(1, 0.25, "first step"),
        Turn(3, 0.5, "from here"),
        Turn(5, 1.0, "last step"),
    ]


def test_whatever_changes_over_a_run_is_drawn(command: Callable[..., Any], tmp_path: Path) -> None:
    other = f'texts={{"other": "{tmp_path / "not looked at"}"}}'
    done = command(
        train.main,
        *("--config=config:debug", "--config=set:num_steps=100", "--config=set:batch_size=8"),
        f"--config=fiddler:use_mixture({other}, stages={{0.5: {{'other': 1}}}})",
        "--config=fiddler:grow_batch(over=0.2, multiple_of=4)",
        "--config=fiddler:grow_seq_len(over=0.2, min_seq_len=16)",
        *("--config=fiddler:use_prefetch", "--config=fiddler:use_weight_decay_schedule"),
        "--print=schedule",
    )
    assert (done.status, done.err) == (0, "")
    tables = {}
    for drawing in done.out.split("\n\n\n"):
        title, *_, table = drawing.strip().split("\n\n")
        tables[title] = [line.split() for line in table.strip().splitlines()]
    names = ["learning rate of matrices", "weight decay of matrices", "sequence length"]
    names += ["batch size", "share of other", "share of own"]
    assert [*tables] == [f"{name} over 100 steps" for name in names]
    of = {name: tables[f"{name} over 100 steps"] for name in names}
    full = ["of", "the", "full"]
    assert of["weight decay of matrices"][0] == ["step", "value", *full]
    assert of["batch size"] == [
        ["step", "sequences", *full],
        ["1", "4", "0.5", "first", "step"],
        ["20", "8", "1", "from", "here"],
        ["100", "8", "1", "last", "step"],
    ]
    assert of["sequence length"][1:3] == [
        ["1", "16", "0.5", "first", "step"],
        ["20", "32", "1", "from", "here"],
    ]
    assert of["share of other"] == [
        ["step", "share"],
        ["1", "0.5", "first", "step"],
        ["51", "1", "from", "here"],
        ["100", "1", "last", "step"],
    ]
