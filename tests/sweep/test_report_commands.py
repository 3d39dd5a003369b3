"""What a report hands out: commands for the best points, and what won at each size."""

import json
import shlex
from pathlib import Path

import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import fingerprint
from fidgpt.sweep import pairs, plan, repeat
from fidgpt.sweep.report import markdown_text, read_report, write_report
from fidgpt.sweep.report.document import leaders_table, repeat_command, shortest_command

from .reported import Values, write_sweep

RATES = ["0.0001", "0.001", "0.01"]
BY_RATE = dict(zip(RATES, [3.4, 3.0, 3.2], strict=True))


def by_rate(values: Values) -> float:
    return BY_RATE[values["LearningRate"]]


def test_the_best_points_command_makes_its_config_again(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", {"LearningRate": RATES}, by_rate)
    best = read_report(sweep).best
    command = shortest_command(best)
    flags = command.split()[2:]
    cfg = compose([flag.removeprefix("--config=") for flag in flags], own_catalogue())
    assert fingerprint(cfg) == best.row["fingerprint"]
    (best.directory / "config.json").write_text("{}")  # as of another version of the code
    assert shortest_command(best).endswith("--config=config:debug --config=tag:LearningRate=0.001")


def test_the_two_best_can_be_repeated_beside_the_others(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, lambda v: by_rate(v) + float(v["WeightDecay"]))
    report = read_report(sweep)
    said = shlex.split(repeat_command(report) or "")
    assert said[2:] == [
        "--config=config:debug",
        "--zip=tag:LearningRate=0.001,0.001;tag:WeightDecay=0,0.1",
        "--repeat=seed:3",
        f"--run_dir={sweep}",
    ]
    made = plan(["config:debug", pairs(said[3].removeprefix("--zip=")), repeat("seed:3")])
    assert made.labels == ["LearningRate", "WeightDecay", "seed"]
    known = {report.records[group.members[0]].row["fingerprint"] for group in report.ranking[:2]}
    assert known < {point.fingerprint for point in made.points}


def test_where_both_were_repeated_or_say_different_things_there_is_no_such_command(
    tmp_path: Path,
) -> None:
    seeds = {"LearningRate": RATES, "seed": ["0", "1"]}
    assert repeat_command(read_report(write_sweep(tmp_path / "1", seeds, by_rate))) is None
    parts = {"ablate": ["all", "without use_gqa"]}
    ablated = write_sweep(tmp_path / "2", parts, lambda v: 3.0 + len(v["ablate"]))
    assert repeat_command(read_report(ablated)) is None


def test_the_best_at_each_size_is_told(tmp_path: Path) -> None:
    shifts = {"0": 0.0, "0.1": 0.3}
    seeds = {"LearningRate": RATES, "WeightDecay": [*shifts], "seed": ["0", "1"]}

    def loss(values: Values) -> float:
        turned = {"0.0001": 2.9} if values["WeightDecay"] == "0.1" else {}
        rate = (BY_RATE | turned)[values["LearningRate"]]
        return rate + shifts[values["WeightDecay"]] + 0.01 * int(values["seed"])

    report = read_report(write_sweep(tmp_path / "sweep", seeds, loss))
    head, rows = leaders_table(report, "WeightDecay")
    assert head == [
        "WeightDecay",
        "best",
        "validation/loss",
        "ahead of the next by",
        "more than noise",
    ]
    assert rows == [
        ["0", "LearningRate=0.001", "3.0050 ± 0.0071 (2)", "0.2", "yes"],
        ["0.1", "LearningRate=0.0001", "3.2050 ± 0.0071 (2)", "0.1", "yes"],
    ]
    assert "## Best at each WeightDecay" in markdown_text(report, "")
    one_axis = write_sweep(tmp_path / "one", {"LearningRate": RATES}, by_rate)
    assert not read_report(one_axis).leaders


def test_of_a_population_the_best_is_made_again_by_its_schedule(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    made = write_sweep(tmp_path / "made", {"LearningRate": RATES[:2]}, by_rate)
    _as_population(made)
    report = read_report(made)
    assert [column.label for column in report.columns] == ["LearningRate"]
    assert "--repeat" not in " ".join(report.verdict)
    written = write_report(report, with_page=False)
    first, second = written.command.splitlines()
    assert first == (
        "python train.py --config=config:debug --config=tag:LearningRate=0.0001 "
        "--run_dir=runs/best --allow_noop --until_step=20"
    )
    assert second == (
        "python train.py --config=tag:LearningRate=0.001 --resume=runs/best --allow_noop"
    )
    assert written.repeat is None
    text = (made / "report.md").read_text()
    assert written.command in text and "## Importance" not in text and "other seeds:" not in text


def _as_population(directory: Path) -> None:
    """Says of two points that the better one goes on from the other, after half of the steps."""
    rows = [json.loads(line) for line in (directory / "table.jsonl").read_text().splitlines()]
    lineage = []
    for at, row in enumerate(rows):
        row["values"] = {"member": str(at), **row["values"]}
        parent, step = (rows[0]["fingerprint"], 20) if at else (None, 0)
        one = {"fingerprint": row["fingerprint"], "member": at, "parent": parent, "step": step}
        lineage.append(one | {"directives": row["directives"], "values": {}})
    for name, kept in {"table.jsonl": rows, "lineage.jsonl": lineage}.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in kept))
