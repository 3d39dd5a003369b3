"""Searches by Ray Tune whose points are toys: chosen, stopped early, failed, gone on with."""

import io
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'fidgpt[ray]'")
pytest.importorskip("optuna")

from optuna.trial import TrialState
from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, read_results
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search import Found, Search, space
from fidgpt.sweep.search.study import Study
from fidgpt.sweep.tune import search_with_tune

from .on_ray import ray_here  # noqa: F401
from .test_local import interrupt_when

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.usefixtures("ray_here")]
NUM_STEPS = 27
QUICK = ["config:debug", f"fiddler:smoke_test({NUM_STEPS})", "set:samples=None"]
WIDTHS = space("set:model.hidden_dim=32,33,64")
RATE = space("tag:LearningRate=log(1e-5,1e-1)")
# Toy: comes down to a loss that depends on the learning rate alone, best at 0.003. It saves its
# step when it is stopped, and diverges or fails where a file says so.
_SCRIPT = """
import json, os, pathlib, signal, sys, time
folder, loss, steps, seconds = sys.argv[1:]
folder, stopped = pathlib.Path(folder), []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text("{}")
(folder / "pid").write_text(str(os.getpid()))
with (folder / "starts").open("a") as file:
    print(file=file)
saved = folder / "step"
begin = int(saved.read_text()) if saved.exists() else 0
words = folder.parent / "words"
with (folder / "metrics.jsonl").open("a") as file:
    for step in range(begin + 1, int(steps) + 1):
        time.sleep(float(seconds))
        print(json.dumps({"step": step, "loss": float(loss) + 1 / step}), file=file, flush=True)
        saved.write_text(str(step))
        if stopped:
            sys.exit(143)
        if step == 3 and words.exists() and begin == 0:
            sys.exit(words.read_text())
"""


class Toys:
    """Makes the commands; `seconds` is how long a step takes."""

    seconds = 0.0

    def command(self, job: Job) -> list[str]:
        rate = float(job.point.values.get("LearningRate", "0.003"))
        told = [str(job.directory), str(100 * abs(rate - 0.003)), str(NUM_STEPS), str(self.seconds)]
        return [sys.executable, "-I", "-c", _SCRIPT, *told]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    made = Toys()
    monkeypatch.setattr(Job, "beginning", property(made.command))
    monkeypatch.setattr(Job, "going_on", property(made.command))
    return made


def run(search: Search, *, jobs: int = 1, retries: int = 0) -> tuple[Found, str]:
    text = io.StringIO()
    runner = RayRunner(jobs=jobs, retries=retries)
    found = search_with_tune(search, runner, console=Console(file=text, width=1000))
    return found, text.getvalue()


def study_of(search: Search) -> Study:
    return search._study(search.points, side_by_side=False)


def starts(found: Found, directory: Path) -> list[int]:
    """How often each point was started."""
    return [
        len((directory / row["directory"] / "starts").read_text().splitlines())
        for row in found.results
    ]


def test_each_point_is_trained_once_and_known_to_the_sampler(toys: Toys, tmp_path: Path) -> None:
    made = Search(*QUICK, RATE, sampler="tpe:6", objective="loss", directory=tmp_path)
    found, text = run(made, jobs=2)
    assert found.is_whole and found.num_trials == len(found.results) == 6
    assert {row["status"] for row in read_results(tmp_path)} == {"finished"}
    assert starts(found, tmp_path) == [1] * 6
    values = sorted(row["metrics"]["loss"] for row in found.results)
    assert sorted(one.value for one in study_of(made).trials if one.value) == values
    assert found.best is not None and found.best["metrics"]["loss"] == values[0]
    assert "[1/6]" in text and "best so far" in text
    assert not list(tmp_path.glob("*ray_results*"))
    again, _ = run(made)
    assert again.best == found.best and starts(again, tmp_path) == [1] * 6


def test_points_that_do_not_check_are_not_run_and_known_ones_not_twice(
    toys: Toys, tmp_path: Path
) -> None:
    made = Search(*QUICK, WIDTHS, sampler="random:9", objective="loss", directory=tmp_path)
    found, text = run(made)
    assert sorted(row["name"] for row in found.results) == ["hidden_dim=32", "hidden_dim=64"]
    assert starts(found, tmp_path) == [1, 1]
    assert "is not run: model.blocks[0].attention (Attention): hidden_dim=33" in text
    states = [one.state for one in study_of(made).trials]
    assert found.num_trials == len(states) == 9
    assert states.count(TrialState.PRUNED) == found.counts.refused > 0
    assert states.count(TrialState.COMPLETE) == found.counts.known + 2


