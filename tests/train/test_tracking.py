"""Trackers that stand beside the training: what breaks, hangs or comes back never reaches it."""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_facts import FACTS, RecordingTracker, metrics_row, tracking, until

from fidgpt.train import Console, JSONLines, RunDirectory, RunError
from fidgpt.train.trackers import trackers as aside
from fidgpt.train.trackers.trackers import (
    GROUP,
    BackgroundTracker,
    Journal,
    Row,
    RunDescription,
    Trackers,
    describe_run,
    require_packages,
)


class Service(BackgroundTracker):
    """A tracker that a test can break: it keeps what was logged."""

    title, extra, packages = "the service", "service", ()

    def __init__(self) -> None:
        super().__init__(destination="")
        self.broken: str | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.received: list[tuple[str, int]] = []
        self.opened = 0

    def open(self, run: RunDescription, journal: Journal) -> str:
        self.opened += 1
        self.id = journal.id
        self._answer()
        return "look here"

    def write(self, rows: Sequence[Row]) -> None:
        self._answer()
        self.received += [(self.id, row["step"]) for row in rows]

    def close(self) -> None:
        self._answer()

    @property
    def steps(self) -> list[int]:
        return [step for _, step in self.received]

    def _answer(self) -> None:
        self.hangs.wait(20)
        if self.broken:
            raise OSError(self.broken)


class Broken(RecordingTracker):
    """A tracker that raises a given error whenever it is logged to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def log(self, row: Row) -> None:
        raise self.error


class Clearing(RecordingTracker):
    """A tracker that takes apart what it gets."""

    def log(self, row: Row) -> None:
        row.clear()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"PERIOD": 0.01, "PAUSE": 0.02, "PATIENCE": 0.3}.items():
        monkeypatch.setattr(aside, name, seconds)


def log(trackers: Trackers, *steps: int) -> None:
    for step in steps:
        trackers.log(metrics_row(step))


def tracked(path: Path, service: Service, steps: Sequence[int], *, changes: Any = ()) -> list[str]:
    """Return what is printed in a run that takes these steps in a directory."""
    recorder = RecordingTracker()
    run = RunDirectory(path, texts={}, changes=changes)
    with tracking(run, recorder, service, step=steps[0] - 1) as trackers:
        log(trackers, *steps)
    return recorder.printed


@pytest.mark.parametrize("changes", [(), [{"path": "seed"}]], ids=["same", "other settings"])
def test_a_resumed_run_repeats_no_step_unless_its_settings_changed(tmp_path, changes):
    first, second = Service(), Service()
    assert tracked(tmp_path, first, range(1, 8)) == ["the service: look here"]
    assert first.steps == [*range(1, 8)]
    tracked(tmp_path, second, range(5, 11), changes=changes)
    assert second.steps == ([*range(5, 11)] if changes else [8, 9, 10])
    ids = {one for one, _ in first.received + second.received}
    assert ids == {first.id, second.id} and len(ids) == (2 if changes else 1)


@pytest.mark.parametrize("is_writing", [False, True])
def test_a_rollback_starts_another_tracked_run(tmp_path, is_writing):
    service, recorder = Service(), RecordingTracker()
    with tracking(tmp_path, recorder, service) as trackers:
        log(trackers, *range(1, 6))
        until(lambda: service.steps == [1, 2, 3, 4, 5])
        first = service.id
        if is_writing:
            service.hangs.clear()
        log(trackers, 6, 7, 4, 5, 6)
        service.hangs.set()
        until(lambda: (service.id, 6) in service.received and service.id != first)
        trackers.log(metrics_row(7))
    assert [step for one, step in service.received if one == service.id] == [4, 5, 6, 7]
    left = [step for one, step in service.received if one == first]
    assert left in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert recorder.printed == ["the service: look here"]


def test_rows_that_a_tracker_lacks_are_sent(tmp_path):
    run = RunDirectory(tmp_path, texts={})
    with tracking(run, JSONLines()) as trackers:
        log(trackers, *range(1, 6))
    service = Service()
    tracked(tmp_path, service, [4, 5, 6])
    assert service.steps == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_is_down_is_reported_once_and_gets_its_rows_later(tmp_path):
    service, recorder = Service(), RecordingTracker()
    with tracking(tmp_path, recorder, service) as trackers:
        trackers.log(metrics_row(1))
        until(lambda: service.steps == [1])
        service.broken = "no route to host"
        trackers.log(metrics_row(2))
        until(lambda: service.opened > 3)
        trackers.log(metrics_row(3))
        service.broken = None
        until(lambda: service.steps == [1, 2, 3])
        trackers.log(metrics_row(4))
    assert service.steps == [1, 2, 3, 4]
    assert [text.partition(" (")[0] for text in recorder.printed] == [
        "the service: look here",
        "warning: the service is down",
        "the service is back and has caught up.",
    ]
    assert "no route to host" in recorder.printed[1]


def test_a_tracker_that_hangs_does_not_block(tmp_path):
    service = Service()
    service.hangs.clear()
    begin = time.monotonic()
    printed = tracked(tmp_path, service, range(1, 1001))
    assert time.monotonic() - begin < 5
    assert "did not stop within" in printed[0] and "never got 1,000 rows" in printed[1]
    service.hangs.set()


@pytest.mark.parametrize("kind", [ValueError, SystemExit])  # some libraries leave by themselves
def test_any_tracker_may_break_and_only_the_record_of_the_run_may_end_it(tmp_path, kind, capfd):
    recorder, service, broken = RecordingTracker(), Service(), Broken(kind("five"))
    run = RunDirectory(tmp_path, texts={})
    with tracking(run, Clearing(), broken, recorder, service, JSONLines()) as trackers:
        log(trackers, 1, 2)
    assert [text for text in recorder.printed if "failed" in text] == [
        f"warning: Broken failed ({kind.__name__}: five): the run continues without it."
    ]
    assert "Broken failed" in capfd.readouterr().err  # as no console shows it
    assert service.steps == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    with tracking(run, Broken(kind("five")), Console()) as trackers:
        log(trackers, 3)
    written = capfd.readouterr()
    assert ("Broken failed" in written.out, "Broken failed" in written.err) == (True, False)
    with pytest.raises(RunError, match="no room"), Trackers([Broken(RunError("no room"))]) as one:
        one.log(metrics_row(1))


def test_a_tracker_knows_the_config_the_command_and_the_commit(tmp_path, monkeypatch):
    monkeypatch.setenv(GROUP, "a sweep")
    (tmp_path / "command.txt").write_text("python train.py\n")
    (tmp_path / "environment.json").write_text(json.dumps({"git": {"commit": "abc"}}))
    identity = {"model.hidden_dim": "256", "loss": "CrossEntropy", "lr": "0.001", "n": "None"}
    identity |= {"": "Trainer"}  # the graph's root
    one = describe_run(RunDirectory(tmp_path, texts={}, identity=identity), FACTS)
    assert (one.name, one.group) == (tmp_path.name, "a sweep")
    expected = {"model.hidden_dim": 256, "loss": "CrossEntropy", "lr": 0.001, "n": None}
    expected |= {"run/command": "python train.py", "run/git_commit": "abc"}
    assert expected.items() | {("trainer", "Trainer")} <= one.config.items()
    assert all(one.config)  # each has a name


def test_a_package_that_is_missing_is_named_with_its_extra():
    class Missing(Service):
        packages = ("no_such_package",)

    with pytest.raises(RunError, match=r'no_such_package.*pip install "fidgpt\[service\]"'):
        require_packages([RecordingTracker(), Missing()])
