"""Searches: spaces, samplers, and points of small scripts: chosen, stopped, shared, recovered."""

import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Continuous
from optuna.distributions import IntDistribution as Whole
from optuna.trial import TrialState
from rich.console import Console

from fidgpt import forking
from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, LocalRunner, read_results
from fidgpt.sweep.results import SEARCH
from fidgpt.sweep.search import (
    Distribution,
    Found,
    Search,
    Space,
    space,
)

from .test_local import interrupt_when

pytestmark = pytest.mark.slow

NUM_STEPS = 10
QUICK = ["config:debug", f"fiddler:smoke_test({NUM_STEPS})", "set:samples=None"]
WIDTHS = space("set:model.hidden_dim=32,33,64")
RATE = space("tag:LearningRate=log(1e-5,1e-1)")
DECAY = space("tag:WeightDecay=lin(0,0.5)")
# Descends to a loss that depends on the learning rate alone, best at 0.003. A longer run descends
# further, but more slowly.
_SCRIPT = """
import json, math, pathlib, sys, time
folder, loss, steps, seconds = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text("{}")
with (folder / "metrics.jsonl").open("a") as file:
    for step in range(1, int(steps) + 1):
        time.sleep(float(seconds))
        row = {"step": step, "loss": float(loss) + 9 / int(steps) + int(steps) / step / 9}
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
        loss = str(100 * abs(rate - 0.003))
        num_steps = str(job.point.cost.num_steps)
        arguments = [str(job.directory), loss, num_steps, str(self.seconds)]
        return [sys.executable, "-c", _SCRIPT, *arguments]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Toys:
    made = Toys()
    monkeypatch.setattr(Job, "command", property(made.command))
    monkeypatch.setattr(LocalRunner, "pause", 0.01)
    monkeypatch.setattr(forking, "is_safe", lambda: False)
    return made


Make = Callable[..., Search]


@pytest.fixture
def search(tmp_path: Path) -> Make:
    """Makes a search for the least loss, in a directory of the test."""

    def make(
        *items: str | Space, sampler: str, objective: str = "loss", name: str = "", **rest: object
    ) -> Search:
        items = items or (RATE,)
        settings = {"directory": tmp_path / name, **rest}
        return Search(*QUICK, *items, sampler=sampler, objective=objective, **settings)  # pyright: ignore

    return make


def run(search: Search, *, jobs: int = 1) -> tuple[Found, str]:
    text = io.StringIO()
    found = search.run(jobs=jobs, console=Console(file=text, width=1000))
    return found, text.getvalue()


def names(found: Found) -> list[str]:
    return [row["name"] for row in found.results]


def statuses(found: Found) -> set[str]:
    return {row["status"] for row in found.results}


def states(search: Search) -> list[TrialState]:
    return [one.state for one in search.study().trials]


def test_a_search_with_one_job_is_reproducible_by_its_seed(toys: Toys, search: Make) -> None:
    chosen: list[list[str]] = []
    for i, seed in enumerate([1, 1, 2]):
        found, _ = run(search(RATE, DECAY, sampler="cmaes:5", seed=seed, name=str(i)))
        chosen.append(names(found))
        assert statuses(found) == {"finished"}
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(set(chosen[0])) == 5


def test_invalid_points_are_not_run_and_known_ones_not_twice(toys: Toys, search: Make) -> None:
    made = search(WIDTHS, sampler="random:12")
    found, text = run(made, jobs=2)
    assert sorted(toys.started) == ["hidden_dim=32", "hidden_dim=64"]
    assert "is not run: model.blocks[0].attention (Attention): hidden_dim=33" in text
    refused, complete = map(states(made).count, (TrialState.PRUNED, TrialState.COMPLETE))
    assert refused > 0 and refused + complete == 12
    assert f"{refused} could not be run and {complete - 2} had results already" in found.summary
    assert found.best is not None and found.best["name"] in toys.started
    with pytest.raises(ConfigError, match="no point of the search could be run"):
        run(search(space("set:model.hidden_dim=33,35"), sampler="random:3", name="none"))


def test_a_stopped_search_continues_as_if_it_had_not_been_stopped(toys: Toys, search: Make) -> None:
    whole, _ = run(search(sampler="tpe:13", name="whole"))
    toys.started.clear()
    toys.seconds = 0.03
    thread = interrupt_when(lambda: len(toys.started) == 3)
    stopped, _ = run(search(sampler="tpe:13", name="stopped"))
    thread.join()
    assert not stopped.is_whole and len(stopped.results) == 3
    toys.seconds = 0.0
    found, _ = run(search(sampler="tpe:13", name="stopped"))
    assert found.is_whole and found.summary.startswith("13 trials")
    assert names(found) == names(whole)
    before = len(toys.started)
    assert run(search(sampler="tpe:13", name="stopped"))[0].best == found.best
    assert len(toys.started) == before


def test_points_add_to_a_search_and_other_searches_are_refused(toys: Toys, search: Make) -> None:
    run(search(sampler="random:2"))
    found, _ = run(search(sampler="random:4"))
    assert len(found.results) == len(toys.started) == 4
    with pytest.raises(ConfigError, match="holds a search with spaces"):
        run(search(DECAY, sampler="random:4"))
    with pytest.raises(ConfigError, match=r"with directives .*and this one has .*seq_len=16"):
        run(search("set:seq_len=16", RATE, sampler="random:4"))
    with pytest.raises(ConfigError, match='with objective "loss", and this one has "max:loss"'):
        run(search(sampler="random:4", objective="max:loss"))


@pytest.mark.parametrize("stop", ["median", "asha"])
def test_unpromising_points_are_stopped_early(stop: str, toys: Toys, search: Make) -> None:
    toys.seconds = 0.02
    made = search(sampler="random:12", stop=stop, seed=3)
    found, _ = run(made)
    early = [row for row in found.results if row["status"] == "stopped early"]
    done = [row for row in found.results if row["status"] == "finished"]
    assert early and done and len(early) + len(done) == 12
    assert found.best in done
    assert any(row["step"] < NUM_STEPS for row in early)
    assert states(made).count(TrialState.PRUNED) == len(early)
    before = len(toys.started)
    run(made)
    assert len(toys.started) == before


def test_points_of_different_lengths_are_compared_by_the_share_of_their_runs(
    toys: Toys, search: Make
) -> None:
    toys.seconds = 0.01
    lengths = space("set:num_steps=5,10,20,60")
    found, _ = run(search(lengths, sampler="grid", stop="asha"))
    assert found.best is not None and found.best["name"] == "num_steps=60"


def test_an_objective_may_be_maximized(toys: Toys, search: Make, tmp_path: Path) -> None:
    made = search(sampler="tpe:4", objective="max:loss")
    found, text = run(made)
    losses = [row["metrics"]["loss"] for row in found.results]
    assert found.best is not None and found.best["metrics"]["loss"] == max(losses)
    assert f"loss {max(losses):.4f}; the best so far" in text
    assert read_results(tmp_path).best() == found.best
    assert made.study().best_value == max(losses)


def test_two_commands_share_one_study(toys: Toys, search: Make, tmp_path: Path) -> None:
    toys.seconds = 0.02
    made = [search(sampler="tpe:8") for _ in range(2)]
    # A second later: a trial is another command's only once its point runs.
    threads = [threading.Timer(delay, run, args=(one,)) for delay, one in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = made[0].study().trials
    complete = [one for one in trials if one.state == TrialState.COMPLETE]
    assert len(complete) == 8 == len({str(one.params) for one in complete})
    assert len(toys.started) == len(set(toys.started)) == 8
    rows = read_results(tmp_path)
    assert {row["name"] for row in rows} == set(toys.started)
    assert {row["status"] for row in rows} == {"finished"}


@pytest.mark.parametrize(
    "damage",
    [b'{"op_code":4,"wor', b'{"op_code":4,"wor\n', b"[]\n", b'{"op_code": 99}\n', b"\xff\n"],
)
def test_a_damaged_journal_is_rebuilt_from_the_points(
    toys: Toys, search: Make, tmp_path: Path, damage: bytes
) -> None:
    before = names(run(search(sampler="tpe:3"))[0])
    with (tmp_path / SEARCH).open("ab") as file:
        file.write(damage)
    toys.started.clear()
    found, _ = run(search(sampler="tpe:4"))
    assert statuses(found) == {"finished"} and names(found)[:3] == before
    assert len(toys.started) == 1
    assert (tmp_path / "study.damaged").read_bytes().endswith(damage)


@pytest.mark.parametrize("name", ["results.csv", SEARCH, "report.html", "scaling.png"])
def test_a_search_replaces_no_files_of_others(search: Make, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(ConfigError, match=f"holds no sweep, and one would replace {name}"):
        run(search(sampler="random:6"))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(name, "theirs")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tag:LearningRate=log(1e-5, 1e-1)", Continuous(1e-5, 1e-1, log=True)),
        ("set:a.dropout=lin(0,0.5)", Continuous(0.0, 0.5)),
        ("set:seq_len=range(64,513,64)", Whole(64, 512, step=64)),
        ("set:a=lin(0,1,3)", OneOf(("0", "0.5", "1"))),
        ("fiddler:use_rope,use_gqa(1, 2)", OneOf(("use_rope", "use_gqa(1, 2)"))),
    ],
)
def test_what_a_space_holds(text: str, expected: Distribution) -> None:
    assert space(text).distribution == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tag:LearningRate=1e-3", "has a single value: write log"),
        ("tag:LearningRate=log(1e-1,1e-5)", "must hold, but got .low=0.1, high=1e-05"),
        ("tag:LearningRate=log(0,1)", "low > 0. must hold for .log=True"),
        ("set:seed=range(0,inf)", "inf"),
    ],
)
def test_invalid_ranges_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(text)


@pytest.mark.parametrize(
    ("spaces", "sampler", "stop", "message"),
    [
        ([RATE.text], "tpee:5", None, "--search=tpee: there is no such sampler. Did you mean tpe"),
        ([RATE.text], "tpe", None, "needs the number of points: write --search=tpe:50"),
        ([RATE.text], "grid", None, "log\\(first, last, count\\)"),
        ([RATE.text], "cmaes:5", None, "at least two continuous ranges"),
        ([RATE.text], "tpe:5", "asah", "there is no such rule. Did you mean asha"),
        ([], "tpe:5", None, "needs a space"),
    ],
)
def test_invalid_searches_are_refused(
    spaces: list[str], sampler: str, stop: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Search("config:debug", *map(space, spaces), sampler=sampler, objective="loss", stop=stop)


def test_errors_that_all_points_share_are_raised_first() -> None:
    made = Search("config:debug", RATE, sampler="tpe:5", objective="validatoin/loss")
    with pytest.raises(ConfigError, match="no evaluator 'validatoin'. Did you mean validation"):
        _ = made.points
    late = "tag:LearningRate=0.1"
    made = Search("config:debug", RATE, late, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="overwrites what --space=tag:LearningRate"):
        _ = made.points
    none = space("tag:Missing=lin(0,1)")
    made = Search("config:debug", none, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="Missing"):
        _ = made.points


def test_a_grid_has_all_its_points(toys: Toys, search: Make) -> None:
    spaces = [space("set:seed=1,2,3"), space("set:seq_len=range(16,33,16)")]
    assert Search(*spaces, sampler="grid", objective="loss").num_trials == 6
    assert Search(*spaces, sampler="grid:4", objective="loss").num_trials == 4
    assert Search(*spaces, sampler="grid:50", objective="loss").num_trials == 6
    found, _ = run(search(space("set:seed=range(0,5)"), sampler="grid"))
    assert sorted(row["values"]["seed"] for row in found.results) == list("01234")
