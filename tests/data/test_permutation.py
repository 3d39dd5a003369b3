"""The keyed permutation: a bijection, well mixed, and the same for ever."""

import numpy as np
import pytest

from fidgpt.data.order import derive_key, permute


def whole(size: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    key = derive_key(seed, "data", epoch)
    return permute(np.arange(size, dtype=np.uint64), size=size, key=key)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 100, 255, 256, 257, 1000, 65_537])
def test_it_is_a_bijection_of_every_size(size: int) -> None:
    assert sorted(whole(size).tolist()) == list(range(size))


def test_a_single_position_goes_where_it_goes_in_company() -> None:
    size, key = 1000, derive_key(3, "data", 1)
    alone = [int(permute(np.array([n], dtype=np.uint64), size=size, key=key)[0]) for n in range(50)]
    assert alone == whole(size, seed=3, epoch=1)[:50].tolist()


def test_seed_purpose_and_epoch_each_change_the_order() -> None:
    keys = {derive_key(seed, word, epoch) for seed in (0, 1) for word in "ab" for epoch in (0, 1)}
    assert len(keys) == 8
    assert derive_key(1, "2") != derive_key(1, 2) != derive_key(12)
    assert (whole(1000) != whole(1000, seed=1)).mean() > 0.9
    assert (whole(1000) != whole(1000, epoch=1)).mean() > 0.9


def test_the_order_never_changes_between_versions() -> None:
    """A run that is resumed by a later version must read on in the same order."""
    assert whole(1000, seed=5)[:8].tolist() == [413, 284, 184, 333, 104, 708, 941, 557]


def test_neighbours_end_up_as_far_apart_as_chance_puts_them() -> None:
    """Two random numbers below n are n / 3 apart on average; 4 standard errors are allowed."""
    size = 20_000
    steps = np.abs(np.diff(whole(size).astype(np.int64)))
    assert abs(steps.mean() / size - 1 / 3) < 4 * np.sqrt(1 / 18 / size)


@pytest.mark.parametrize("size", [20, 100])
def test_every_place_is_equally_likely_over_the_keys(size: int) -> None:
    """Chi-square of where position 0 goes over 1,000 keys, against 5 standard deviations."""
    zero = np.zeros(1, dtype=np.uint64)
    places = [permute(zero, size=size, key=derive_key(0, n))[0] for n in range(1000)]
    counts = np.bincount(np.array(places, dtype=np.int64), minlength=size)
    expected = 1000 / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < (size - 1) + 5 * np.sqrt(2 * (size - 1))


def test_a_domain_beyond_32_bits_is_mixed_too() -> None:
    size = 10**15
    places = permute(np.arange(1000, dtype=np.uint64), size=size, key=derive_key(0))
    assert len(set(places.tolist())) == 1000
    assert places.max() < size
    assert 0.4 < places.mean() / size < 0.6
