"""Files of a sweep that are damaged, removed, or written by several processes at once."""

import json

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep import Ending, Job, LocalRunner
from fidgpt.sweep.results import ResultsTable, claim, read_table

from .conftest import Toys
from .test_local import RecordedEvents


def test_a_damaged_table_is_named(toys: Toys) -> None:
    claim(toys.directory)
    (toys.directory / "table.jsonl").write_text('{"name": "x"')
    with pytest.raises(ConfigError, match=r"table\.jsonl is damaged: .*Remove it"):
        ResultsTable(toys.directory, toys.jobs(["1"]))


@pytest.mark.parametrize("text", ["name\tvalue\n", '{"name": "x"', '{"name": "x"}\n', "\xff"])
def test_a_table_that_no_sweep_wrote_is_kept_and_not_called_damaged(toys: Toys, text: str) -> None:
    toys.directory.mkdir()
    table = toys.directory / "table.jsonl"
    table.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"is not the table of a sweep: name another") as error:
        claim(toys.directory)
    assert "damaged" not in str(error.value) and table.read_text(encoding="latin-1") == text


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
    toys.seconds = 0.5  # so that it runs when it is called started
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
