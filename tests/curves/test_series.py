"""Curves as numbers: where points lie, how they are smoothed, what is missing."""

import json
import math
from pathlib import Path

import pytest

from fidgpt.curves.drawing import short_number
from fidgpt.curves.series import Recorded, chosen_metrics, curve_of, read_runs
from fidgpt.train import RunError


def recorded(*losses: float, name: str = "one") -> Recorded:
    return Recorded(
        name,
        [
            {"step": step, "loss": loss, "tokens": 8 * step, "tokens_per_second": 4.0}
            for step, loss in enumerate(losses, start=1)
        ],
    )


def test_points_lie_over_steps_tokens_or_time() -> None:
    run = recorded(3.0, 2.0, 1.0)
    for over, x in {"step": [1, 2, 3], "tokens": [8, 16, 24], "time": [2.0, 4.0, 6.0]}.items():
        curve = curve_of(run, "loss", over=over, smooth=0)
        assert curve is not None
        assert (curve.x, curve.y, curve.smooth) == (x, [3.0, 2.0, 1.0], [3.0, 2.0, 1.0])


def test_smoothing_keeps_a_constant_and_calms_noise() -> None:
    flat = curve_of(recorded(*[2.0] * 50), "loss", over="step", smooth=10)
    assert flat is not None and flat.smooth == pytest.approx([2.0] * 50)
    noisy = curve_of(recorded(*[1.0, 3.0] * 500), "loss", over="step", smooth=50)
    assert noisy is not None
    assert noisy.smooth[0] == pytest.approx(1.0, abs=1e-3)  # it begins where the run does
    assert all(abs(value - 2.0) < 0.05 for value in noisy.smooth[-100:])


def test_what_is_measured_now_and_then_is_shown_point_by_point() -> None:
    run = recorded(*[2.0] * 10)
    for row in run.rows[4::5]:
        row["validation/loss"] = float(row["step"])
    curve = curve_of(run, "validation/loss", over="tokens", smooth=None)
    assert curve is not None and curve.is_sparse
    assert (curve.x, curve.smooth) == ([40, 80], [5.0, 10.0])


def test_a_beginning_can_be_left_out_and_what_is_no_number_has_no_point() -> None:
    run = recorded(9.0, math.nan, 2.0, 1.0, 1.7e308, 10**400, -math.inf)
    curve = curve_of(run, "loss", over="step", smooth=0, first_step=2)
    assert curve is not None and (curve.x, curve.y) == ([3, 4], [2.0, 1.0])
    assert curve.left_out == [2, 5, 6, 7]
    assert curve_of(run, "loss", over="step", first_step=5) is None
    assert curve_of(run, "accuracy", over="step") is None
    del run.rows[1]["tokens_per_second"]
    with pytest.raises(RunError, match=r"one cannot be drawn over time: .* tokens_per_second"):
        curve_of(run, "loss", over="time")


def test_metrics_are_asked_for_by_name_or_pattern() -> None:
    runs = [recorded(1.0), Recorded("two", [{"step": 1, "validation/loss": 2.0, "note": "a"}])]
    assert chosen_metrics(runs, []) == ["loss", "validation/loss", "tokens_per_second"]
    assert chosen_metrics(runs, ["*loss", "loss"]) == ["loss", "validation/loss"]
    with pytest.raises(RunError, match=r"no run has the metric los\. Did you mean loss\?"):
        chosen_metrics(runs, ["los"])


def test_a_run_is_called_what_tells_it_from_the_others(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for path in paths:
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    assert [run.name for run in read_runs(paths)] == ["a/run", "b/run"]
    assert [run.name for run in read_runs(paths[:1])] == ["run"]


def test_numbers_are_short() -> None:
    told = {3.15678: "3.157", 0.0: "0", 2.5e-5: "2.5e-05", 381_234.0: "381k", 1234.5: "1234"}
    assert {value: short_number(value) for value in told} == told
