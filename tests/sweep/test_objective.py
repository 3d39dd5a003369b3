"""What points are compared by: how it is said, kept beside a sweep, and heard everywhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Sweep, axis, read_results
from fidgpt.sweep.objective import Objective, objective_of, read_objective
from fidgpt.sweep.report import read_report
from fidgpt.sweep.runners.jobs import Job

from .conftest import Toys


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("validation/loss", Objective("validation/loss")),
        ("min:loss", Objective("loss")),
        ("max:tasks/arc_easy/acc", Objective("tasks/arc_easy/acc", is_larger_better=True)),
        ("min:tasks/arc_easy/acc", Objective("tasks/arc_easy/acc")),
    ],
)
def test_an_objective_says_which_way_is_better(said: str, meant: Objective) -> None:
    assert objective_of(said) == meant
    assert objective_of(meant.text if "acc" not in said else said) == meant


@pytest.mark.parametrize("said", ["", "max:", "max", "more:loss", ":loss"])
def test_what_names_no_number_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="must name a metric: write --objective=validation/loss"):
        objective_of(said)


@pytest.mark.parametrize("said", ["tasks/lambada_openai/acc", "tasks/gsm8k/exact_match/strict"])
def test_nobody_looks_for_a_small_accuracy_by_mistake(said: str) -> None:
    with pytest.raises(
        ConfigError, match=f"lacks the direction that is better: write --objective=max:{said}"
    ):
        objective_of(said)


class ToySweep(Sweep):
    """A sweep whose points are toys."""

    toys: Toys

    @property
    def jobs(self) -> list[Job]:
        return self.toys.jobs(["1", "2"])


def test_a_sweep_keeps_what_it_is_compared_by(toys: Toys) -> None:
    toys.lasts["1"] = 3  # of fewer steps, and so of a larger loss
    sweep = ToySweep(axis("set:seed=1,2"), directory=toys.directory, objective="max:loss")
    sweep.toys = toys
    text = io.StringIO()
    results = sweep.run(console=Console(file=text))
    found = results.best()
    assert found is not None and found["name"] == "seed=1"
    assert "best so far seed=1 with 0.3333" in text.getvalue()
    assert read_results(toys.directory).best() == found
    assert results.best("min:loss") == results[1]
    assert read_objective(toys.directory) == Objective("loss", is_larger_better=True)
    assert read_report(toys.directory).objective.is_larger_better
    assert not read_report(toys.directory, objective="loss").objective.is_larger_better
    again = ToySweep(axis("set:seed=1,2"), directory=toys.directory)
    assert again.compared_by == sweep.objective  # as it was said at first


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("max:tasks/acc", "it has no evaluator 'tasks'"),
        ("validation_loss", "no run reports --objective=validation_loss. Did you mean validation/"),
    ],
)
def test_a_sweep_by_what_nobody_measures_starts_nothing(
    tmp_path: Path, objective: str, message: str
) -> None:
    sweep = Sweep(
        "config:debug", axis("set:seed=1,2"), objective=objective, directory=tmp_path / "new"
    )
    with pytest.raises(ConfigError, match=message):
        sweep.run()
    assert not sweep.directory.exists()
