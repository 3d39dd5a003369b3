"""Reports of sweeps: who won and whether it is noise, effects, importances, tables and mistakes."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fidgpt.graph import ConfigError, fingerprint, load
from fidgpt.sweep import axis
from fidgpt.sweep.report import csv_text, markdown_text, read_report, write_report
from fidgpt.sweep.report.document import differing
from fidgpt.sweep.report.statistics import is_log_spaced, warnings_of
from fidgpt.sweep.results import record_sweep

from .reported import Values, write_sweep

RATES = ["0.0001", "0.001", "0.01"]
BY_RATE = dict(zip(RATES, [3.4, 3.0, 3.2], strict=True))


def by_rate(values: Values) -> float:
    return BY_RATE[values["LearningRate"]]


def test_the_best_point_is_named_with_its_lead(tmp_path: Path) -> None:
    report = read_report(write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate))
    assert report.objective.name == "validation/loss"
    assert report.best.values == {"LearningRate": "0.001"}
    assert report.verdict[:2] == [
        "LearningRate=0.001 won, with validation/loss 3.0000.",
        "It is 0.2 ahead of LearningRate=0.01 (3.2000).",
    ]
    assert "ran once" in report.verdict[2] and "--repeat=seed:3" in report.verdict[2]


def test_more_may_be_better(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    report = read_report(sweep, objective="max:validation/loss")
    assert report.best.values == {"LearningRate": "0.0001"}
    best = report.best.best(report.objective)
    assert best is not None and best.step == 4 and best.value > 3.4  # it falls from its first value


@pytest.mark.parametrize(
    ("shifts", "gap", "words"),
    [
        ([0.0, 0.5, 1.0], 0.01, "more than repeated runs explain"),  # each seed shifts both alike
        ([0.0, 0.5, 1.0], 0.0, "Repeated runs differ as much"),
    ],
)
def test_noise_is_judged_by_seeds_in_pairs(
    tmp_path: Path, shifts: list[float], gap: float, words: str
) -> None:
    def loss(values: Values) -> float:
        at = int(values["seed"])
        wobble = 0.001 * (at - 1) if values["LearningRate"] == "0.01" else 0.0
        return 3 + shifts[at] + wobble + gap * (values["LearningRate"] == "0.01")

    axes = {"LearningRate": ["0.001", "0.01"], "seed": ["0", "1", "2"]}
    report = read_report(write_sweep(tmp_path / "sweep", axes, loss))
    assert [len(group.finals) for group in report.ranking] == [3, 3]
    assert report.ranking[0].mean == pytest.approx(3.5)
    assert report.ranking[0].spread == pytest.approx(0.5, abs=2e-3)
    assert "the mean of 3 runs" in report.verdict[0]
    assert words in report.verdict[2]


def test_a_lucky_seed_does_not_win(tmp_path: Path) -> None:
    finals = {("0.001", "0"): 3.0, ("0.001", "1"): 3.0, ("0.01", "0"): 2.9, ("0.01", "1"): 3.5}
    axes = {"LearningRate": ["0.001", "0.01"], "seed": ["0", "1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, lambda v: finals[v["LearningRate"], v["seed"]])
    report = read_report(sweep)
    assert report.best.values == {"LearningRate": "0.001", "seed": "0"}
    # Whoever calls no axis a repetition gets the best of all points.
    report = read_report(sweep, repeats=["LearningRate"])
    assert report.verdict[0].startswith("seed=0 won")


def test_effects_of_an_ablation_are_pairs_of_one_seed(tmp_path: Path) -> None:
    effects = {"all": 0.0, "without use_gqa": 0.1, "without use_qk_norm": -0.02}
    shifts = [0.0, 0.5, 1.0]
    report = read_report(
        write_sweep(
            tmp_path / "sweep",
            {"ablate": list(effects), "seed": ["0", "1", "2"]},
            lambda v: 3 + effects[v["ablate"]] * (1 + shifts[int(v["seed"])]) + int(v["seed"]),
        )
    )
    first, second = report.effects
    assert first.label == "without use_gqa"
    assert first.differences == pytest.approx((0.1, 0.15, 0.2))
    assert (first.difference, first.spread) == pytest.approx((0.15, 0.05))
    assert second.difference == pytest.approx(-0.03)
    assert "+0.15 ± 0.05 over 3 pairs" in markdown_text(report, "python train.py")


def test_importance_is_the_share_of_the_variance(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"], "seed": ["0", "1"]}
    sweep = write_sweep(
        tmp_path / "sweep", axes, lambda v: by_rate(v) + 0.1 * (v["WeightDecay"] == "0.1")
    )
    shares = {column.label: share for column, share in read_report(sweep).importances}
    # Of 12 points: 8 * (0.04 + 0.04 + 0) / 3 by the rate, 12 * 0.0025 by the decay, none by seeds.
    between, rest = 4 * 0.08, 12 * 0.0025
    expected = 1 - (rest / 9) / ((between + rest) / 11)
    assert shares["LearningRate"] == pytest.approx(expected)
    assert next(iter(shares)) == "LearningRate"
    assert shares["seed"] == 0.0


def test_an_axis_that_only_some_points_have_has_no_share(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "seed": ["0", "1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, by_rate)
    table = sweep / "table.jsonl"
    first, *rest = (json.loads(line) for line in table.read_text().splitlines())
    del first["values"]["seed"]
    table.write_text("".join(json.dumps(row) + "\n" for row in [first, *rest]))
    shares = {column.label: share for column, share in read_report(sweep).importances}
    assert shares["seed"] is None and shares["LearningRate"] is not None


@pytest.mark.parametrize(
    ("numbers", "is_log"),
    [
        ([1e-4, 3e-4, 1e-3], True),
        ([256, 512, 1024], True),
        ([64, 128, 192], False),
        ([0, 0.1, 0.2], False),
        ([0, 1, 10, 100], False),
        ([2, 4], False),
        ([1e-3, 1e-2], True),
    ],
)
def test_an_axis_is_logarithmic_where_its_values_are(numbers: list[float], is_log: bool) -> None:
    assert is_log_spaced(numbers) is is_log


def test_the_sheet_has_every_point_and_number(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "seed": ["0", "1"]}
    statuses = {1: "running", 4: "diverged", 5: "waiting"}
    sweep = write_sweep(tmp_path / "sweep", axes, by_rate, statuses=statuses)
    report = read_report(sweep)
    rows = list(csv.DictReader(io.StringIO(csv_text(report))))
    assert [row["status"] for row in rows] == [
        "finished", "running", "finished", "finished", "diverged", "waiting",
    ]  # fmt: skip
    assert [row["rank"] for row in rows] == ["2", "2", "1", "1", "", ""]
    assert [row["repeats"] for row in rows] == ["1", "1", "2", "2", "0", "0"]
    assert float(rows[0]["final validation/loss"]) == 3.4
    assert rows[1]["final validation/loss"] == "" and float(rows[1]["best validation/loss"]) > 3.4
    assert (rows[4]["last_words"], rows[5]["step"]) == ("step 20 diverged: loss is nan.", "0")
    text = markdown_text(report, "python train.py")
    places = [text.index(f"LearningRate={one} seed") for one in ("0.001", "0.0001", "0.01")]
    assert places == sorted(places)  # the best first, what is not finished last
    assert "running at 20/40" in text and "3.0000 ± 0 (2)" in text


def test_configs_differ_in_what_is_said_defaults_among_it(tmp_path: Path) -> None:
    axes = {"LearningRate": ["0.001"], "WeightDecay": ["0.1", "0"]}
    sweep = write_sweep(tmp_path / "sweep", axes, by_rate, statuses={1: "waiting"})
    records = read_report(sweep).records
    assert differing(records) == [{}, None]
    axes["LearningRate"] = RATES
    first, second, *_ = differing(read_report(write_sweep(tmp_path / "two", axes, by_rate)).records)
    assert first == {"optimizer.lr": "0.0001", "optimizer.weight_decay": "0.1"}
    assert second == {"optimizer.lr": "0.0001", "optimizer.weight_decay": "0.0"}


def _none(sweep: Path) -> Path:
    return sweep.parent / "sweeep"


def _empty(sweep: Path) -> Path:
    (sweep.parent / "other").mkdir()
    return sweep.parent


def _run(sweep: Path) -> Path:
    return next(path.parent for path in sweep.glob("*/config.json"))


def _damaged(sweep: Path) -> Path:
    (sweep / "table.jsonl").write_text('{"name": ')
    return sweep


def _unfinished(sweep: Path) -> Path:
    table = sweep / "table.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows = [row | {"status": "failed", "last_words": "no disk"} for row in rows]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sweep


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_none, r"holds no sweep.* Did you mean sweep\?"),
        (_empty, r"holds no sweep: there is no table.jsonl. There is sweep\."),
        (_run, r"holds no sweep.* It is a run of the sweep .*sweep\."),
        (_damaged, "table.jsonl holds no valid row"),
        (_unfinished, r"is finished yet: 3 failed\. LearningRate=0\.0001: no disk"),
    ],
)
def test_what_is_no_sweep_is_refused(
    tmp_path: Path, spoil: Callable[[Path], Path], message: str
) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    with pytest.raises(ConfigError, match=message):
        read_report(spoil(sweep))


def test_an_objective_that_nobody_measured_is_refused_with_those_near(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    with pytest.raises(ConfigError, match=r"has measured valid/loss. Did you mean validation/loss"):
        read_report(sweep, objective="valid/loss")
    with pytest.raises(ConfigError, match=r"no axis is called rate\. There is LearningRate\."):
        read_report(sweep, repeats=["rate"])


def test_without_plotly_there_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = read_report(write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate))
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "fidgpt\[report\]".*--nopage'):
        write_report(report)
    written = write_report(report, tmp_path / "new" / "told", with_page=False)
    assert [path.name for path in written.paths] == ["told.csv", "told.md"]
    assert written.command in written.paths[1].read_text()


def test_the_command_says_what_won_and_what_it_wrote(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    command = [sys.executable, "-m", "fidgpt.sweep", "report"]
    done = subprocess.run(
        [*command, str(sweep), "--nopage", "--objective=loss", f"--out={tmp_path}/told/"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "LearningRate=0.001 won, with loss" in done.stdout
    assert f"Written: {tmp_path}/told/report.csv, {tmp_path}/told/report.md" in done.stdout
    assert done.stderr == ""
    lost = subprocess.run(command, capture_output=True, text=True, check=False)
    assert lost.returncode == 2 and "name one sweep" in lost.stderr
    assert "Traceback" not in lost.stderr


def test_what_is_odd_about_a_sweep_is_said(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    for items in ([axis("set:seed=1,2")], [axis("set:seed=1"), axis("tag:LearningRate=1,2")]):
        record_sweep(sweep, items)
    assert warnings_of(sweep) == []
    record_sweep(sweep, ["set:seq_len=8", axis("set:seed=1,2")])
    with (sweep / "table.jsonl").open("a") as file:
        file.write("{}\n")
    damaged, several = warnings_of(sweep)
    assert "1 invalid row is left out" in damaged
    assert several.endswith(
        "config:base over seed; config:base over seed, LearningRate; set:seq_len=8 over seed"
    )


def test_configs_of_the_helper_are_what_they_say(tmp_path: Path) -> None:
    report = read_report(write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate))
    for record in report.records:
        text = (record.directory / "config.json").read_text()
        assert fingerprint(load(text)) == record.row["fingerprint"]