@pytest.mark.parametrize("stop", ["asha", "median"])
def test_tune_ends_what_is_not_worth_going_on_with(stop: str, toys: Toys, tmp_path: Path) -> None:
    toys.seconds = 0.1
    made = Search(
        *QUICK, RATE, sampler="random:7", objective="loss", stop=stop, seed=3, directory=tmp_path
    )
    found, _ = run(made)
    early = [row for row in found.results if row["status"] == "stopped early"]
    done = [row for row in found.results if row["status"] == "finished"]
    assert early and done and len(early) + len(done) == 7
    assert all(row["step"] < NUM_STEPS for row in early)
    for row in early:  # it had the time to save where it was
        rows = (tmp_path / row["directory"] / "metrics.jsonl").read_text().splitlines()
        assert int((tmp_path / row["directory"] / "step").read_text()) == len(rows) < NUM_STEPS
    states = [one.state for one in study_of(made).trials]
    assert states.count(TrialState.PRUNED) == len(early)
    assert starts(run(made)[0], tmp_path) == [1] * 7


def test_what_fails_is_tried_again_as_told_and_ends_no_search(toys: Toys, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("error: step 3 diverged: loss is nan.")
    made = Search(*QUICK, RATE, sampler="random:2", objective="loss", directory=tmp_path)
    found, text = run(made, retries=1)
    assert {row["status"] for row in found.results} == {"finished"}
    assert starts(found, tmp_path) == [2, 2]
    assert text.count("diverged: step 3 diverged: loss is nan. It is tried again.") == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "words").write_text("error: the disk is on fire.")
    made = Search(*QUICK, RATE, sampler="random:2", objective="loss", directory=other)
    found, _ = run(made)
    assert {row["status"] for row in found.results} == {"failed"}
    assert {row["last_words"] for row in found.results} == {"the disk is on fire."}
    assert {one.state for one in study_of(made).trials} == {TrialState.FAIL}


def test_an_objective_that_no_run_reports_ends_the_search(toys: Toys, tmp_path: Path) -> None:
    made = Search(*QUICK, RATE, sampler="tpe:9", objective="moe/load", directory=tmp_path)
    with pytest.raises(ConfigError, match=r"no run reports --objective=moe/load\."):
        run(made)
    assert len(read_results(tmp_path)) <= 3


def test_a_stopped_search_goes_on_and_trains_nothing_twice(toys: Toys, tmp_path: Path) -> None:
    toys.seconds = 0.1
    made = Search(*QUICK, RATE, sampler="tpe:5", objective="loss", directory=tmp_path)
    thread = interrupt_when(lambda: len(list(tmp_path.glob("*/step"))) == 2)
    stopped, text = run(made, jobs=2)
    thread.join()
    assert not stopped.is_whole and "Stopping" in text
    assert {row["status"] for row in stopped.results} == {"stopped"}
    chosen = [one.params for one in study_of(made).trials]
    toys.seconds = 0.0
    found, _ = run(made)
    assert found.is_whole and found.num_trials == len(found.results) == 5
    assert [one.params for one in study_of(made).trials][: len(chosen)] == chosen
    for row in found.results:
        rows = (tmp_path / row["directory"] / "metrics.jsonl").read_text().splitlines()
        assert len(rows) == NUM_STEPS  # so no step was done twice


def test_a_worker_that_is_killed_costs_no_step(toys: Toys, tmp_path: Path) -> None:
    toys.seconds = 0.15
    made = Search(*QUICK, RATE, sampler="random:2", objective="loss", directory=tmp_path)
    killed: list[int] = []

    def kill() -> None:
        while not (found := list(tmp_path.glob("*/step"))) or int(found[0].read_text() or 0) < 3:
            time.sleep(0.05)
        mine = psutil.Process().children(recursive=True)
        workers = [one for one in mine if one.name().startswith(("ray::Training", "ray::Resource"))]
        workers[0].kill()
        killed.append(workers[0].pid)

    thread = threading.Thread(target=kill)
    thread.start()
    found, text = run(made)
    thread.join()
    assert killed and "It is tried again." in text
    assert {row["status"] for row in found.results} == {"finished"}
    for row in found.results:
        rows = (tmp_path / row["directory"] / "metrics.jsonl").read_text().splitlines()
        assert len(rows) == NUM_STEPS


def test_more_than_one_process_a_point_is_refused(tmp_path: Path) -> None:
    made = Search(*QUICK, RATE, sampler="random:2", objective="loss", directory=tmp_path)
    with pytest.raises(ConfigError, match="processes=2: a trial of Ray Tune's is one process"):
        search_with_tune(made, RayRunner(processes=2, cpus=0.5))
