"""Schedules against closed forms."""

import math
from collections.abc import Callable
from functools import partial
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
    WarmupStableDecay,
    fraction,
    steps_for_tokens,
)


def test_warmup_is_linear_and_its_first_step_moves():
    for schedule in (
        WarmupCosine(num_steps=100, warmup_steps=10),
        WarmupStableDecay(num_steps=100, warmup_steps=10, decay_steps=20),
        Constant(warmup_steps=10),
    ):
        assert [schedule(step) for step in range(10)] == pytest.approx(
            [(step + 1) / 10 for step in range(10)]
        )


def test_cosine_is_half_a_cosine_between_peak_and_floor():
    schedule = WarmupCosine(num_steps=110, warmup_steps=10, min_ratio=0.2)
    for step in range(10, 110):
        done = (step - 9) / 100
        assert schedule(step) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi * done)) / 2)
    assert schedule(109) == pytest.approx(0.2)
    assert schedule(500) == pytest.approx(0.2)


def test_stable_decay_stays_and_falls_in_a_line():
    schedule = WarmupStableDecay(num_steps=100, warmup_steps=10, decay_steps=20, min_ratio=0.1)
    assert {schedule(step) for step in range(10, 80)} == {1.0}
    falls = [schedule(step) - schedule(step + 1) for step in range(79, 99)]
    assert falls == pytest.approx([0.9 / 20] * 20)
    assert schedule(99) == pytest.approx(0.1)


