"""Which difference did it: the search by itself, over real configs, and with real runs."""

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import ConfigError, dump, fingerprint
from fidgpt.sweep import Events, Job, LocalRunner, Point
from fidgpt.sweep.bisection import Bisection, Measuring, Stopped
from fidgpt.sweep.bisection_pieces import Culprits, minimal, together

from .conftest import Toys

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


def run_of(directory: Path, *changes: str, done: dict[str, float] | None = None) -> Path:
    """The directory of a run that was trained by nobody, with its last numbers if it is done."""
    directives = [*QUICK, *changes]
    cfg = compose(directives, own_catalogue())
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(dump(cfg))
    if done:
        (directory / "metrics.jsonl").write_text(json.dumps({"step": 2, **done}) + "\n")
    return directory


class Fake:
    """Values of points by the differences in them; counts what it is asked."""

    def __init__(self, value: Callable[[set[str]], float | None]) -> None:
        self.value = value
        self.asked: list[str] = []

    def __call__(self, points: Sequence[Point]) -> list[float | None]:
        self.asked += [point.fingerprint for point in points]
        told = [set(filter(None, point.values["differences"].split(", "))) for point in points]
        return [self.value(one) for one in told]


def found(
    tmp_path: Path, fake: Fake, *, jobs: int = 1, threshold: float | None = None
) -> tuple[Culprits, list[str]]:
    good, bad = run_of(tmp_path / "good"), run_of(tmp_path / "bad", *CHANGES)
    bisection = Bisection(
        good, bad, objective="loss", threshold=threshold, directory=tmp_path / "bisect"
    )
    lines: list[str] = []
    return bisection.find(fake, jobs=jobs, say=lines.append), lines


@pytest.mark.parametrize("culprits", [{7}, {3, 16}, {0, 1, 19}, set(range(20))])
def test_the_smallest_set_is_found(culprits: set[int]) -> None:
    tried: list[tuple[int, ...]] = []

    def first_bad(sets: list[tuple[int, ...]]) -> tuple[int, ...] | None:
        for one in sets:
            tried.append(one)
            if culprits <= set(one):
                return one
        return None

    assert set(minimal(range(20), first_bad)) == culprits
    assert len(culprits) > 1 or len(tried) <= 10  # halves of halves, not one after the other


def test_what_cannot_stand_alone_goes_with_what_it_needs() -> None:
    needs = {3: {11}, 11: {15}, 6: {7}}

    def holds(pieces: tuple[int, ...]) -> bool:
        return all(needs.get(one, set()) <= set(pieces) for one in pieces)

    groups = together(range(20), holds)
    assert [one for one in groups if len(one) > 1] == [(3, 11, 15), (6, 7)]
    assert sorted(one for group in groups for one in group) == list(range(20))


