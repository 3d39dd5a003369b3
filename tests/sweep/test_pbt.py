"""Populations: cloned, continued, and with the numbers of commands by hand."""

import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fidgpt[ray]'")
pytest.importorskip("optuna")

from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, member, read_results
from fidgpt.sweep.population import Population, evolve, read_pbt
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search import Found, space
from fidgpt.train.trackers.trackers import reproducible

from .on_ray import ray_here  # noqa: F401
from .test_local import interrupt_when

pytestmark = pytest.mark.xdist_group("processes")
ROOT = Path(__file__).parents[2]
NUM_STEPS = 9
QUICK = ["config:debug", f"fiddler:smoke_test({NUM_STEPS})", "set:samples=None"]
OFTEN = [*QUICK, "set:evaluators.validation.every=3"]
RATE = space("tag:LearningRate=log(1e-4,1e-2)")
# Decreases its loss by its learning rate at each step; its state is the loss alone. With a file
# named diverges, a rate above 0.005 does.
_SCRIPT = """
import json, pathlib, signal, sys, time
pairs = [one.partition("=")[::2] for one in sys.argv[1:]]
flags = dict(pairs)
rates = [text for name, text in pairs if name == "--config" and "LearningRate" in text]
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
    """The script in place of runs."""
    monkeypatch.setattr(Job, "program", [sys.executable, "-I", "-c", _SCRIPT])


def population(directory: Path, *items: Any, **rest: Any) -> Population:
    made = {"size": 4, "every": 3, "objective": "loss", "directory": directory} | rest
    return Population(*(items or (*QUICK, RATE)), **made)


def run(made: Population) -> tuple[Found, str]:
    text = io.StringIO()
    console = Console(file=text, width=1000)
    return evolve(made, RayRunner(), console=console), text.getvalue()


def rows_of(directory: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    path = directory / row["directory"] / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("ray_here")
def test_the_worst_continue_as_clones_of_the_best(toys: None, tmp_path: Path) -> None:
    found, text = run(population(tmp_path))
    assert found.is_whole and found.best is not None
    lineages = member.read_lineages(tmp_path)
    clones = [one for one in lineages.values() if one.parent is not None]
    assert [one.step for one in clones] == [3, 6]  # a quarter of four, at each look
    finished = [row for row in read_results(tmp_path) if row["status"] == "finished"]
    replaced = [row for row in read_results(tmp_path) if row["status"] == "stopped early"]
    assert len(finished) == 4 and len(replaced) == len(clones)
    for row in read_results(tmp_path):
        rows = rows_of(tmp_path, row)
        assert [one["step"] for one in rows] == list(range(1, len(rows) + 1))
        line = member.ancestors(lineages, row["fingerprint"])
        ends = [one.step for one in line[1:]] + [len(rows)]
        rates = [
            value
            for one, begin, end in zip(line, [0, *ends], ends, strict=False)
            for value in [one.values["tag:LearningRate"]] * (end - begin)
        ]
        assert [one["rate"] for one in rows] == rates  # each stretch with the values of its lineage
    for one in clones:
        at_look = {
            row["fingerprint"]: next(
                (each["loss"] for each in rows_of(tmp_path, row) if each["step"] == one.step), None
            )
            for row in read_results(tmp_path)
            if lineages[row["fingerprint"]].step < one.step
        }
        best = min(value for value in at_look.values() if value is not None)
        assert at_look[one.parent or ""] == best
        assert f"member {one.member} continues from" in text
    line = member.ancestors(lineages, found.best["fingerprint"])
    assert len(found.commands(found.best)) == len(line)
    again, _ = run(population(tmp_path))
    assert again.best == found.best and len(again.results) == len(found.results)


@pytest.mark.usefixtures("ray_here")
def test_a_stopped_population_continues_with_the_same_clones(toys: None, tmp_path: Path) -> None:
    run(population(tmp_path / "whole"))
    part = tmp_path / "part"
    part.mkdir()
    (part / "slow").write_text("0.2")
    thread = interrupt_when(lambda: len(list(part.glob("*/checkpoints/step_00000003"))) >= 3)
    stopped, text = run(population(part))
    thread.join()
    assert not stopped.is_whole and "Stopping" in text
    (part / "slow").unlink()
    found, _ = run(population(part))
    assert found.is_whole
    assert member.read_lineages(part) == member.read_lineages(tmp_path / "whole")
    for row in found.results:
        assert rows_of(part, row) == rows_of(tmp_path / "whole", row)


@pytest.mark.usefixtures("ray_here")
def test_a_member_that_diverges_is_replaced(toys: None, tmp_path: Path) -> None:
    (tmp_path / "diverges").touch()
    high = space("tag:LearningRate=log(4e-3,6e-3)")
    found, _ = run(population(tmp_path, *QUICK, high))
    lineages = list(member.read_lineages(tmp_path).values())
    bad = [one for one in lineages if one.values["tag:LearningRate"] > 0.005]
    assert 0 < len(bad) < len(lineages)
    assert {row["status"] for row in found.results} >= {"finished", "diverged"}
    clones = [one for one in lineages if one.parent is not None]
    assert {one.member for one in bad} & {one.member for one in clones}
    assert found.best is not None and float(found.best["values"]["LearningRate"]) <= 0.005


@pytest.mark.usefixtures("ray_here")
def test_a_clone_has_the_numbers_of_its_schedule(tmp_path: Path) -> None:
    items = ["config:debug", "fiddler:smoke_test(6)", "set:samples=None", RATE]
    found, _ = run(population(tmp_path / "sweep", *items, size=2))
    lineages = member.read_lineages(tmp_path / "sweep")
    (clone,) = [one for one in lineages.values() if one.parent is not None]
    (row,) = [one for one in found.results if one["fingerprint"] == clone.fingerprint]
    by_hand = tmp_path / "by_hand"
    line = member.ancestors(lineages, clone.fingerprint)
    first, second = member.schedule(line, run_dir=str(by_hand))
    rate = clone.values["tag:LearningRate"]
    assert "--until_step=3" in first and f"LearningRate={rate}" in second
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
def test_errors_end_a_population(toys: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run reports moe/nonsense, but step, loss"):
        run(population(tmp_path / "unmeasured", objective="moe/nonsense"))
    with pytest.raises(ConfigError, match="processes=2: a member of a population is one process"):
        evolve(population(tmp_path), RayRunner(processes=2, cpus=0.5))


@pytest.mark.usefixtures("ray_here")
def test_a_population_of_which_all_fail_ends(toys: None, tmp_path: Path) -> None:
    (tmp_path / "diverges").touch()
    high = space("tag:LearningRate=log(6e-3,1e-2)")
    found, _ = run(population(tmp_path, *QUICK, high, size=2))
    assert found.is_whole and found.best is None
    assert [row["status"] for row in found.results] == ["diverged"] * 2
    assert all(one.parent is None for one in member.read_lineages(tmp_path).values())


VALIDATION = {"objective": "validation/loss", "every": 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: population(path, *QUICK), "a population needs a space"),
        (lambda path: population(path, size=1), "at least two runs"),
        (
            lambda path: population(path, *QUICK, space("tag:HiddenDim=32,64")).points,
            "resumes runs with other values:(.|\n)*hidden_dim may not change",
        ),
        (
            lambda path: population(path, *QUICK, space("fiddler:use_rope,use_alibi")).points,
            "set by tag: or set: and a plain =",
        ),
        (
            lambda path: population(path, every=9).every,
            "after steps 1, 2, 3, ... of 9, and",
        ),
        (
            lambda path: population(path, **VALIDATION).every,
            "after the last step of 9, and must be measured every 2 steps",
        ),
        (
            lambda path: population(path, *OFTEN, RATE, **VALIDATION).every,
            "validation/loss is measured after steps 3, 6, ... of 9, and must be measured every 2",
        ),
        (
            lambda path: population(path, objective="nonsense").every,
            "no run reports --objective=nonsense. There are (.*)loss",
        ),
        (lambda path: read_pbt("pbt"), "write --search=pbt:8"),
        (lambda path: read_pbt("pbt(populatio=2)"), "no argument 'populatio'. Did you mean pop"),
        (lambda path: read_pbt("pbt(every=2)"), "pbt needs population"),
    ],
)
def test_invalid_populations_are_refused(
    make: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path)


def test_population_texts() -> None:
    assert read_pbt("pbt:8") == (8, None)
    assert read_pbt("pbt(population=8, every=100)") == (8, 100)
    assert read_pbt("pbt(8,every=100)") == (8, 100)
