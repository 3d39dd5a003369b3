"""Searches whose process was killed at a bad moment, or whose files were cut, lose no trial."""

import os
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.trial import TrialState

from fidgpt.sweep import Job
from fidgpt.sweep.search import Search
from fidgpt.sweep.search.study import FILE, present

from .test_search import QUICK, RATE, Toys, run, study_of, toys

__all__ = ["toys"]  # a fixture


def search(folder: Path, count: int = 6) -> Search:
    return Search(*QUICK, RATE, sampler=f"random:{count}", objective="loss", directory=folder)


def names(folder: Path, count: int = 6) -> list[str]:
    """What an undisturbed search of as many trials chooses."""
    return [row["name"] for row in run(search(folder, count))[0].results]


def test_a_trial_whose_choices_were_not_made_yet_is_no_loss(toys: Toys, tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    study = study_of(search(tmp_path / "it"))
    study.storage.create_new_trial(study._study._study_id)  # and the process is killed
    found, _ = run(search(tmp_path / "it"))
    assert [row["name"] for row in found.results] == names(tmp_path / "undisturbed")
    assert {one.state for one in study_of(search(tmp_path / "it")).trials} == {TrialState.COMPLETE}


def test_a_line_of_the_study_that_was_cut_short_is_taken_away(toys: Toys, tmp_path: Path) -> None:
    run(search(tmp_path, 3))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    found, _ = run(search(tmp_path, 6))
    assert [row["status"] for row in found.results] == ["finished"] * 6
    assert (tmp_path / FILE).read_bytes().endswith(b"}\n")


def test_nobody_waits_for_a_lock_of_a_process_that_is_gone(toys: Toys, tmp_path: Path) -> None:
    """Optuna's own is a link, which stays; where it is relative, it is waited for without end."""
    tmp_path.joinpath(f"{FILE}.lock").symlink_to("runs/search/study.journal")
    begin = time.monotonic()
    study_of(search(tmp_path)).ask()
    assert time.monotonic() - begin < 20


def test_rows_that_the_table_has_lost_come_back(toys: Toys, tmp_path: Path) -> None:
    before = names(tmp_path)
    (tmp_path / "table.jsonl").write_text("")
    toys.started.clear()
    found, _ = run(search(tmp_path))
    assert toys.started == []
    assert [row["name"] for row in found.results] == before
    assert {row["status"] for row in found.results} == {"finished"}


def test_a_point_that_failed_is_tried_again_by_the_same_command(
    toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toys, "seconds", "none")  # no number: the toy fails
    found, _ = run(search(tmp_path, 2))
    assert [row["status"] for row in found.results] == ["failed"] * 2
    monkeypatch.setattr(toys, "seconds", 0.0)
    found, _ = run(search(tmp_path, 2))
    assert [row["status"] for row in found.results] == ["finished"] * 2
    assert found.num_trials == 2


def test_a_point_that_goes_on_alone_is_waited_for(toys: Toys, tmp_path: Path) -> None:
    """Its driver was killed; what is chosen next is to know its value."""
    made = search(tmp_path)
    study = study_of(made)
    trial = study.ask()
    assert trial is not None
    job = made._job(made.points.of(trial.params))
    held, begun = threading.Event(), list[str]()

    def orphan(job: Job) -> None:
        with job.opened_log() as log:
            assert log is not None
            held.set()
            time.sleep(1.0)
            begun.extend(toys.started)

    thread = threading.Thread(target=orphan, args=(job,))
    thread.start()
    held.wait()
    run(made)
    thread.join()
    assert begun == []
    assert toys.started[0] == job.point.name
    assert len(toys.started) == 6


def test_a_search_knows_whether_others_drive_it(tmp_path: Path) -> None:
    with present(tmp_path) as first, present(tmp_path) as second:
        assert (first, second) == (True, False)
    with present(tmp_path) as third:
        assert third
    assert os.path.exists(tmp_path / ".search.lock")
