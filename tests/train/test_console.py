"""The console where several trackers speak: its bar, its pace and its lines stay right."""

import io
import sys

import pytest
from rich.console import Console as RichConsole
from run_facts import FACTS, metrics_row

from fidgpt.train import Console, RunDirectory
from fidgpt.train.trackers import console
from fidgpt.train.trackers.background import Trackers
from fidgpt.train.trackers.console import progress_bar


class Loud:
    """A tracker that prints whatever it does, as some libraries do."""

    def start(self, run, facts, *, step):
        print("* project initialized")

    def log(self, row):
        print("* logged", row["step"])

    def print(self, text):
        """It hears nothing."""

    def finish(self):
        print("* finished")


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self):
        return True


def test_the_bar_keeps_its_numbers_below_what_others_print(tmp_path, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Trackers([Console(), Loud()]) as trackers:
        trackers.start(RunDirectory(tmp_path, texts={}), FACTS, step=4)
        for step in range(5, 11):
            trackers.log(metrics_row(step))
            trackers.print(f"words after {step}")
    assert sys.stdout is screen
    shown = screen.getvalue()
    last = shown[shown.rindex("step 10/10") :]
    assert "loss 0.3333  5 tokens/s  25% of peak" in last
    assert shown.count("* logged") == 6
    assert all(f"words after {step}\n" in shown for step in range(5, 11))
    assert shown.index("* logged 5") < shown.index("words after 5") < shown.index("* logged 6")


def test_what_is_left_is_known_where_a_step_takes_minutes():
    bar, now = progress_bar(RichConsole(file=io.StringIO())), 0.0
    bar.get_time = lambda: now
    task = bar.add_task("", total=10, completed=4, numbers="")
    for step in range(5, 8):
        now += 120.0
        bar.update(task, completed=step)
    assert bar.tasks[0].time_remaining == pytest.approx(3 * 120, abs=1)


def test_a_log_tells_what_is_left_at_the_pace_since_the_run_went_on(tmp_path, monkeypatch, capsys):
    times = iter([100.0, 130.0, 160.0, 190.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(times))
    one = Console()
    one.start(RunDirectory(tmp_path, texts={}), FACTS, step=4)
    one.log(metrics_row(5))
    one.log(metrics_row(6))
    one.log(metrics_row(4))  # it went back
    said = capsys.readouterr().out
    assert "step 5/10  loss 0.3333  5 tokens/s  25% of peak  left 0:02:30" in said
    assert "step 6/10  loss 0.3333  5 tokens/s  25% of peak  left 0:02:00" in said
    assert "step 4/10  loss 0.3333  5 tokens/s  25% of peak  left 0:03:00" in said


def test_evaluations_and_steps_left_out_are_told_and_the_rest_is_for_the_files(tmp_path, capsys):
    console = Console()
    console.start(RunDirectory(tmp_path, texts={}), FACTS, step=0)
    rest = {"seconds/forward": 0.5, "moe/z": 0.1, "grad_norm/matrices": 2.0}
    console.log(metrics_row(3) | rest | {"validation/loss": 1.5})
    console.log(metrics_row(4) | rest | {"skipped": 1, "grad_norm": 1234.5, "loss": 1e308})
    console.log(metrics_row(5) | {"samples": ["def [bold]:", "class"]})
    console.finish()
    told = capsys.readouterr().out
    assert "step 3: validation/loss 1.5000\n" in told
    assert "step 4 is skipped: loss 1e+308, gradient norm 1234" in told
    assert "step 5 writes: def [bold]:\n" in told and "step 5 writes: class\n" in told
    assert not any(word in told for word in ("seconds", "moe", "matrices"))
