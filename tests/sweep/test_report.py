"""Reports of sweeps: winners and noise, effects, importances, tables, commands and mistakes."""

import io
import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from forked import Python
from rich.console import Console

from fidgpt.data import DataError
from fidgpt.graph import ConfigError, fingerprint, load
from fidgpt.sweep import pairs, plan, read_results, repeat
from fidgpt.sweep.report import read_report, write_page
from fidgpt.sweep.report.document import (
    commands,
    effects_table,
    extensions,
    importance_table,
    leader_tables,
    repeat_command,
    scores_table,
)

from .reported import Values, write_sweep

pytestmark = pytest.mark.slow

RATES = ["0.0001", "0.001", "0.01"]
BY_RATE = dict(zip(RATES, [3.4, 3.0, 3.2], strict=True))


def by_rate(values: Values) -> float:
    return BY_RATE[values["LearningRate"]]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of three learning rates."""
    return write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)


def rows_of(sweep: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sweep / "table.jsonl").read_text().splitlines()]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_scores_of_other_seeds_have_mean_and_deviation(tmp_path: Path) -> None:
    sweep = write_sweep(
        tmp_path / "sweep", {"seed": ["0", "1", "2"]}, lambda values: 3 + int(values["seed"]) / 2
    )
    rows = rows_of(sweep)
    for row in rows:  # what a run measures of itself is no score
        own = {"seconds/forward": 0.1, "goodput/saving": 0.2}
        row["metrics"] |= own
        path = sweep / row["directory"] / "metrics.jsonl"
        steps = [json.loads(line) | own for line in path.read_text().splitlines()]
        write_rows(path, steps)
    write_rows(sweep / "table.jsonl", rows)
    table = scores_table(read_report(sweep))
    assert table[0] == ["score", "mean", "sigma", "runs"]
    assert ["validation/loss", "3.5000", "0.5", "3"] in table[1]
    assert {row[0].partition("/")[0] for row in table[1]} == {"validation"}


def test_the_best_point_is_named_with_its_lead(sweep: Path) -> None:
    report = read_report(sweep)
    assert report.objective.name == "validation/loss"
    assert report.best.values == {"LearningRate": "0.001"}
    assert report.verdict == [
        "LearningRate=0.001 won, with validation/loss 3.0000.",
        "It is 0.2 ahead of LearningRate=0.01 (3.2000).",
        "Each of them ran once, so that may be noise: run them with other seeds, by "
        "--repeat=seed:3.",
    ]
    for record in report.records:  # the helper wrote what it claims
        text = (record.directory / "config.json").read_text()
        assert fingerprint(load(text)) == record.row["fingerprint"]
    report = read_report(sweep, objective="max:validation/loss")
    assert report.best.values == {"LearningRate": "0.0001"}
    value, step = report.best.best or (0, 0)
    assert step == 4 and value > 3.4  # it falls from its first value


@pytest.mark.parametrize(
    ("gap", "words"),
    [(0.01, "more than repeated runs explain"), (0.0, "Repeated runs differ as much")],
)
def test_noise_is_judged_by_pairs_of_seeds(tmp_path: Path, gap: float, words: str) -> None:
    def loss(values: Values) -> float:
        at = int(values["seed"])
        other = (0.001 * (at - 1) + gap) * (values["LearningRate"] == "0.01")
        return 3 + [0.0, 0.5, 1.0][at] + other  # each seed shifts both alike

    axes = {"LearningRate": ["0.001", "0.01"], "seed": ["0", "1", "2"]}
    report = read_report(write_sweep(tmp_path / "sweep", axes, loss))
    assert [len(group.finals) for group in report.ranking] == [3, 3]
    assert report.ranking[0].mean == pytest.approx(3.5)
    assert report.ranking[0].spread == pytest.approx(0.5, abs=2e-3)
    assert "the mean of 3 runs" in report.verdict[0] and words in report.verdict[2]


def test_a_lucky_seed_does_not_win(tmp_path: Path) -> None:
    finals = {("0.001", "0"): 3.0, ("0.001", "1"): 3.0, ("0.01", "0"): 2.9, ("0.01", "1"): 3.5}
    axes = {"LearningRate": ["0.001", "0.01"], "seed": ["0", "1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, lambda v: finals[v["LearningRate"], v["seed"]])
    assert read_report(sweep).best.values == {"LearningRate": "0.001", "seed": "0"}
    shown = io.StringIO()
    Console(file=shown, width=200).print(read_results(sweep))
    assert shown.getvalue().endswith(
        "best: LearningRate=0.001, validation/loss 3.0000, the mean of 2 runs\n"
    )
    # If the seeds are not what repeats a run, the best point wins.
    assert read_report(sweep, repeats=["LearningRate"]).verdict[0].startswith("seed=0 won")


def test_effects_of_an_ablation_compare_runs_of_one_seed(tmp_path: Path) -> None:
    effects = {"all": 0.0, "without use_gqa": 0.1, "without use_qk_norm": -0.02}

    def loss(values: Values) -> float:
        seed = int(values["seed"])
        return 3 + effects[values["ablate"]] * (1 + 0.5 * seed) + seed

    axes = {"ablate": list(effects), "seed": ["0", "1", "2"]}
    report = read_report(write_sweep(tmp_path / "sweep", axes, loss))
    first, second = report.effects
    assert first.label == "without use_gqa"
    assert first.differences == pytest.approx([0.1, 0.15, 0.2])
    assert (first.difference, first.spread) == pytest.approx((0.15, 0.05))
    assert second.difference == pytest.approx(-0.03)
    assert effects_table(report) == (
        ["", "validation/loss", "difference to all"],
        [
            ["without use_gqa", "4.1500", "+0.15 ± 0.05 over 3 pairs"],
            ["without use_qk_norm", "3.9700", "-0.03 ± 0.01 over 3 pairs"],
        ],
    )
    assert repeat_command(report) is None


def shares_of(sweep: Path) -> dict[str, float | None]:
    return {one.label: one.share for one in read_report(sweep).importances}


def test_importance_is_the_share_of_the_variance(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"], "seed": ["0", "1"]}
    sweep = write_sweep(
        tmp_path / "sweep", axes, lambda v: by_rate(v) + 0.1 * (v["WeightDecay"] == "0.1")
    )
    shares = shares_of(sweep)
    between, rest = 4 * 0.08, 12 * 0.0025  # squares of the 12 points by their rate and decay
    assert shares["LearningRate"] == pytest.approx(between / (between + rest))
    assert shares["WeightDecay"] == pytest.approx(rest / (between + rest))
    assert list(shares) == ["LearningRate", "WeightDecay", "seed"]
    assert shares["seed"] == 0.0
    first, *others = rows_of(sweep)
    del first["values"]["seed"]  # as of an earlier sweep without this axis
    write_rows(sweep / "table.jsonl", [first, *others])
    shares = shares_of(sweep)
    assert shares["seed"] is None and shares["LearningRate"] is not None


def test_an_axis_that_is_better_in_all_pairs_matters(tmp_path: Path) -> None:
    """However small its effect, and however much that depends on the other axes."""
    gaps = {"0.0001": 0.001, "0.001": 0.002, "0.01": 0.009}
    axes = {"LearningRate": list(gaps), "WeightDecay": ["0", "0.1"]}
    sweep = write_sweep(
        tmp_path / "sweep",
        axes,
        lambda v: by_rate(v) - gaps[v["LearningRate"]] * (v["WeightDecay"] == "0.1"),
    )
    assert importance_table(read_report(sweep))[1] == [
        ["LearningRate", "100%"],
        ["WeightDecay", "<1%"],
    ]


def test_importance_of_two_axes_is_what_they_explain_together(tmp_path: Path) -> None:
    """Here the best rate is another one at each decay, so that neither matters alone."""

    def loss(values: Values) -> float:
        is_off = (values["LearningRate"] == "0.001") == (values["WeightDecay"] == "0")
        return (
            3 + 0.4 * is_off + 2 * int(values["seed"]) + 0.01 * (values["LearningRate"] == "0.01")
        )

    axes = {"LearningRate": ["0.001", "0.01"], "WeightDecay": ["0", "0.1"], "seed": ["0", "1", "2"]}
    sweep = write_sweep(tmp_path / "sweep", axes, loss)
    shares = shares_of(sweep)
    assert list(shares) == ["LearningRate × WeightDecay", "LearningRate", "WeightDecay", "seed"]
    assert (shares["LearningRate × WeightDecay"] or 0) > 0.99
    assert shares["LearningRate"] == shares["WeightDecay"] == 0.0
    # The shift of a seed is large, and hides nothing of the others.
    assert (shares["seed"] or 0) > 0.95
    assert ["LearningRate × WeightDecay", "100%"] in importance_table(read_report(sweep))[1]
    # Once each, a pair of values and noise are the same.
    for row in (rows := rows_of(sweep)):
        row["status"] = "finished" if row["values"]["seed"] == "0" else "waiting"
    write_rows(sweep / "table.jsonl", rows)
    assert not any("×" in label for label in shares_of(sweep))


def test_a_directory_without_results_is_refused(sweep: Path) -> None:
    rows = [row | {"status": "failed", "last_words": "no disk"} for row in rows_of(sweep)]
    with pytest.raises(ConfigError, match=r"holds no sweep: there is no table.jsonl"):
        read_report(sweep.parent)
    write_rows(sweep / "table.jsonl", rows)
    message = r"yet: 3 failed\. LearningRate=0\.0001: no disk"
    with pytest.raises(ConfigError, match=message):
        read_report(sweep)


def test_unknown_names_show_the_nearest(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"has measured valid/loss. Did you mean validation/loss"):
        read_report(sweep, objective="valid/loss")
    with pytest.raises(ConfigError, match=r"no axis is called rate\. There is LearningRate\."):
        read_report(sweep, repeats=["rate"])
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(DataError, match=r'--nopage.*\n.*pip install "fidgpt\[report\]"'):
        write_page(read_report(sweep))


def test_the_command_prints_the_winner_and_its_files(sweep: Path, tmp_path: Path) -> None:
    def report(*flags: str) -> tuple[int, str, str]:
        out = tmp_path / "out"
        command = ("-m", "fidgpt.sweep", "report", *flags)
        process = Python(*command, output=tmp_path / "err", printed=out)
        return process.end(seconds=60), out.read_text(), process.output

    page = tmp_path / "new" / "page.html"
    status, out, err = report(str(sweep), "--objective=loss", f"--out={page}")
    assert (status, err) == (0, "") and "LearningRate=0.001 won, with loss" in out
    assert f"Written: {page}" in out and page.exists()
    assert "python train.py --config=config:debug --config=tag:LearningRate=0.001\n" in out
    status, out, _ = report(str(sweep), "--nopage")
    assert status == 0 and out.count("Written") == 1  # by the command before
    status, _, err = report()
    assert status == 2 and err.startswith("error: name one sweep")


def test_the_two_best_can_be_repeated_beside_the_others(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, lambda v: by_rate(v) + float(v["WeightDecay"]))
    report = read_report(sweep)
    words = shlex.split(repeat_command(report) or "")
    assert words[2:] == [
        "--config=config:debug",
        "--zip=tag:LearningRate=0.001,0.001;tag:WeightDecay=0,0.1",
        "--repeat=seed:3",
        f"--run_dir={sweep}",
    ]
    made = plan(["config:debug", pairs(words[3].removeprefix("--zip=")), repeat("seed:3")])
    known = {group.records[0].row["fingerprint"] for group in report.ranking[:2]}
    assert known < {point.fingerprint for point in made.points}
    seeds = {"LearningRate": RATES, "seed": ["0", "1"]}
    assert repeat_command(read_report(write_sweep(tmp_path / "seeds", seeds, by_rate))) is None


def test_an_axis_whose_best_value_is_at_its_end_is_extended(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1", "0.2"], "seed": ["0", "1"]}
    sweep = write_sweep(
        tmp_path / "sweep",
        axes,
        lambda v: float(v["WeightDecay"]) - float(v["LearningRate"]) + 0.01 * int(v["seed"]),
    )
    report = read_report(sweep)
    ((sentence, command),) = extensions(report)  # no decay follows 0
    assert sentence == "The best LearningRate, 0.01, is the last of its axis: extend it:"
    words = shlex.split(command)
    assert words[2:] == [
        "--config=config:debug",
        "--zip=tag:LearningRate=0.1,1;tag:WeightDecay=0,0",
        "--repeat=seed:2",
        f"--run_dir={sweep}",
    ]
    made = plan(["config:debug", pairs(words[3].removeprefix("--zip=")), repeat("seed:2")])
    assert [point.values for point in made.points][:2] == [
        {"LearningRate": "0.1", "WeightDecay": "0", "seed": seed} for seed in "01"
    ]
    assert commands(report)[1] == (sentence, command)
    # In the middle of an axis nothing is extended, nor on an axis of two values.
    assert not extensions(read_report(write_sweep(tmp_path / "a", axes, by_rate)))
    axes["LearningRate"] = RATES[:2]
    assert not extensions(read_report(write_sweep(tmp_path / "b", axes, by_rate)))


def test_the_best_at_each_size_is_shown(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"], "seed": ["0", "1"]}

    def loss(values: Values) -> float:
        other = {"0.0001": 2.9} if values["WeightDecay"] == "0.1" else {}
        rate = (BY_RATE | other)[values["LearningRate"]]
        return rate + 3 * float(values["WeightDecay"]) + 0.01 * int(values["seed"])

    report = read_report(write_sweep(tmp_path / "sweep", axes, loss))
    head, rows = leader_tables(report)["WeightDecay"]
    assert head == [
        *("WeightDecay", "best", "validation/loss", "ahead of the next by", "more than noise")
    ]
    assert rows == [
        ["0", "LearningRate=0.001", "3.0050 ± 0.0071 (2)", "0.2", "yes"],
        ["0.1", "LearningRate=0.0001", "3.2050 ± 0.0071 (2)", "0.1", "yes"],
    ]
