"""Searches whose points are toys: what is chosen, told, stopped early, known and gone on with."""

import io
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.trial import TrialState
from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, read_results
from fidgpt.sweep.runners import local
from fidgpt.sweep.search import Found, Search, space
from fidgpt.sweep.search.study import Study

from .test_local import interrupt_when

NUM_STEPS = 10
QUICK = ["config:debug", f"fiddler:smoke_test({NUM_STEPS})", "set:samples=None"]
WIDTHS = space("set:model.hidden_dim=32,33,64")
RATE = space("tag:LearningRate=log(1e-5,1e-1)")
DECAY = space("tag:WeightDecay=lin(0,0.5)")
# Toy: comes down to a loss that depends on the learning rate alone, best at 0.003.
_SCRIPT = """
import json, math, pathlib, sys, time
folder, loss, steps, seconds = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text("{}")
with (folder / "metrics.jsonl").open("a") as file:
    for step in range(1, int(steps) + 1):
        time.sleep(float(seconds))
        row = {"step": step, "loss": float(loss) + 1 / step}
        print(json.dumps(row), file=file, flush=True)
"""


class Toys:
    """Counts the commands that it makes; `seconds` is how long a step takes."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.seconds = 0.0

    def command(self, job: Job) -> list[str]:
        self.started.append(job.point.name)
        rate = float(job.point.values.get("LearningRate", "0.003"))
        told = [str(job.directory), str(100 * abs(rate - 0.003)), str(NUM_STEPS), str(self.seconds)]
        return [sys.executable, "-c", _SCRIPT, *told]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    made = Toys()
    monkeypatch.setattr(Job, "command", property(made.command))
    monkeypatch.setattr(local, "_PAUSE", 0.01)
    return made


def run(search: Search, *, jobs: int = 1) -> tuple[Found, str]:
    text = io.StringIO()
    found = search.run(jobs=jobs, console=Console(file=text, width=1000))
    return found, text.getvalue()


def study_of(search: Search) -> Study:
    return search._study(search.points, side_by_side=False)


@pytest.mark.parametrize("sampler", ["tpe:14", "random:6", "cmaes:6"])
def test_a_search_with_one_job_is_the_same_again_and_by_its_seed(
    sampler: str, toys: Toys, tmp_path: Path
) -> None:
    names: list[list[str]] = []
    for i, seed in enumerate([1, 1, 2]):
        items = [*QUICK, RATE, DECAY]
        made = Search(
            *items, sampler=sampler, objective="loss", seed=seed, directory=tmp_path / str(i)
        )
        found, _ = run(made)
        names.append([row["name"] for row in found.results])
        assert {row["status"] for row in found.results} == {"finished"}
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == int(sampler.partition(":")[2])


def test_the_sampler_learns(toys: Toys, tmp_path: Path) -> None:
    found, _ = run(Search(*QUICK, RATE, sampler="tpe:25", objective="loss", directory=tmp_path))
    assert found.best is not None
    assert abs(float(found.best["values"]["LearningRate"]) - 0.003) < 0.001


def test_points_that_do_not_check_are_not_run_and_known_ones_not_twice(
    toys: Toys, tmp_path: Path
) -> None:
    made = Search(*QUICK, WIDTHS, sampler="random:12", objective="loss", directory=tmp_path)
    found, text = run(made, jobs=2)
    assert sorted(toys.started) == ["hidden_dim=32", "hidden_dim=64"]
    assert "is not run: model.blocks[0].attention (Attention): hidden_dim=33" in text
    states = [one.state for one in study_of(made).trials]
    assert found.num_trials == len(states) == 12
    assert states.count(TrialState.PRUNED) == found.counts.refused > 0
    assert states.count(TrialState.COMPLETE) == found.counts.known + 2
    assert found.best is not None and found.best["name"] in toys.started


def test_where_no_point_checks_that_is_an_error(toys: Toys, tmp_path: Path) -> None:
    bad = space("set:model.hidden_dim=33,35")
    with pytest.raises(ConfigError, match="no point of the search could be run"):
        run(Search(*QUICK, bad, sampler="random:3", objective="loss", directory=tmp_path))


def test_a_grid_is_tried_whole(toys: Toys, tmp_path: Path) -> None:
    seeds = space("set:seed=range(0,5)")
    found, _ = run(Search(*QUICK, seeds, sampler="grid", objective="loss", directory=tmp_path))
    assert sorted(row["values"]["seed"] for row in found.results) == list("01234")


def test_a_stopped_search_goes_on_as_if_nothing_had_happened(toys: Toys, tmp_path: Path) -> None:
    def search(name: str) -> Search:
        items = [*QUICK, RATE]
        return Search(*items, sampler="tpe:13", objective="loss", directory=tmp_path / name)

    whole, _ = run(search("whole"))
    toys.started.clear()
    toys.seconds = 0.03
    thread = interrupt_when(lambda: len(toys.started) == 3)
    stopped, _ = run(search("stopped"))
    thread.join()
    assert not stopped.is_whole and len(stopped.results) == 3
    toys.seconds = 0.0
    found, _ = run(search("stopped"))
    assert found.is_whole and found.num_trials == 13
    assert [row["name"] for row in found.results] == [row["name"] for row in whole.results]
    before = len(toys.started)
    assert run(search("stopped"))[0].best == found.best
    assert len(toys.started) == before


def test_more_points_add_to_a_search_and_other_spaces_are_refused(
    toys: Toys, tmp_path: Path
) -> None:
    run(Search(*QUICK, RATE, sampler="random:2", objective="loss", directory=tmp_path))
    found, _ = run(Search(*QUICK, RATE, sampler="random:4", objective="loss", directory=tmp_path))
    assert len(found.results) == len(toys.started) == 4
    with pytest.raises(ConfigError, match="holds a search over"):
        run(Search(*QUICK, DECAY, sampler="random:4", objective="loss", directory=tmp_path))
    other = [*QUICK, "set:seq_len=16"]
    with pytest.raises(ConfigError, match="holds a search of .*and this one is of .*seq_len=16"):
        run(Search(*other, RATE, sampler="random:4", objective="loss", directory=tmp_path))


def test_two_spaces_that_choose_one_thing_are_named(tmp_path: Path) -> None:
    same = space("set:optimizer.lr=log(1e-5,1e-1)")
    made = Search(*QUICK, RATE, same, sampler="tpe:3", objective="loss", directory=tmp_path)
    with pytest.raises(ConfigError, match=r"in vain, as --space=set:optimizer\.lr.* says it again"):
        _ = made.points


def test_the_command_of_the_best_names_packages_of_ones_own(tmp_path: Path, toys: Toys) -> None:
    items = [*QUICK, RATE]
    made = Search(
        *items, sampler="random:1", objective="loss", directory=tmp_path, allowed=["mine"]
    )
    console = Console(file=io.StringIO(), width=1000)
    console.print(run(made)[0])
    assert "python train.py --allow=mine --config=config:debug" in console.file.getvalue()  # pyright: ignore


@pytest.mark.parametrize("stop", ["median", "asha"])
def test_what_is_not_worth_going_on_with_is_stopped_early(
    stop: str, toys: Toys, tmp_path: Path
) -> None:
    toys.seconds = 0.02
    made = Search(
        *QUICK, RATE, sampler="random:12", objective="loss", stop=stop, seed=3, directory=tmp_path
    )
    found, _ = run(made)
    early = [row for row in found.results if row["status"] == "stopped early"]
    done = [row for row in found.results if row["status"] == "finished"]
    assert early and done and len(early) + len(done) == 12
    assert found.best in done
    assert any(row["step"] < NUM_STEPS for row in early)
    states = [one.state for one in study_of(made).trials]
    assert states.count(TrialState.PRUNED) == len(early)
    before = len(toys.started)
    run(made)
    assert len(toys.started) == before


def test_an_objective_that_a_run_has_not_reported_ends_the_search(
    toys: Toys, tmp_path: Path
) -> None:
    made = Search(*QUICK, RATE, sampler="tpe:9", objective="moe/load", directory=tmp_path)
    with pytest.raises(ConfigError, match=r"no run reports --objective=moe/load\."):
        run(made)
    assert len(toys.started) == 1


def test_more_of_an_objective_may_be_better(toys: Toys, tmp_path: Path) -> None:
    made = Search(*QUICK, RATE, sampler="tpe:14", objective="max:loss", directory=tmp_path)
    found, text = run(made)
    losses = [row["metrics"]["loss"] for row in found.results]
    assert found.best is not None and found.best["metrics"]["loss"] == max(losses)
    assert f"loss {max(losses):.4f}; the best so far" in text
    assert read_results(tmp_path).best() == found.best
    assert study_of(made)._study.best_value == max(losses)
    with pytest.raises(ConfigError, match='a search for "max:loss", and this one is for "loss"'):
        run(Search(*QUICK, RATE, sampler="tpe:14", objective="loss", directory=tmp_path))


def test_two_commands_share_one_study(toys: Toys, tmp_path: Path) -> None:
    toys.seconds = 0.02
    made = [
        Search(*QUICK, RATE, sampler="tpe:12", objective="loss", directory=tmp_path)
        for _ in range(2)
    ]
    threads = [threading.Thread(target=run, args=(one,)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = study_of(made[0]).trials
    complete = [one for one in trials if one.state == TrialState.COMPLETE]
    assert len(complete) == 12 == len({str(one.params) for one in complete})
    assert len(toys.started) == len(set(toys.started)) == 12
    rows = read_results(tmp_path)
    assert {row["name"] for row in rows} == set(toys.started)
    assert {row["status"] for row in rows} == {"finished"}
