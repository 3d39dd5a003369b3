"""Schedules against their closed forms, step by step."""

import math
from functools import partial

import pytest

from fidgpt.optim import Constant, WarmupCosine, WarmupStableDecay, fraction, steps_for_tokens


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
