"""Populations by Ray Tune: cloned, told, gone on with, and the same numbers as by hand."""

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.tune", reason="Ray is not installed: pip install 'fidgpt[ray]'")
pytest.importorskip("optuna")

from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, read_results
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import ResultsTable
from fidgpt.sweep.runners.attempt import Ending, jobs_of
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search import space
from fidgpt.sweep.tune import Evolved, Population, evolve, read_pbt
from fidgpt.sweep.tune.member import schedule
from fidgpt.train.trackers.trackers import reproducible

from .on_ray import ray_here  # noqa: F401
from .test_local import interrupt_when

pytestmark = pytest.mark.xdist_group("processes")
ROOT = Path(__file__).parents[2]
NUM_STEPS = 9
QUICK = ["config:debug", f"fiddler:smoke_test({NUM_STEPS})", "set:samples=None"]
OFTEN = [*QUICK, "set:evaluators.validation.every=3"]
RATE = space("tag:LearningRate=log(1e-4,1e-2)")
DECAY = space("tag:WeightDecay=0,0.1,0.2")
# Toy: its loss comes down by its learning rate at each step; its state is the loss alone. One that
# has a rate above 0.005 diverges where a file says so.
_SCRIPT = """
import json, pathlib, signal, sys, time
said = [one.partition("=")[::2] for one in sys.argv[1:]]
flags = dict(said)
rates = [text for name, text in said if name == "--config" and "LearningRate" in text]
folder, stopped = pathlib.Path(flags.get("--run_dir") or flags["--resume"]), []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
folder.mkdir(exist_ok=True)
if rates:
    (folder / "config.json").write_text(rates[-1].rpartition("=")[2])
rate = float((folder / "config.json").read_text())
saved = sorted(folder.glob("checkpoints/step_*"))
begin = int(saved[-1].name[5:]) if saved else 0
loss = float((saved[-1] / "loss").read_text()) if saved else 1.0
rows = (folder / "metrics.jsonl").open("a")
slow = folder.parent / "slow"
step = begin
for step in range(begin + 1, int(flags["--until_step"]) + 1):
    time.sleep(float(slow.read_text()) if slow.exists() else 0)
    if rate > 0.005 and (folder.parent / "diverges").exists():
        sys.exit(f"error: step {step} diverged: loss is nan.")
    loss -= rate
    print(json.dumps({"step": step, "loss": loss, "rate": rate}), file=rows, flush=True)
    if stopped:
        break
(folder / f"checkpoints/step_{step:08d}").mkdir(parents=True, exist_ok=True)
(folder / f"checkpoints/step_{step:08d}/loss").write_text(repr(loss))
for old in saved if step > begin else ():
    (old / "loss").unlink()
    old.rmdir()
sys.exit(143 if stopped else 0)
"""


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys in place of runs."""
    monkeypatch.setattr(Job, "program", [sys.executable, "-I", "-c", _SCRIPT])


def population(directory: Path, **rest: Any) -> Population:
    made = {"size": 4, "every": 3, "objective": "loss", "directory": directory} | rest
    return Population(*QUICK, RATE, **made)


def run(made: Population) -> tuple[Evolved, str]:
    text = io.StringIO()
    console = Console(file=text, width=1000)
    return evolve(made, RayRunner(), console=console), text.getvalue()


def rows_of(directory: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    path = directory / row["directory"] / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("ray_here")
def test_the_worse_go_on_as_clones_of_the_better(toys: None, tmp_path: Path) -> None:
    found, text = run(population(tmp_path))
    assert found.is_whole and found.best is not None
    lineage = {one.fingerprint: one for one in found.lineage}
    clones = [one for one in lineage.values() if one.parent is not None]
    assert [one.step for one in clones] == [3, 6]  # a quarter of four, at each look
    finished = [row for row in read_results(tmp_path) if row["status"] == "finished"]
    replaced = [row for row in read_results(tmp_path) if row["status"] == "stopped early"]
    assert len(finished) == 4 and len(replaced) == len(clones)
    for row in read_results(tmp_path):
        rows = rows_of(tmp_path, row)
        assert [one["step"] for one in rows] == list(range(1, len(rows) + 1))
        line = found.lineage.ancestors(row["fingerprint"])
        ends = [one.step for one in line[1:]] + [len(rows)]
        rates = [
            value
            for one, begin, end in zip(line, [0, *ends], ends, strict=False)
            for value in [one.values["tag:LearningRate"]] * (end - begin)
        ]
        assert [one["rate"] for one in rows] == rates  # each stretch by what the lineage says
    for one in clones:
        at_look = {
            row["fingerprint"]: next(
                (each["loss"] for each in rows_of(tmp_path, row) if each["step"] == one.step), None
            )
            for row in read_results(tmp_path)
            if lineage[row["fingerprint"]].step < one.step
        }
        best = min(value for value in at_look.values() if value is not None)
        assert at_look[one.parent or ""] == best
        assert f"member {one.member} goes on from" in text
    assert len(found.schedule) == len(found.lineage.ancestors(found.best["fingerprint"]))
    told = (tmp_path / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line)["parent"] for line in told[:4]] == [None] * 4
    again, _ = run(population(tmp_path))
    assert again.best == found.best and len(again.results) == len(found.results)


@pytest.mark.usefixtures("ray_here")
def test_a_stopped_population_goes_on_with_the_same_clones(toys: None, tmp_path: Path) -> None:
    whole, _ = run(population(tmp_path / "whole"))
    part = tmp_path / "part"
    part.mkdir()
    (part / "slow").write_text("0.2")
    thread = interrupt_when(lambda: len(list(part.glob(".pins/*/step_00000003"))) >= 3)
    stopped, text = run(population(part))
    thread.join()
    assert not stopped.is_whole and "Stopping" in text
    (part / "slow").unlink()
    found, _ = run(population(part))
    assert found.is_whole
    assert {one.fingerprint for one in found.lineage} == {one.fingerprint for one in whole.lineage}
    for row in found.results:
        assert rows_of(part, row) == rows_of(tmp_path / "whole", row)


@pytest.mark.usefixtures("ray_here")
def test_one_that_diverges_is_cloned_over(toys: None, tmp_path: Path) -> None:
    (tmp_path / "diverges").touch()
    found, _ = run(population(tmp_path, seed=4))
    lineage = list(found.lineage)
    bad = [one for one in lineage if one.values["tag:LearningRate"] > 0.005]
    assert bad
    assert {row["status"] for row in found.results} == {"finished", "stopped early"}
    clones = [one for one in lineage if one.parent is not None]
    assert {one.member for one in bad} & {one.member for one in clones}
    assert found.best is not None and float(found.best["values"]["LearningRate"]) <= 0.005


@pytest.mark.usefixtures("ray_here")
def test_a_clone_has_the_numbers_that_one_gets_by_hand(tmp_path: Path) -> None:
    items = ["config:debug", "fiddler:smoke_test(6)", "set:samples=None", RATE]
    made = Population(*items, size=2, every=3, objective="loss", directory=tmp_path / "sweep")
    found, _ = run(made)
    (clone,) = [one for one in found.lineage if one.parent is not None]
    (row,) = [one for one in found.results if one["fingerprint"] == clone.fingerprint]
    by_hand = tmp_path / "by_hand"
    first, second = schedule(found.lineage.ancestors(clone.fingerprint), run_dir=str(by_hand))
    assert (
        "--until_step=3" in first and f"LearningRate={clone.values['tag:LearningRate']}" in second
    )
    for command in (first, second):
        words = shlex.split(command)[2:]
        environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        train = [sys.executable, "-m", "fidgpt.cli.train", *words]
        subprocess.run(train, check=True, capture_output=True, env=environment, timeout=100)
    rows = [json.loads(line) for line in (by_hand / "metrics.jsonl").read_text().splitlines()]
    trained = rows_of(tmp_path / "sweep", row)
    assert len(rows) == 6
    assert list(map(reproducible, rows)) == list(map(reproducible, trained))
    rates = [one["learning_rate"] for one in rows]
    assert rates[3] / rates[2] != pytest.approx(1.0)


@pytest.mark.usefixtures("ray_here")
def test_a_number_that_the_first_look_does_not_show_ends_it(toys: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run reports --objective=moe/nonsense. There are"):
        run(population(tmp_path, objective="moe/nonsense"))
    assert not (tmp_path / ".stretches").exists()


@pytest.mark.usefixtures("ray_here")
def test_where_all_fail_there_is_nothing_to_clone_and_it_ends(toys: None, tmp_path: Path) -> None:
    (tmp_path / "diverges").touch()
    high = space("tag:LearningRate=log(6e-3,1e-2)")
    found, _ = run(Population(*QUICK, high, size=2, every=3, objective="loss", directory=tmp_path))
    assert found.is_whole and found.best is None
    assert [row["status"] for row in found.results] == ["diverged"] * 2
    assert all(one.parent is None for one in found.lineage)


@pytest.mark.usefixtures("ray_here")
def test_what_a_members_code_raises_ends_it_with_its_words(toys: None, tmp_path: Path) -> None:
    (tmp_path / "logs").touch()  # where a folder belongs
    with pytest.raises(ConfigError, match="cannot go on: FileExistsError: (.*)logs"):
        run(population(tmp_path))


def test_another_population_in_a_directory_is_refused_by_what_differs(tmp_path: Path) -> None:
    population(tmp_path).keep()
    population(tmp_path).refuse_other()
    with pytest.raises(ConfigError, match="with size=4 where this one has size=5: name another"):
        population(tmp_path, size=5).refuse_other()
    other = Population(*QUICK, DECAY, size=4, every=3, objective="loss", directory=tmp_path)
    words = "with tag:LearningRate=log(.*) where this one has tag:WeightDecay="
    with pytest.raises(ConfigError, match=words):
        Console(file=io.StringIO()).print(other)
    with pytest.raises(ConfigError, match=words):
        run(other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Population(*QUICK, size=4, objective="loss"), "a population needs a space"),
        (lambda: Population(*QUICK, RATE, size=1, objective="loss"), "two runs at least"),
        (
            lambda: (
                Population(*QUICK, space("tag:HiddenDim=32,64"), size=2, objective="loss").points
            ),
            "goes on with other values:(.|\n)*hidden_dim may not change while a run goes on",
        ),
        (
            lambda: (
                Population(
                    *QUICK, space("fiddler:use_rope,use_alibi"), size=2, objective="loss"
                ).points
            ),
            "what is said by tag: or set: and a plain =",
        ),
        (
            lambda: Population(*QUICK, RATE, size=2, every=9, objective="loss").every,
            "a run has 9 steps, and is to be looked at on its way",
        ),
        (
            lambda: Population(*QUICK, RATE, size=2, every=2, objective="validation/loss").every,
            "validation/loss is not measured after step 2. It is measured after the last step only",
        ),
        (
            lambda: Population(*OFTEN, RATE, size=2, every=2, objective="validation/loss").every,
            "not measured after step 2. It is measured every 3 steps: say every=3",
        ),
        (
            lambda: Population(*QUICK, RATE, size=2, objective="nonsense").every,
            "no run reports --objective=nonsense. There are (.*)loss",
        ),
        (lambda: read_pbt("pbt"), "write --search=pbt:8"),
        (lambda: read_pbt("pbt(populatio=2)"), "no argument 'populatio'. Did you mean population?"),
        (lambda: read_pbt("pbt(every=2)"), "pbt needs population"),
    ],
)
def test_a_population_that_cannot_be_says_why(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_how_a_population_is_said() -> None:
    assert read_pbt("pbt:8") == (8, None)
    assert read_pbt("pbt(population=8, every=100)") == (8, 100)
    assert read_pbt("pbt(8,every=100)") == (8, 100)


@pytest.mark.parametrize("words", ["its node is gone", "its node is gone."])
def test_what_is_tried_again_is_told_in_two_sentences(words: str, tmp_path: Path) -> None:
    point = population(tmp_path).points.of({RATE.name: 1e-3})
    (job,) = jobs_of([point], tmp_path, [])
    text = io.StringIO()
    with Screen(ResultsTable(tmp_path, [job]), console=Console(file=text, width=1000)) as screen:
        screen.started(job)
        screen.ended(job, Ending("failed", words), again=True)
    assert "failed: its node is gone. It is tried again." in text.getvalue()