def test_one_culprit_is_named_with_its_command(tmp_path: Path) -> None:
    fake = Fake(lambda made: 9.0 if "optimizer.lr" in made else 2.0)
    culprits, lines = found(tmp_path, fake)
    assert culprits.pieces == ("optimizer.lr",)
    assert culprits.directives[-1] == "set:optimizer.lr=0.5"
    assert "1 of 8 differences makes loss bad: 2.0000 -> 9.0000" in culprits.text()
    assert "~ optimizer.lr: 0.001 -> 0.5" in culprits.text()
    assert culprits.text().count("python train.py --config=") == 2
    own = replace(culprits, allowed=("mine",)).text()
    assert own.count("python train.py --allow=mine --config=") == 2
    assert len(fake.asked) == len(set(fake.asked)) <= 10
    made = compose(culprits.directives, own_catalogue())
    assert made.optimizer.lr == 0.5 and made.seed == 0
    cured = compose(culprits.cure or (), own_catalogue())
    rest = compose([*QUICK, *CHANGES[:5], *CHANGES[6:]], own_catalogue())
    assert fingerprint(cured) == fingerprint(rest)
    text = (tmp_path / "bisect/bisect.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["verdict"] for row in rows[:2]] == ["good", "bad"]
    assert len(rows) == len([line for line in lines if line.startswith("probe ")])
    assert rows[-1]["value"] is None or rows[-1]["value"] in (2.0, 9.0)


def test_two_that_only_act_together_are_both_named(tmp_path: Path) -> None:
    fake = Fake(lambda made: 9.0 if {"seed", "max_grad_norm"} <= made else 2.0)
    culprits, _ = found(tmp_path, fake, jobs=3)
    assert set(culprits.pieces) == {"seed", "max_grad_norm"}
    assert "only together" in culprits.text()


def test_one_that_diverges_is_bad_and_one_without_a_value_is_neither(tmp_path: Path) -> None:
    def value(made: set[str]) -> float | None:
        if "seq_len" in made and len(made) < 8:
            return None
        return math.nan if "seed" in made else 2.0

    culprits, lines = found(tmp_path, Fake(value))
    assert "seed" in culprits.pieces and "diverged" in culprits.text()
    assert any(line.endswith("it came to no loss: unresolved") for line in lines)


def test_a_threshold_may_be_said(tmp_path: Path) -> None:
    fake = Fake(lambda made: 2.0 + ("seed" in made) + 6 * ("max_grad_norm" in made))
    assert found(tmp_path, fake, threshold=8.5)[0].pieces == ("seed", "max_grad_norm")
    with pytest.raises(ConfigError, match="--threshold=1 does not lie between"):
        found(tmp_path / "again", fake, threshold=1.0)


def test_ends_that_are_done_are_not_trained_again(tmp_path: Path) -> None:
    good = run_of(tmp_path / "good", done={"loss": 2.0})
    bad = run_of(tmp_path / "bad", "set:seed=3", "set:max_grad_norm=0.5", done={"loss": 9.0})
    fake = Fake(lambda made: 9.0 if "seed" in made else 2.0)
    bisection = Bisection(good, bad, objective="loss", directory=tmp_path / "bisect")
    assert bisection.find(fake, say=lambda _: None).pieces == ("seed",)
    assert len(fake.asked) == 1


def test_where_no_difference_did_it_that_is_said(tmp_path: Path) -> None:
    good = run_of(tmp_path / "good", done={"loss": 2.0})
    bad = run_of(tmp_path / "bad", "set:seed=3", "set:max_grad_norm=0.5", done={"loss": 9.0})
    bisection = Bisection(good, bad, objective="loss", directory=tmp_path / "bisect")
    with pytest.raises(ConfigError, match="no difference of the configs did it"):
        bisection.find(Fake(lambda made: 2.0), say=lambda _: None)
    with pytest.raises(ConfigError, match="both runs came to one loss, 2"):
        found(tmp_path / "other", Fake(lambda made: 2.0))
    with pytest.raises(ConfigError, match="one and the same config"):
        Bisection(good, good, objective="loss")


def test_an_objective_that_nobody_measures_is_refused_at_once(tmp_path: Path) -> None:
    good, bad = run_of(tmp_path / "good"), run_of(tmp_path / "bad", "set:seed=3")
    with pytest.raises(ConfigError, match="it has no evaluator 'validatoin'"):
        Bisection(good, bad, objective="validatoin/loss")
    for run in (good, bad):
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "tasks/easy/acc": 0.5}\n')
    with pytest.raises(ConfigError, match="no run reports --objective=lost. Did you mean loss"):
        Bisection(good, bad, objective="lost")
    assert Bisection(good, bad, objective="validation/loss"), "which comes at the end of a run"


class Halting:
    """A runner that is stopped after some of its toys."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ran: list[Job] = []

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        every = [job for job in jobs if job is not None]
        todo = every[: self.most - len(self.ran)]
        self.ran += todo
        return LocalRunner().run(todo, events) and len(todo) == len(every)

    def end_early(self, job: Job) -> None:
        raise AssertionError("a bisection ends none")


def test_a_stopped_bisection_goes_on_where_it_was(toys: Toys, tmp_path: Path) -> None:
    good, bad = run_of(tmp_path / "good"), run_of(tmp_path / "bad", *CHANGES)
    first, second = Halting(4), Halting(99)

    def bisected(runner: Halting) -> Culprits:
        measuring = Measuring(
            toys.directory,
            objective="loss",
            runner=runner,
            flags=(),
            console=Console(file=io.StringIO()),
        )
        told = Bisection(good, bad, objective="loss", directory=toys.directory)
        return told.find(Worse(measuring), say=lambda _: None)

    with pytest.raises(Stopped):
        bisected(first)
    assert bisected(second).pieces == ("optimizer.lr",)
    ran = [job.point.fingerprint for job in (*first.ran, *second.ran)]
    assert len(ran) == len(set(ran)) > 4


class Worse:
    """Values of toys, which are worse where a certain difference is among those of the point."""

    def __init__(self, measure: Measuring) -> None:
        self.measure = measure

    def __call__(self, points: Sequence[Point]) -> list[float | None]:
        values = self.measure(points)
        worse = [9.0 * ("optimizer.lr" in point.values["differences"]) for point in points]
        return [value + by for value, by in zip(values, worse, strict=True) if value is not None]
