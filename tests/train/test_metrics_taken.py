"""The metrics of a run whose file, or whole folder, is taken away while it writes them."""

import os
from pathlib import Path

import pytest
from run_facts import FACTS, metrics_row

from fidgpt.train import JSONLines, RunDirectory, RunError
from fidgpt.train.trackers.background import Trackers
from fidgpt.train.trackers.trackers import read_rows


def edited(path: Path) -> None:
    """As an editor does that writes another file, and gives it the name."""
    other = path.with_name("edited")
    other.write_bytes(path.read_bytes() + b"noted\n")
    other.replace(path)


@pytest.mark.parametrize("takes", [Path.unlink, lambda path: path.replace(f"{path}.1"), edited])
def test_metrics_that_are_taken_away_during_the_run_are_written_anew(tmp_path, capsys, takes):
    path = tmp_path / "metrics.jsonl"
    with Trackers([JSONLines()]) as trackers:
        trackers.start(RunDirectory(tmp_path, texts={}), FACTS, step=0)
        trackers.log(metrics_row(1))
        takes(path)
        trackers.log(metrics_row(2))
        trackers.log(metrics_row(3))
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]
    assert capsys.readouterr().err.count("removed or replaced") == 1


def test_metrics_that_are_cut_during_the_run_go_on_with_whole_rows(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    with Trackers([JSONLines()]) as trackers:
        trackers.start(RunDirectory(tmp_path, texts={}), FACTS, step=0)
        trackers.log(metrics_row(1))
        path.write_bytes(b"")
        trackers.log(metrics_row(2))
        trackers.log(metrics_row(3))
        os.truncate(path, path.stat().st_size - 5)
        trackers.log(metrics_row(4))
        with path.open("a") as file:
            file.write("noted")
        trackers.log(metrics_row(5))
    assert [row["step"] for row in read_rows(path)] == [2, 4, 5]
    assert path.read_bytes().count(b"\n") == 5
    told = capsys.readouterr().err
    assert [f"rows before step {step} are lost" in told for step in range(6)] == [
        step in (2, 4) for step in range(6)
    ]


def test_metrics_of_a_folder_that_is_gone_are_not_written_anew(tmp_path):
    run = RunDirectory(tmp_path / "run", texts={})
    run.create()
    with Trackers([JSONLines()]) as trackers:
        trackers.start(run, FACTS, step=0)
        trackers.log(metrics_row(1))
        run.path.rename(tmp_path / "moved")
        trackers.log(metrics_row(2))
        run.path.mkdir()
        trackers.log(metrics_row(3))
    assert [*run.path.iterdir()] == []
    assert [row["step"] for row in read_rows(tmp_path / "moved/metrics.jsonl")] == [1, 2, 3]


def test_metrics_that_cannot_be_written_anew_end_the_run(tmp_path):
    with Trackers([JSONLines()]) as trackers:
        trackers.start(RunDirectory(tmp_path, texts={}), FACTS, step=0)
        trackers.log(metrics_row(1))
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(RunError, match=r"metrics.jsonl cannot be written \(Is a directory\)"):
            trackers.log(metrics_row(2))
