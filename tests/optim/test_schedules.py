"""Schedules against closed forms."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.optim import (
    Constant,
    CosineDecay,
    DecayShape,
    InverseDecay,
    InverseSqrtDecay,
    LinearDecay,
    NoDecay,
    Phases,
    PolynomialDecay,
    Schedule,
    SqrtDecay,
    WarmupCosine,
    fraction,
    steps_for_tokens,
)
from fidgpt.optim import WarmupStableDecay as WSD


def test_a_constant_rate_follows_its_warmup():
    rates = [Constant(warmup_steps=10)(step) for step in range(12)]
    assert rates == pytest.approx([(step + 1) / 10 for step in range(10)] + [1.0, 1.0])
    assert Constant()(0) == 1.0


def test_a_fraction_of_a_run_is_at_least_one_step():
    assert fraction(of=1000, ratio=0.1) == 100
    assert fraction(of=3, ratio=0.1) == 1


def test_the_last_step_reads_what_is_left_of_the_tokens() -> None:
    steps = [steps_for_tokens(tokens=n, batch_size=4, seq_len=32) for n in (1, 128, 129, 12_800)]
    assert steps == [1, 1, 2, 100]
    for wrong in ("tokens", "batch_size", "seq_len"):
        with pytest.raises(ValueError, match=f"{wrong}=0"):
            steps_for_tokens(**{"tokens": 8, "batch_size": 1, "seq_len": 1, wrong: 0})


# What a run of 1,000 steps has at the end of the step of each number, counted from 1. The words,
# and what they mean, are those of the page on configuration of Levanter.
Curve = Callable[[int], float]
Piece = tuple[int, int, Curve]


def cosine(done: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2


def linear(done: float, floor: float) -> float:
    return 1 - (1 - floor) * done


def inverse(done: float, floor: float) -> float:
    return 1 / (1 + (1 / floor - 1) * done)


def peak(t: float) -> float:
    return 1.0


def rise(steps: int) -> tuple[int, int, Curve]:
    return 1, steps, lambda t: t / steps


def fall(begin: int, end: int, curve: Callable[[float, float], float], floor: float = 0.0) -> Piece:
    return begin + 1, end, lambda t: curve((t - begin) / (end - begin), floor)


# Words, shape, and (first step, last step, curve over them).
Case = tuple[dict[str, Any], DecayShape, list[Piece]]
NO_MIN = {"min_lr_ratio": 0.0}
FIFTH = {"min_lr_ratio": 0.2}
CASES: dict[str, Case] = {
    "defaults": ({}, CosineDecay(), [rise(10), fall(10, 1000, cosine, 0.1)]),
    "constant after a warm-up": ({"warmup": 0.5}, NoDecay(), [rise(500), (501, 1000, peak)]),
    "linear": ({"warmup": 50} | FIFTH, LinearDecay(), [rise(50), fall(50, 1000, linear, 0.2)]),
    "inv": ({"warmup": 0.0, "min_lr_ratio": 0.1}, InverseDecay(), [fall(0, 1000, inverse, 0.1)]),
    "inv_sqrt": (
        {"warmup": 0.1, "min_lr_ratio": 0.5},
        InverseSqrtDecay(timescale=200),
        [
            rise(100),
            (101, 200, peak),
            (201, 800, lambda t: math.sqrt(200 / t)),
            (801, 1000, lambda t: 0.5),
        ],
    ),
    "polynomial": (
        {"warmup": 0} | NO_MIN,
        PolynomialDecay(power=3.0),
        [(1, 1000, lambda t: ((1000 - t) / 1000) ** 3)],
    ),
    "trapezoid": (
        {"warmup": 0.1, "decay": 0.3} | NO_MIN,
        LinearDecay(),
        [rise(100), (101, 700, peak), fall(700, 1000, linear)],
    ),
    "wsd": (
        {"warmup": 20, "decay": 200} | NO_MIN,
        SqrtDecay(),
        [rise(20), (21, 800, peak), (801, 1000, lambda t: 1 - math.sqrt((t - 800) / 200))],
    ),
    "wsd-s, by minima": (
        {"warmup": 0.0, "decay": 0.1, "cycles": [300, 700]},
        CosineDecay(),
        [
            (1, 270, peak),
            fall(270, 300, cosine, 0.1),
            (301, 660, peak),
            fall(660, 700, cosine, 0.1),
            (701, 970, peak),
            fall(970, 1000, cosine, 0.1),
        ],
    ),
    "cycles": (
        {"warmup": 50, "cycles": 2} | FIFTH,
        LinearDecay(),
        [rise(50), fall(50, 500, linear, 0.2), fall(500, 1000, linear, 0.2)],
    ),
    "re-warm-up, as a fraction": (
        {"warmup": 100, "rewarmup": 0.05, "cycles": [500]} | FIFTH,
        LinearDecay(),
        [
            rise(100),
            fall(100, 500, linear, 0.2),
            (501, 525, lambda t: 0.2 + 0.8 * (t - 500) / 25),
            fall(525, 1000, linear, 0.2),
        ],
    ),
    "re-warm-up, from where the cycle ended": (
        {"warmup": 0, "rewarmup": 100, "cycles": 2, "min_lr_ratio": 0.1},
        InverseSqrtDecay(timescale=125),
        [
            (1, 125, peak),
            (126, 500, lambda t: math.sqrt(125 / t)),
            (501, 600, lambda t: 0.5 + 0.5 * (t - 500) / 100),
            (601, 625, peak),
            (626, 1000, lambda t: math.sqrt(125 / (t - 500))),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_the_closed_form(name: str) -> None:
    words, shape, pieces = CASES[name]
    schedule = Phases(num_steps=1000, shape=shape, **words)
    assert [step for first, last, _ in pieces for step in range(first, last + 1)] == [
        *range(1, 1001)
    ]
    wrong = [
        (step, schedule(step - 1), curve(step))
        for first, last, curve in pieces
        for step in range(first, last + 1)
        if schedule(step - 1) != pytest.approx(curve(step), abs=1e-12)
    ]
    assert wrong == []
    assert schedule(5000) == schedule(999)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({}, [1000]),
        ({"cycles": 3}, [333, 666, 1000]),
        ({"cycles": [300, 1000]}, [300, 1000]),
        ({"cycle_length": 300}, [300, 600, 1000]),
        ({"cycle_length": 0.5}, [500, 1000]),
        ({"cycle_length": [100, 200]}, [100, 300, 1000]),
    ],
)
def test_where_cycles_end(settings: dict[str, Any], ends: list[int]) -> None:
    assert Phases(num_steps=1000, shape=LinearDecay(), warmup=0, **settings).ends == ends


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cycles": 2, "cycle_length": 500}, "cycles=2 and cycle_length=500 cannot both be set"),
        ({"cycle_length": 2000}, r"cycle_length=2000 makes cycles that end at the steps \[2000\]"),
        ({"cycle_length": [600, 600]}, r"steps \[600, 1200, 1000\], which must"),
        ({"cycles": 5000}, r"steps \[0, 0, 0, 0, 1, 1, \.\.\.\], which must"),
        ({"warmup": 0.5, "decay": 0.6}, "warmup=0.5 and decay=0.6 do not fit"),
        (
            {"rewarmup": 60, "decay": 50, "cycles": [900]},
            "rewarmup=60 and decay=50 do not fit into the 100 steps from 901 to 1000",
        ),
        ({"warmup": 1.5}, "warmup=1.5 is neither"),
        ({"shape": InverseDecay(), "min_lr_ratio": 0.0}, "min_lr_ratio above 0"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Phases(**{"num_steps": 1000, "shape": LinearDecay(), **settings})


def test_one_is_a_step_and_one_point_nought_is_everything() -> None:
    assert Phases(num_steps=100, warmup=1, shape=NoDecay())(0) == 1.0
    assert Phases(num_steps=100, warmup=1.0, shape=NoDecay())(0) == 0.01
    assert Phases(num_steps=5, warmup=0.01, shape=NoDecay())(0) == 1.0  # at least one step
    hundredths = Phases(num_steps=100, warmup=0.29, shape=NoDecay())  # 0.29 * 100 < 29
    assert hundredths(27) < 1.0 == hundredths(28)


def test_named_schedules_are_phases() -> None:
    cosine = WarmupCosine(num_steps=450, warmup_steps=45)
    trapezoid = WSD(num_steps=450, warmup_steps=45, decay_steps=90, min_ratio=0.1)
    for named, shape, decay in ((cosine, CosineDecay(), None), (trapezoid, LinearDecay(), 0.2)):
        same = Phases(num_steps=450, warmup=45, decay=decay, shape=shape)
        assert [named(step) for step in range(500)] == [same(step) for step in range(500)]
        assert isinstance(named, Schedule) and isinstance(shape, DecayShape)
    assert WSD(num_steps=9, warmup_steps=0, decay_steps=3)(0) == 1.0
