"""What `optimizer:` of a Levanter file becomes: schedules step by step, and Muon."""

import inspect
from typing import Any

import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import bind, build, check_and_bind
from fidgpt.interop import Mapped, read_levanter
from fidgpt.optim import Constant, Muon, Phases, WarmupStableDecay


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """The bound graph, in which everything holds that is asked of a graph."""
    return check_and_bind(compose(mapped.directives, own_catalogue()))


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("lr_schedule: constant, warmup: 0", Constant, {"warmup_steps": 0}),
        ("lr_schedule: {type: constant}, warmup: 0.5", Constant, {"warmup_steps": 50}),
        (
            "lr_schedule: linear, warmup: 10",
            WarmupStableDecay,
            {"warmup_steps": 10, "decay_steps": 90, "min_ratio": 0.1},
        ),
        (
            "lr_schedule: linear, decay: 0.2, min_lr_ratio: 0",
            WarmupStableDecay,
            {"warmup_steps": 1, "decay_steps": 20, "min_ratio": 0.0},
        ),
    ],
)
def test_schedules_are_mapped(text: str, kind: Any, values: dict[str, Any]) -> None:
    mapped = read(f"trainer: {{num_train_steps: 100}}\noptimizer: {{{text}}}")
    schedule = graph_of(mapped).schedule
    assert schedule.__fn_or_cls__ is kind
    assert {name: getattr(schedule, name) for name in values} == values
    assert len(mapped.unmapped) == 1


def test_muon_is_mapped_with_both_rates() -> None:
    mapped = read("""
        optimizer: {type: muon, learning_rate: 0.02, adam_lr: 4e-4, momentum: 0.9, nesterov: false,
                    backend_steps: 6, weight_decay: 0.01, beta1: 0.8, lr_schedule: inv}
    """)
    cfg = graph_of(mapped)
    assert cfg.optimizer.__fn_or_cls__ is Muon
    optimizer = cfg.optimizer
    assert (optimizer.lr, cfg.groups.lr_scale) == (4e-4, pytest.approx(50.0))
    assert (optimizer.momentum, optimizer.nesterov, optimizer.ns_steps) == (0.9, False, 6)
    assert (optimizer.weight_decay, optimizer.betas) == (0.01, (0.8, 0.95))
    assert optimizer.adjust_lr_fn == "original"
    assert len(mapped.unmapped) == 1
    rescaled = graph_of(read("optimizer: {type: muon, use_kimi_scaling: true}")).optimizer
    assert bind(rescaled).adjust_lr_fn == "match_rms_adamw"


@pytest.mark.parametrize(
    ("text", "minima", "marks"),
    [
        # The last step of each cycle, and values at some steps, counted from 1.
        (
            "warmup: 0.0, decay: 0.1, cycles: [30, 70], lr_schedule: cosine",
            [30, 70, 100],
            {1: 1.0, 27: 1.0, 30: 0.1, 31: 1.0, 66: 1.0, 68: 0.55, 70: 0.1, 100: 0.1},
        ),
        (
            "warmup: 5, cycles: 2, lr_schedule: linear, min_lr_ratio: 0.2",
            [50, 100],
            {1: 0.2, 5: 1.0, 50: 0.2, 75: 0.6, 100: 0.2},
        ),
        (
            "warmup: 0.2, rewarmup: 0.1, cycle_length: 0.5, lr_schedule: linear, min_lr_ratio: 0.2",
            [50, 100],
            {10: 1.0, 30: 0.6, 50: 0.2, 53: 0.68, 55: 1.0, 100: 0.2},
        ),
        (
            "warmup: 0, decay: 10, cycle_length: [30, 40], lr_schedule: inv",
            [30, 70, 100],
            {20: 1.0, 25: 1 / 5.5, 30: 0.1, 31: 1.0, 70: 0.1, 95: 1 / 5.5},
        ),
        ("warmup: 0, haps: [40], lr_schedule: linear", [40, 100], {40: 0.1, 70: 0.55}),
        ("warmup: 0.1, lr_schedule: inv", [100], {10: 1.0, 55: 1 / 5.5, 100: 0.1}),
        (
            "warmup: 0, lr_schedule: {type: inv_sqrt, timescale: 25}",
            [100],
            {25: 1.0, 50: 0.5**0.5, 100: 0.5},
        ),
        ("warmup: 0.1, lr_schedule: inv_sqrt", [100], {5: 0.5, 10: 1.0, 100: 1.0}),
        (
            "warmup: 10, decay: 0.2, lr_schedule: cosine, min_lr_ratio: 0",
            [100],
            {10: 1.0, 80: 1.0, 90: 0.5, 100: 0.0},
        ),
        ("warmup: 0, rewarmup: 1, cycles: 2, lr_schedule: constant", [50, 100], {1: 1.0, 60: 1.0}),
    ],
)
def test_cycles_and_shapes_are_mapped(
    text: str, minima: list[int], marks: dict[int, float]
) -> None:
    mapped = read(f"trainer: {{num_train_steps: 100}}\noptimizer: {{{text}}}")
    schedule = build(graph_of(mapped).schedule)
    assert isinstance(schedule, Phases) and schedule.ends == minima
    assert {step: schedule(step - 1) for step in marks} == pytest.approx(marks)
    assert len(mapped.unmapped) == 1
