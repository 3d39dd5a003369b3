"""Settings of groups move as schedules say, and meters say how each group learns."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fidgpt.train import StepMeters
from fidgpt.train.step import GradientNorms, GroupSchedules


def halves(step: int) -> float:
    return 0.5**step


def optimizer(
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> torch.optim.Optimizer:
    """Three groups, of which one learns twice as fast, and one does not decay."""
    drawn = torch.Generator().manual_seed(0)
    one, two, three = (nn.Parameter(torch.randn(n, 3, generator=drawn)) for n in (2, 3, 4))
    groups = [
        {"params": [one, two], "name": "hidden matrices", "lr_scale": 2.0},
        {"params": [three], "name": "tables", "weight_decay": 0.0},
    ]
    return make(groups, lr=0.25, weight_decay=0.5)


def test_settings_are_peaks_times_multipliers_of_the_step() -> None:
    made = optimizer()
    schedules = GroupSchedules(
        made, schedule=lambda step: 1 / (step + 1), others={"weight_decay": halves}
    )
    for step in (0, 3, 1):  # whatever was set before
        schedules.apply(step)
        first, second = made.param_groups
        assert (first["lr"], second["lr"]) == (0.5 / (step + 1), 0.25 / (step + 1))
        assert (first["weight_decay"], second["weight_decay"]) == (0.5 * halves(step), 0.0)


def test_a_restored_optimizer_is_still_the_one_that_is_moved() -> None:
    made = optimizer()
    schedules = GroupSchedules(made, schedule=lambda step: 1.0, others={"weight_decay": halves})
    made.load_state_dict(made.state_dict())  # which gives it other groups
    schedules.apply(2)
    assert made.param_groups[0]["weight_decay"] == 0.125


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "has a schedule already"),
        ("weight_decy", "'weight_decy' is unknown(.|\n)*choose one of .*weight_decay"),
        ("betas", "'betas' is .*not a number"),
        ("amsgrad", "'amsgrad' is False, not a number"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GroupSchedules(optimizer(), schedule=halves, others={name: halves})


def test_meters_say_of_each_group_what_its_step_was() -> None:
    made = optimizer(torch.optim.SGD)
    groups = made.param_groups
    for group in groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, 0.1)
    before = [torch.cat([p.detach().flatten() for p in g["params"]]) for g in groups]
    parameters = [p for group in groups for p in group["params"]]
    norms = GradientNorms(parameters)
    with StepMeters(every=5).measuring(groups, norms) as measured:
        norms.clip(0.01)  # which what is measured precedes
        made.step()
    after = [torch.cat([p.detach().flatten() for p in g["params"]]) for g in groups]
    for name, group, old, new in zip(
        ("hidden_matrices", "tables"), groups, before, after, strict=True
    ):
        assert measured[f"grad_norm/{name}"] == pytest.approx(0.1 * math.sqrt(len(old)))
        ratio = ((new - old).norm() / old.norm()).item()
        assert measured[f"update_ratio/{name}"] == pytest.approx(ratio, rel=1e-5)
        assert measured[f"learning_rate/{name}"] == group["lr"]
    assert len(measured) == 6


def test_groups_of_one_name_are_numbered_and_zeros_have_no_ratio() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "name": "a", "lr": 1.0} for _ in range(2)]
    groups += [{**groups[0], "name": "hidden matrices, layer 2"}]
    with StepMeters().measuring(groups, GradientNorms([])) as measured:
        pass
    assert {*measured} == {
        f"{what}/{name}"
        for what in ("grad_norm", "update_ratio", "learning_rate")
        for name in ("a_1", "a_2", "hidden_matrices_layer_2")  # that all trackers take
    }
    assert measured["update_ratio/a_1"] == 0.0


def test_it_is_time_every_so_often() -> None:
    assert [step for step in range(1, 21) if StepMeters(every=5).due(step)] == [5, 10, 15, 20]
    with pytest.raises(ValueError, match="every=0"):
        StepMeters(every=0)
