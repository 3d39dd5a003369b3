"""Which steps are left out: outliers against a window, and those that are no numbers."""

import random
import statistics

import pytest

from fidgpt.train import Decision, Guard, RollBack, SkipDiverged, SkipOutliers, Stateful

APPLY, SKIP = Decision.APPLY, Decision.SKIP


def numbers(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Losses that fall and gradient norms that waver, with a spike here and there."""
    drawn = random.Random(seed)
    made = []
    for step in range(count):
        spike = 10 if drawn.random() < 0.1 else 0
        made.append((5 - step / count + drawn.gauss(0, 0.1) + spike, abs(drawn.gauss(1, 0.2))))
    return made


def judged(guard: Guard, seen: list[tuple[float, float]]) -> list[Decision]:
    return [guard(loss=loss, grad_norm=norm) for loss, norm in seen]


@pytest.mark.parametrize(("window", "num_deviations"), [(2, 1.0), (8, 2.0), (16, 6.0)])
def test_a_step_is_left_out_if_it_exceeds_mean_and_deviations(
    window: int, num_deviations: float
) -> None:
    seen = numbers(200)
    expected = []
    for step in range(len(seen)):
        before = seen[max(0, step - window) : step]
        outlier = len(before) >= max(2, window // 2) and any(
            now > statistics.fmean(past) + num_deviations * statistics.stdev(past)
            for now, past in zip(seen[step], zip(*before, strict=True), strict=True)
        )
        expected.append(SKIP if outlier else APPLY)
    found = judged(SkipOutliers(window=window, num_deviations=num_deviations), seen)
    assert found == expected
    assert {*found} == {APPLY, SKIP} or num_deviations == 6


def test_a_norm_alone_is_enough_and_what_is_small_is_welcome() -> None:
    calm = [(5.0 + 0.01 * (step % 2), 1.0 + 0.01 * (step % 2)) for step in range(64)]
    for last, verdict in [((5.0, 9.0), SKIP), ((9.0, 1.0), SKIP), ((0.1, 0.01), APPLY)]:
        guard = SkipOutliers(window=64)
        assert {*judged(guard, calm)} == {APPLY}
        assert guard(loss=last[0], grad_norm=last[1]) is verdict


def test_a_loss_that_rose_for_good_is_got_used_to() -> None:
    guard = SkipOutliers(window=8, num_deviations=2.0)
    low = [(1.0 + 0.01 * (step % 2), 1.0) for step in range(8)]
    found = judged(guard, low + [(5.0 + 0.01 * (step % 2), 1.0) for step in range(8)])
    assert found[8] is SKIP and found[-1] is APPLY


@pytest.mark.parametrize("stop", range(0, 40, 7))
def test_a_window_goes_on_as_if_nobody_had_stopped_it(stop: int) -> None:
    seen = numbers(40, seed=3)
    whole = SkipOutliers(window=6, num_deviations=1.5)
    expected = judged(whole, seen)
    before, after = (SkipOutliers(window=6, num_deviations=1.5) for _ in range(2))
    first = judged(before, seen[:stop])
    assert isinstance(after, Stateful)
    after.load_state_dict(before.state_dict())
    assert first + judged(after, seen[stop:]) == expected
    assert after.state_dict() == whole.state_dict()


def test_so_many_in_a_row_are_left_out_and_no_more() -> None:
    policy = SkipDiverged(most=2)
    told = [policy(is_finite=finite) for finite in (True, False, False, True, False, False)]
    assert told == [APPLY, SKIP, SKIP, APPLY, SKIP, SKIP]
    other = SkipDiverged(most=2)
    other.load_state_dict(policy.state_dict())
    assert other(is_finite=False) is Decision.ABORT


def test_a_run_goes_back_so_often_and_reads_on_after_the_batch_that_did_harm() -> None:
    policy = RollBack(most=2, skip_batches=5)
    assert policy(is_finite=True) is APPLY
    for step, to, shift in [(40, 30, 15), (33, 30, 23)]:
        harmful = step - 1 + policy.shift
        assert policy(is_finite=False) is Decision.ROLL_BACK
        policy.rolled_back(step=step, to=to)
        assert policy.shift == shift
        assert to + policy.shift == harmful + 1 + policy.skip_batches  # of step `to` + 1
    other = RollBack(most=2)
    other.load_state_dict(policy.state_dict())
    assert other(is_finite=False) is Decision.ABORT


def test_numbers_out_of_range_are_refused() -> None:
    wrong = [
        (lambda: SkipOutliers(window=1), "window=1"),
        (lambda: SkipOutliers(window=10**20), "window=1(0+) must be at most 1000000"),
        (lambda: SkipOutliers(num_deviations=-1.0), "num_deviations=-1"),
        (lambda: SkipDiverged(most=0), "most=0"),
        (lambda: RollBack(most=0), "most=0"),
        (lambda: RollBack(skip_batches=-1), "skip_batches=-1"),
    ]
    for make, words in wrong:
        with pytest.raises(ValueError, match=words):
            make()
