"""Files of a sweep that are damaged, removed, or written by several processes at once."""

import errno
import io
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from fidgpt.sweep import Ending, Job, LocalRunner
from fidgpt.sweep import results as books
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import ResultsTable, num_damaged, read_table
from fidgpt.train import RunError

from .conftest import NUM_STEPS, Toys
from .test_local import RecordedEvents


def finished(toys: Toys, *names: str) -> list[Job]:
    """Run jobs, and write their rows into the table."""
    jobs = toys.jobs(list(names))
    toys.directory.mkdir()
    with Screen(ResultsTable(toys.directory, jobs), console=Console(file=io.StringIO())) as screen:
        LocalRunner().run(jobs, screen)
    return jobs


@pytest.mark.parametrize("damage", [b'{"name": "x"', b"\xff\xfe\x00", b"[]", b'{"name": 3}'])
def test_damaged_rows_of_the_table_are_rewritten(toys: Toys, damage: bytes) -> None:
    jobs = finished(toys, "1", "2")
    rows = read_table(toys.directory)
    lines = (toys.directory / "table.jsonl").read_bytes().splitlines()
    (toys.directory / "table.jsonl").write_bytes(lines[0] + b"\n" + damage + b"\n")
    assert (read_table(toys.directory), num_damaged(toys.directory)) == (rows[:1], 1)
    text = io.StringIO()
    with Screen(ResultsTable(toys.directory, jobs), console=Console(file=text)):
        pass
    assert text.getvalue().startswith("warning: 1 row of the table could not be read")
    again = read_table(toys.directory)
    assert again[0] == rows[0]
    assert [row["metrics"] for row in again] == [row["metrics"] for row in rows]
    assert [row["status"] for row in again] == ["finished"] * 2


def test_last_words_may_hold_any_character(toys: Toys) -> None:
    toys.directory.mkdir()
    (job,) = toys.jobs(["1"])
    ResultsTable(toys.directory, [job]).ended(job, Ending("failed", "one\u2028two\x85three"))
    assert read_table(toys.directory)[0]["last_words"] == "one\u2028two\x85three"


def test_each_process_writes_the_rows_of_its_own_points(toys: Toys) -> None:
    toys.directory.mkdir()
    jobs = toys.jobs(["1", "2"])
    one, other = ResultsTable(toys.directory, jobs), ResultsTable(toys.directory, jobs)
    one.write()
    other.started(jobs[0])
    one.started(jobs[1])
    assert [row["status"] for row in read_table(toys.directory)] == ["running", "running"]
    other.ended(jobs[0], Ending("failed", "no memory"))
    one.write()
    assert [row["status"] for row in read_table(toys.directory)] == ["failed", "running"]
    assert [row["status"] for row in one] == ["failed", "running"]
    one.ended(jobs[1], Ending("finished", ""))
    other.started(jobs[1])  # a finished point stays finished if another process starts it
    one.write()
    assert [row["status"] for row in read_table(toys.directory)] == ["failed", "finished"]


def test_an_unwritable_table_stops_nothing(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    toys.directory.mkdir()
    jobs, text = toys.jobs(["1", "2"]), io.StringIO()
    monkeypatch.setattr(books, "write_table", full)
    with (
        pytest.raises(RunError, match="cannot be written: No space left on device"),
        Screen(ResultsTable(toys.directory, jobs), console=Console(file=text)) as screen,
    ):
        assert LocalRunner().run(jobs, screen)
    assert all(job.is_done for job in jobs)
    assert text.getvalue().count("warning: the results") == 1
    monkeypatch.undo()
    assert [row["status"] for row in ResultsTable(toys.directory, jobs)] == ["finished"] * 2


@pytest.mark.parametrize("mark", ["", '{"step": 5, "lo', "[]", None])
def test_a_damaged_mark_is_rewritten(toys: Toys, mark: str | None) -> None:
    (job,) = finished(toys, "1")
    path = job.directory / "done.json"
    whole = path.read_text()
    path.unlink() if mark is None else path.write_text(mark)
    assert not job.is_done
    events = RecordedEvents()
    assert LocalRunner().run([job], events)
    assert path.read_text() == whole
    assert events.steps == {"seed=1": list(range(1, NUM_STEPS + 1))}  # read, not trained


def test_the_mark_holds_metrics_that_the_last_step_lacks(toys: Toys) -> None:
    (job,) = toys.jobs(["1"])
    job.directory.mkdir(parents=True)
    rows = [{"step": 1, "loss": 2.0, "validation/loss": 3.0}, {"step": 2, "loss": 1.0}]
    (job.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert job.finish() == job.result() == {"step": 2, "loss": 1.0, "validation/loss": 3.0}


def test_a_point_without_log_has_last_words(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    events = RecordedEvents()
    (job,) = toys.jobs(["1"])
    toys.fail(job, times=1, words="error: no memory")
    monkeypatch.setattr(events, "started", lambda one: one.log.unlink())
    assert LocalRunner().run([job], events)
    assert events.lines[0] == ("failed", "seed=1", "exit status 1 without output", "False")


def test_a_point_stays_locked_until_marked(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Job.finish, list[bool]()

    def finish(job: Job) -> dict[str, object]:
        with job.opened_log() as log:
            seen.append(log is None or job.is_done)
        return real(job)

    monkeypatch.setattr(Job, "finish", finish)
    (job,) = toys.jobs(["1"])
    assert LocalRunner().run([job], RecordedEvents())
    assert all(seen) and seen
    with job.opened_log() as log:
        assert log is not None


class Removing(RecordedEvents):
    """Removes a run as its last row is read, but for a folder that its process writes later."""

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        if row["step"] == NUM_STEPS:
            shutil.rmtree(job.directory)
            (job.directory / "checkpoints").mkdir(parents=True)


def test_a_point_whose_directory_was_removed_is_trained_again(toys: Toys) -> None:
    (job,) = toys.jobs(["1"])
    events = Removing()
    assert LocalRunner().run([job], events)
    assert events.lines[1][0] == "failed" and not job.is_done
    assert LocalRunner().run([job], RecordedEvents())
    assert job.is_done and job.result()["step"] == NUM_STEPS
    assert [path.name for path in toys.directory.glob("*.lost-*")] == ["111111111111.lost-1"]
