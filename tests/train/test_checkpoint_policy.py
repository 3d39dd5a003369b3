"""Which steps are saved and which stay, against lists worked out by hand."""

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.train import Checkpoints, EveryMinutes, KeepBest, KeepEvery
from fidgpt.train.checkpoints import retention as policy
from fidgpt.train.checkpoints.manifest import find, read_manifest
from fidgpt.train.checkpoints.retention import BEST, PERMANENT, REGULAR, TEMPORARY, Saved, staying


class Clock:
    """Tells the seconds that it was set to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def run(
    checkpoints: Checkpoints,
    path: Path,
    num_steps: int,
    *,
    rows: Mapping[int, Mapping[str, Any]] | None = None,
    clock: Clock | None = None,
    begin: int = 0,
) -> list[int]:
    """Saves as a run does; returns the steps that stay."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(begin + 1, num_steps + 1):
        if clock is not None:
            clock.seconds = 60.0 * step
        row = (rows or {}).get(step, {})
        reasons = checkpoints.due(step, num_steps=num_steps, directory=path, row=row)
        if reasons:
            parts = {"model": model, "optimizer": optimizer, "state": {}}
            checkpoints.save(path, step=step, reasons=reasons, row=row, **parts)
    return [*find(path)]


@pytest.mark.parametrize(
    ("every", "keep_last", "stay"), [(None, 1, [10]), (3, 2, [9, 10]), (4, 9, [4, 8, 10])]
)
def test_the_last_few_stay(every: int | None, keep_last: int, stay: list[int], tmp_path: Path):
    assert run(Checkpoints(every=every, keep_last=keep_last), tmp_path, 10) == stay


def test_dense_at_first_and_sparse_later_for_good(tmp_path: Path) -> None:
    keep = [KeepEvery(every=2, until=6), KeepEvery(every=5, until=15), KeepEvery(every=10)]
    planned = [s for s in range(41) if policy.is_permanent(s, keep)]
    assert planned == [2, 4, 6, 10, 15, 20, 30, 40]
    checkpoints = Checkpoints(every=7, keep_last=1, keep=keep)
    assert run(checkpoints, tmp_path, 29) == [2, 4, 6, 10, 15, 20, 29]


def test_after_the_last_of_them_nothing_more_is_kept() -> None:
    keep = [KeepEvery(every=2, until=5)]
    assert [s for s in range(20) if policy.is_permanent(s, keep)] == [2, 4]


def test_saved_by_time_the_one_before_goes(tmp_path: Path) -> None:
    stay = []
    for end in (4, 8, 11, 14, 25):  # a step takes a minute
        clock = Clock()
        timed = Checkpoints(every=10, keep_last=2, temporary=EveryMinutes(3.0, clock=clock))
        stay.append(run(timed, tmp_path / str(end), end, clock=clock))
    # The last step is a regular one; what was saved by time is gone then.
    assert stay == [[4], [8], [10, 11], [10, 14], [20, 25]]


def test_of_those_saved_by_time_only_the_newest_of_all_stays() -> None:
    saved = [Saved(3, [TEMPORARY]), Saved(5), Saved(6, [TEMPORARY]), Saved(9, [TEMPORARY])]
    assert staying(saved, keep_last=1, best=None) == {5, 9}
    assert staying([*saved, Saved(10)], keep_last=1, best=None) == {10}
    assert staying([*saved, Saved(10)], keep_last=2, best=None) == {5, 10}


def test_time_counts_from_the_last_checkpoint_of_any_kind(tmp_path: Path) -> None:
    clock = Clock()
    checkpoints = Checkpoints(every=4, keep_last=9, temporary=EveryMinutes(3.0, clock=clock))
    model = nn.Linear(1, 1)
    optimizer, due = torch.optim.SGD(model.parameters()), {}
    for step in range(1, 13):
        clock.seconds = 60.0 * step
        due[step] = checkpoints.due(step, num_steps=99)
        if due[step]:
            checkpoints.save(tmp_path, step=step, model=model, optimizer=optimizer, state={})
    assert {step: list(why) for step, why in due.items() if why} == {
        3: [TEMPORARY],
        4: [REGULAR],
        7: [TEMPORARY],
        8: [REGULAR],
        11: [TEMPORARY],
        12: [REGULAR],
    }


def test_the_main_process_says_whether_it_is_time() -> None:
    clock = Clock()
    checkpoints = Checkpoints(every=9, keep_last=1, temporary=EveryMinutes(1.0, clock=clock))
    assert checkpoints.due(1, num_steps=9, agree=lambda _: True) == [TEMPORARY]
    clock.seconds = 100.0
    assert checkpoints.due(1, num_steps=9, agree=lambda _: False) == []


LOSSES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 1.0, 10: 1.5, 12: 1.2}
ROWS = {step: {"validation/loss": loss} for step, loss in LOSSES.items()}


def test_a_best_by_what_nothing_measures_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = Checkpoints(every=5, keep_last=1, best=KeepBest("validation/los"))
    for row in ({"loss": 1.0}, {"validation/loss": 2.0}, {"validation/loss": 1.0}):
        assert not checkpoints.due(1, num_steps=9, row=row)
    assert capsys.readouterr().err == (
        "warning: no best checkpoint is kept: nothing measures validation/los; "
        "validation measures validation/loss.\n"
    )


def test_the_best_stays_besides_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(every=5, keep_last=1, best=KeepBest("validation/loss"))
    assert run(checkpoints, tmp_path, 7, rows=ROWS) == [4, 7]
    assert run(checkpoints, tmp_path, 12, rows=ROWS, begin=7) == [8, 12]
    notes = read_manifest(find(tmp_path)[8])
    assert (notes["reasons"], notes["metrics"]) == ([BEST], {"validation/loss": 1.0})


def test_better_may_be_more(tmp_path: Path) -> None:
    best = KeepBest("validation/loss", better=operator.gt)
    assert run(Checkpoints(every=5, keep_last=1, best=best), tmp_path, 12, rows=ROWS) == [2, 12]


def test_no_number_is_never_the_best() -> None:
    saved = [Saved(1, [REGULAR], {"loss": 2.0}), Saved(2, [BEST], {"loss": float("nan")})]
    assert policy.best_of(saved, KeepBest("loss")) == saved[0]
    assert policy.best_of([Saved(1)], KeepBest("loss")) is None


def test_a_permanent_one_stays_when_the_config_forgets_it() -> None:
    saved = [Saved(1, [PERMANENT]), Saved(2), Saved(3)]
    assert staying(saved, keep_last=1, best=None) == {1, 3}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepEvery(every=0), "every=0 must be"),
        (lambda: KeepEvery(every=1, until=0), "until=0 must be"),
        (lambda: KeepEvery(every=3, until=2), "every=3 and until=2 keep nothing"),
        (lambda: EveryMinutes(0.0), r"minutes=0.0 must be"),
        (lambda: keeping(KeepEvery(every=1), KeepEvery(every=2, until=9)), r"keep\[0\] ends at"),
        (
            lambda: keeping(KeepEvery(every=1, until=9), KeepEvery(every=2, until=9)),
            r"keep\[1\] at until=9: each must end later",
        ),
    ],
)
def test_numbers_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def keeping(*keep: KeepEvery) -> Checkpoints:
    return Checkpoints(every=1, keep_last=1, keep=keep)