def test_no_warmup_starts_at_the_peak():
    assert WarmupStableDecay(num_steps=9, warmup_steps=0, decay_steps=3)(0) == 1.0
    assert Constant()(0) == 1.0
    with pytest.raises(ValueError, match="warmup_steps=-1 must be 0 or more steps"):
        Constant(warmup_steps=-1)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_steps": 10, "warmup_steps": 11}, "warmup_steps=11"),
        ({"num_steps": 0, "warmup_steps": 0}, "num_steps=0"),
        ({"num_steps": 10, "warmup_steps": -1}, "warmup_steps=-1"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_with_their_numbers(sizes, words):
    with pytest.raises(ValueError, match=words):
        WarmupCosine(**sizes)


def test_rise_and_fall_must_fit_into_the_run():
    with pytest.raises(ValueError, match="decay_steps=6"):
        WarmupStableDecay(num_steps=10, warmup_steps=5, decay_steps=6)


def test_a_fraction_of_a_run_is_at_least_one_step():
    assert fraction(of=1000, ratio=0.1) == 100
    assert fraction(of=3, ratio=0.1) == 1


@pytest.mark.parametrize("ratio", [-0.1, 1.5])
def test_a_floor_is_a_share_of_the_peak(ratio):
    for make in (WarmupCosine, partial(WarmupStableDecay, decay_steps=3)):
        with pytest.raises(ValueError, match=f"min_ratio={ratio} must be a share"):
            make(num_steps=10, warmup_steps=2, min_ratio=ratio)


def test_the_last_step_reads_what_is_left_of_the_tokens() -> None:
    steps = [steps_for_tokens(tokens=n, batch_size=4, seq_len=32) for n in (1, 128, 129, 12_800)]
    assert steps == [1, 1, 2, 100]
    for wrong in ("tokens", "batch_size", "seq_len"):
        with pytest.raises(ValueError, match=f"{wrong}=0"):
            steps_for_tokens(**{"tokens": 8, "batch_size": 1, "seq_len": 1, wrong: 0})


# What a run of 1,000 steps has at the end of the step of each number, counted from 1. The words,
# and what they mean, are those of the page on configuration of Levanter.
Curve = Callable[[int], float]


def cosine(done: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2


def linear(done: float, floor: float) -> float:
    return 1 - (1 - floor) * done


# Words, shape, and (first step, last step, curve over them).
Case = tuple[dict[str, Any], DecayShape, list[tuple[int, int, Curve]]]
CASES: dict[str, Case] = {
    "defaults": (
        {},
        CosineDecay(),
        [(1, 10, lambda t: t / 10), (11, 1000, lambda t: cosine((t - 10) / 990, 0.1))],
    ),
    "constant": ({"warmup": 0}, NoDecay(), [(1, 1000, lambda t: 1.0)]),
    "constant after a warm-up": (
        {"warmup": 0.5},
        NoDecay(),
        [(1, 500, lambda t: t / 500), (501, 1000, lambda t: 1.0)],
    ),
    "linear": (
        {"warmup": 50, "min_lr_ratio": 0.2},
        LinearDecay(),
        [(1, 50, lambda t: t / 50), (51, 1000, lambda t: linear((t - 50) / 950, 0.2))],
    ),
    "inv": (
        {"warmup": 0.0, "min_lr_ratio": 0.1},
        InverseDecay(),
        [(1, 1000, lambda t: 1 / (1 + 9 * t / 1000))],
    ),
    "inv_sqrt": (
        {"warmup": 0.1, "min_lr_ratio": 0.5},
        InverseSqrtDecay(timescale=200),
        [
            (1, 100, lambda t: t / 100),
            (101, 200, lambda t: 1.0),
            (201, 800, lambda t: math.sqrt(200 / t)),
            (801, 1000, lambda t: 0.5),
        ],
    ),
    "inv_sqrt, by the warm-up": (
        {"warmup": 0.1, "min_lr_ratio": 0.0},
        InverseSqrtDecay(timescale=None),
        [(1, 100, lambda t: t / 100), (101, 1000, lambda t: math.sqrt(100 / t))],
    ),
    "inv_sqrt, of 10,000 steps": (
        {"warmup": 0.1},
        InverseSqrtDecay(),
        [(1, 100, lambda t: t / 100), (101, 1000, lambda t: 1.0)],
    ),
    "polynomial": (
        {"warmup": 0, "min_lr_ratio": 0.0},
        PolynomialDecay(power=3.0),
        [(1, 1000, lambda t: ((1000 - t) / 1000) ** 3)],
    ),
    "trapezoid": (
        {"warmup": 0.1, "decay": 0.3, "min_lr_ratio": 0.0},
        LinearDecay(),
        [
            (1, 100, lambda t: t / 100),
            (101, 700, lambda t: 1.0),
            (701, 1000, lambda t: (1000 - t) / 300),
        ],
    ),
    "wsd": (
        {"warmup": 20, "decay": 200, "min_lr_ratio": 0.0},
        SqrtDecay(),
        [
            (1, 20, lambda t: t / 20),
            (21, 800, lambda t: 1.0),
            (801, 1000, lambda t: 1 - math.sqrt((t - 800) / 200)),
        ],
    ),
    "wsd-s, by minima": (
        {"warmup": 0.0, "decay": 0.1, "cycles": [300, 700]},
        CosineDecay(),
        [
            (1, 270, lambda t: 1.0),
            (271, 300, lambda t: cosine((t - 270) / 30, 0.1)),
            (301, 660, lambda t: 1.0),
            (661, 700, lambda t: cosine((t - 660) / 40, 0.1)),
            (701, 970, lambda t: 1.0),
            (971, 1000, lambda t: cosine((t - 970) / 30, 0.1)),
        ],
    ),
    "wsd-s, by lengths": (
        {"warmup": 0.0, "decay": 0.1, "cycle_length": [300, 400]},
        InverseDecay(),
        [
            (1, 270, lambda t: 1.0),
            (271, 300, lambda t: 1 / (1 + 9 * (t - 270) / 30)),
            (301, 660, lambda t: 1.0),
            (661, 700, lambda t: 1 / (1 + 9 * (t - 660) / 40)),
            (701, 970, lambda t: 1.0),
            (971, 1000, lambda t: 1 / (1 + 9 * (t - 970) / 30)),
        ],
    ),
    "cycles by number": (
        {"warmup": 50, "min_lr_ratio": 0.2, "cycles": 2},
        LinearDecay(),
        [
            (1, 50, lambda t: t / 50),
            (51, 500, lambda t: linear((t - 50) / 450, 0.2)),
            (501, 1000, lambda t: linear((t - 500) / 500, 0.2)),
        ],
    ),
    "cycles by length": (
        {"warmup": 50, "min_lr_ratio": 0.2, "cycle_length": 500},
        LinearDecay(),
        [
            (1, 50, lambda t: t / 50),
            (51, 500, lambda t: linear((t - 50) / 450, 0.2)),
            (501, 1000, lambda t: linear((t - 500) / 500, 0.2)),
        ],
    ),
    "cycles by a share of the run": (
        {"warmup": 0, "cycle_length": 0.25, "min_lr_ratio": 0.0},
        LinearDecay(),
        [
            (first + 1, first + 250, lambda t: linear(((t - 1) % 250 + 1) / 250, 0))
            for first in (0, 250, 500, 750)
        ],
    ),
    "re-warm-up, as fractions": (
        {"warmup": 0.2, "rewarmup": 0.05, "min_lr_ratio": 0.2, "cycles": 2},
        LinearDecay(),
        [
            (1, 100, lambda t: t / 100),
            (101, 500, lambda t: linear((t - 100) / 400, 0.2)),
            (501, 525, lambda t: 0.2 + 0.8 * (t - 500) / 25),
            (526, 1000, lambda t: linear((t - 525) / 475, 0.2)),
        ],
    ),
    "re-warm-up, in steps": (
        {"warmup": 10, "rewarmup": 40, "decay": 100, "min_lr_ratio": 0.0, "cycles": [600]},
        CosineDecay(),
        [
            (1, 10, lambda t: t / 10),
            (11, 500, lambda t: 1.0),
            (501, 600, lambda t: cosine((t - 500) / 100, 0)),
            (601, 640, lambda t: (t - 600) / 40),
            (641, 900, lambda t: 1.0),
            (901, 1000, lambda t: cosine((t - 900) / 100, 0)),
        ],
    ),
    "re-warm-up, from where the cycle ended": (
        {"warmup": 0, "rewarmup": 100, "cycles": 2, "min_lr_ratio": 0.1},
        InverseSqrtDecay(timescale=125),
        [
            (1, 125, lambda t: 1.0),
            (126, 500, lambda t: math.sqrt(125 / t)),
            (501, 600, lambda t: 0.5 + 0.5 * (t - 500) / 100),
            (601, 625, lambda t: 1.0),
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
        ({"cycles": 1}, [1000]),
        ({"cycles": 3}, [333, 666, 1000]),
        ({"cycles": []}, [1000]),
        ({"cycles": [300, 1000]}, [300, 1000]),
        ({"cycle_length": 300}, [300, 600, 1000]),
        ({"cycle_length": 1000}, [1000]),
        ({"cycle_length": 0.5}, [500, 1000]),
        ({"cycle_length": 1.0}, [1000]),
        ({"cycle_length": [100, 200]}, [100, 300, 1000]),
        ({"cycle_length": [100, 900]}, [100, 1000]),
    ],
)
def test_where_cycles_end(settings: dict[str, Any], ends: list[int]) -> None:
    assert Phases(num_steps=1000, shape=LinearDecay(), warmup=0, **settings).ends == ends


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cycles": 2, "cycle_length": 500}, "cycles=2 and cycle_length=500 cannot both be set"),
        ({"cycles": [700, 300]}, "one after the other"),
        ({"cycles": [1001]}, "up to num_steps=1000"),
        ({"cycles": [0, 500]}, "one after the other"),
        ({"cycles": 0}, "cycles=0 do not fit"),
        ({"cycles": 1001}, "cycles=1001 do not fit into num_steps=1000"),
        ({"cycle_length": 2000}, "2000 steps, which do not fit into num_steps=1000"),
        ({"cycle_length": [600, 600]}, "take 1200 of num_steps=1000"),
        ({"cycle_length": [600, 0]}, "1 or more steps"),
        ({"warmup": 1001}, "warmup=1001 does not fit into the 1000 steps from 1 to 1000"),
        ({"warmup": 0.5, "decay": 0.6}, "warmup=0.5 and decay=0.6 do not fit"),
        (
            {"rewarmup": 60, "decay": 50, "cycles": [900]},
            "rewarmup=60 and decay=50 do not fit into the 100 steps from 901 to 1000",
        ),
        ({"warmup": 1.5}, "warmup=1.5 is neither"),
        ({"decay": -0.1}, "decay=-0.1 is neither"),
        ({"warmup": math.inf}, "warmup=inf is neither"),
        ({"decay": math.nan}, "decay=nan is neither"),
        ({"cycle_length": math.inf}, "cycle_length=inf is neither"),
        ({"shape": InverseDecay(), "min_lr_ratio": 0.0}, "min_lr_ratio above 0"),
        ({"min_lr_ratio": 1.1}, "min_lr_ratio=1.1 must be a share"),
        ({"num_steps": 0}, "num_steps=0 must be at least 1"),
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


def test_decay_shapes_refuse_what_does_not_fall() -> None:
    with pytest.raises(ValueError, match="power=0"):
        PolynomialDecay(power=0.0)
    with pytest.raises(ValueError, match="timescale=0"):
        InverseSqrtDecay(timescale=0)


@pytest.mark.parametrize(
    ("schedule", "same"),
    [
        (
            WarmupCosine(num_steps=450, warmup_steps=45, min_ratio=0.1),
            Phases(num_steps=450, warmup=45, shape=CosineDecay()),
        ),
        (
            WarmupStableDecay(num_steps=450, warmup_steps=45, decay_steps=90, min_ratio=0.1),
            Phases(num_steps=450, warmup=0.1, decay=0.2, shape=LinearDecay()),
        ),
    ],
)
def test_bit_for_bit_the_schedules_that_have_a_name(schedule: Schedule, same: Schedule) -> None:
    assert [schedule(step) for step in range(500)] == [same(step) for step in range(500)]


def test_is_itself_a_schedule_of_anything() -> None:
    assert isinstance(Phases(num_steps=10, shape=SqrtDecay()), Schedule)
    assert isinstance(InverseSqrtDecay(), DecayShape)
