"""Bisection: delta debugging by itself, over real configs, and with jobs that are stopped."""

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, dump, fingerprint
from fidgpt.sweep import Events, Job, LocalRunner, Point, Runner
from fidgpt.sweep.bisection import Bisection, Bounds, Findings, Stopped, minimize
from fidgpt.sweep.objective import Objective

from .conftest import Toys

pytestmark = pytest.mark.slow

QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
CHANGES = [
    "set:seed=3",
    "set:model.hidden_dim=64",
    "tag:WeightDecay=0.3",
    "fiddler:use_gelu",
    "set:max_grad_norm=0.5",
    "tag:LearningRate=0.5",
    "set:seq_len=16",
    "fiddler:use_gqa(1)",
]
TWO = ["set:seed=3", "set:max_grad_norm=0.5"]


def run_of(directory: Path, *changes: str, **numbers: float) -> Path:
    """Write the files of a run without training it; with `numbers`, of a finished one."""
    directory.mkdir(parents=True)
    cfg = compose([*QUICK, *changes]).config
    (directory / "config.json").write_text(dump(cfg))
    if numbers:
        (directory / "metrics.jsonl").write_text(json.dumps({"step": 2, **numbers}) + "\n")
    return directory


class Fake:
    """Values of points by their differences; lists the points that it measured."""

    def __init__(self, value: Callable[[set[str]], float | None]) -> None:
        self.value = value
        self.measured: list[str] = []

    def __call__(self, points: Sequence[Point]) -> list[float | None]:
        self.measured += [point.fingerprint for point in points]
        changed = [set(filter(None, point.values["differences"].split(", "))) for point in points]
        return [self.value(one) for one in changed]


def found(
    tmp_path: Path, fake: Fake, *, jobs: int = 1, threshold: float | None = None
) -> tuple[Findings, list[str]]:
    good, bad = run_of(tmp_path / "good"), run_of(tmp_path / "bad", *CHANGES)
    bisection = Bisection(
        good, bad, objective="loss", threshold=threshold, directory=tmp_path / "bisect"
    )
    lines: list[str] = []
    return bisection.find(fake, jobs=jobs, log=lines.append), lines


@pytest.mark.parametrize("causes", [{7}, {3, 16}, {0, 1, 19}, set(range(20))])
def test_the_smallest_set_is_found(causes: set[int]) -> None:
    tried: list[tuple[int, ...]] = []

    def first_bad(sets: list[tuple[int, ...]]) -> tuple[int, ...] | None:
        for one in sets:
            tried.append(one)
            if causes <= set(one):
                return one
        return None

    assert set(minimize(range(20), first_bad)) == causes
    assert len(causes) > 1 or len(tried) <= 10  # bisection, not one after the other


def test_a_single_cause_is_named_with_its_command(tmp_path: Path) -> None:
    fake = Fake(lambda changed: 9.0 if "optimizer.lr" in changed else 2.0)
    findings, lines = found(tmp_path, fake)
    assert findings.pieces == ("optimizer.lr",)
    assert findings.directives[-1].startswith("patch:")
    assert "1 of 8 differences makes loss bad: 2.0000 -> 9.0000" in findings.text
    assert "~ optimizer.lr: 0.001 -> 0.5" in findings.text
    assert findings.text.count("python train.py --config=") == 2
    assert len(fake.measured) == len(set(fake.measured)) <= 10
    made = compose(findings.directives).config
    assert made.optimizer.lr == 0.5 and made.seed == 0
    cured = compose(findings.cure or ()).config
    rest = compose([*QUICK, *CHANGES[:5], *CHANGES[6:]]).config
    assert fingerprint(cured) == fingerprint(rest)
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["good", "bad"]


def test_causes_that_only_act_together_are_both_named(tmp_path: Path) -> None:
    fake = Fake(lambda changed: 9.0 if {"seed", "max_grad_norm"} <= changed else 2.0)
    findings, _ = found(tmp_path, fake, jobs=3)
    assert set(findings.pieces) == {"seed", "max_grad_norm"}
    assert "only together" in findings.text


def test_divergence_is_bad_and_a_missing_value_unresolved(tmp_path: Path) -> None:
    def value(changed: set[str]) -> float | None:
        if "seq_len" in changed and len(changed) < 8:
            return None
        return math.nan if "seed" in changed else 2.0

    findings, lines = found(tmp_path, Fake(value))
    assert "seed" in findings.pieces and "diverged" in findings.text
    assert any(line.endswith("it has no loss: unresolved") for line in lines)


def test_the_threshold_can_be_set(tmp_path: Path) -> None:
    fake = Fake(lambda changed: 2.0 + ("seed" in changed) + 6 * ("max_grad_norm" in changed))
    assert found(tmp_path, fake, threshold=8.5)[0].pieces == ("seed", "max_grad_norm")
    with pytest.raises(ConfigError, match="--threshold=1.0 does not lie between"):
        found(tmp_path / "other", fake, threshold=1.0)


def test_finished_ends_are_not_trained_again(tmp_path: Path) -> None:
    good, bad = run_of(tmp_path / "good", loss=2.0), run_of(tmp_path / "bad", *TWO, loss=9.0)
    fake = Fake(lambda changed: 9.0 if "seed" in changed else 2.0)
    bisection = Bisection(good, bad, objective="loss", directory=tmp_path / "bisect")
    assert bisection.find(fake).pieces == ("seed",)
    assert len(fake.measured) == 1
    with pytest.raises(ConfigError, match="no difference of the configs is the cause"):
        bisection.find(Fake(lambda changed: 2.0))
    with pytest.raises(ConfigError, match="both runs have the same loss, 2"):
        found(tmp_path / "other", Fake(lambda changed: 2.0))
    with pytest.raises(ConfigError, match="have the same config"):
        Bisection(good, good, objective="loss")


def test_a_larger_objective_is_worse_when_it_falls() -> None:
    accuracy = Objective("acc", is_larger_better=True)
    for bounds in (Bounds(accuracy, 0.8, 0.2), Bounds(accuracy, 0.8, math.nan, 0.5)):
        verdicts = [bounds.verdict(value) for value in (0.7, 0.3)]
        assert verdicts == ["good", "bad"]
    with pytest.raises(ConfigError, match="is worse than the bad one's, 0.8: swap the two"):
        Bounds(accuracy, 0.2, 0.8)


class Halting(Runner):
    """A runner that is stopped after some of its jobs."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.ran: list[Job] = []

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        every = [job for job in jobs if job is not None]
        todo = every[: self.most - len(self.ran)]
        self.ran += todo
        return LocalRunner().run(todo, events) and len(todo) == len(every)


def test_a_stopped_bisection_continues(toys: Toys, tmp_path: Path) -> None:
    good, bad = run_of(tmp_path / "good"), run_of(tmp_path / "bad", *CHANGES)
    first, second = Halting(4), Halting(99)

    def bisect(runner: Halting) -> Findings:
        bisection = Bisection(good, bad, objective="loss", directory=toys.directory)

        def measure(points: Sequence[Point]) -> list[float | None]:
            values = bisection.train(points, runner, Console(file=io.StringIO()))
            assert None not in values
            return [
                9.0 if "optimizer.lr" in point.values["differences"] else 2.0 for point in points
            ]

        return bisection.find(measure)

    with pytest.raises(Stopped):
        bisect(first)
    assert bisect(second).pieces == ("optimizer.lr",)
    ran = [job.point.fingerprint for job in (*first.ran, *second.ran)]
    assert len(ran) == len(set(ran)) > 4
