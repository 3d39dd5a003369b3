"""Exact shares: every prefix in balance, found at once, from weights as they are written."""

import random

import numpy as np
import pytest

from fidgpt.data.mixture import Interleaving, exact_counts


def some_counts(*, number: int) -> list[int]:
    generator = random.Random(number)
    size = generator.choice([1, 2, 3, 4, 7, 12, 24])
    kinds = [0, 1, 2, 3, 5, 40, 1000]
    return [*(generator.choice([*kinds, generator.randrange(3000)]) for _ in range(size)), 1]


@pytest.mark.parametrize("number", range(30))
def test_no_prefix_is_a_whole_sequence_out_of_balance(number: int) -> None:
    counts = np.array(some_counts(number=number))
    size = 2 * int(counts.sum()) + 3
    sources, ranks = Interleaving(counts.tolist())(np.arange(size))
    had = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)
    # In whole numbers, so that "less than one" is not a matter of rounding.
    ahead = had * counts.sum() - np.arange(1, size + 1)[:, None] * counts
    assert np.abs(ahead).max() < counts.sum()
    assert (had[np.arange(size), sources] - 1 == ranks).all()


@pytest.mark.parametrize("number", range(5))
def test_any_place_is_found_without_those_before_it(number: int) -> None:
    counts = some_counts(number=number)
    order = Interleaving(counts)
    whole = order(np.arange(10_000))
    for place in random.Random(number).sample(range(10_000), 50):
        assert [int(x[0]) for x in order(np.array([place]))] == [int(x[place]) for x in whole]
        before = np.bincount(whole[0][:place], minlength=len(counts))
        assert order.before(place).tolist() == before.tolist()


def test_an_order_that_ends_is_the_beginning_of_one_that_does_not() -> None:
    for number in range(5):
        counts = some_counts(number=number)
        for length in (0, 1, 50, 9_000):
            cut, places = Interleaving(counts, length=length), np.arange(length)
            for found, whole in zip(cut(places), Interleaving(counts)(places), strict=True):
                assert found.tolist() == whole.tolist()
            assert cut.before(length).tolist() == Interleaving(counts).before(length).tolist()


def test_the_order_never_changes_between_versions() -> None:
    assert Interleaving([5, 3, 1])(np.arange(9))[0].tolist() == [0, 1, 0, 0, 1, 0, 1, 0, 2]


def test_a_far_place_costs_what_a_near_one_does() -> None:
    sources, ranks = Interleaving([3, 1])(np.array([4 * 10**15 + 1]))
    assert ranks[0] in (3 * 10**15 + 1, 10**15)
    assert sources[0] in (0, 1)


def test_weights_are_what_is_written() -> None:
    assert exact_counts({"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 7, "b": 2, "c": 1}
    assert exact_counts({"a": 3, "b": 0, "c": 1}) == {"a": 3, "b": 0, "c": 1}
    assert exact_counts({"a": 0.12345, "b": 0.87655}) == {"a": 2469, "b": 17531}
    assert exact_counts({"b": 1e-3, "a": 0.999}) == {"a": 999, "b": 1}


def test_weights_without_a_short_period_are_rounded_to_a_hundred_thousandth() -> None:
    weights = {"a": 2**0.5, "b": 3**0.5, "c": 5**0.5}
    counts = exact_counts(weights)
    assert sum(counts.values()) == 100_000
    for name, weight in weights.items():
        assert abs(counts[name] / 100_000 - weight / sum(weights.values())) < 1e-5


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "all zero"),
        ({"a": 0.0, "b": 0}, "all zero"),
        ({"a": -1.0, "b": 2}, "weight -1.0 of 'a' must be 0 or more"),
        ({"a": float("nan")}, "weight nan of 'a'"),
        ({"a": 1.0, "b": 1e-9}, "less than one sequence in 100,000"),
    ],
)
def test_weights_that_are_no_shares_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_counts(weights)
