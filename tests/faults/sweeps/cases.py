"""Sweeps that are disturbed: their points as forks of the driver, and what must hold of them."""

import contextlib
import csv
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from faults.moments import Act, Place
from faults.processes import PATIENCE, Command, Ended, Process, become
from faults.runs import Result, Wrong, refusal_of, refuse_difference, require_status, result_of
from fidgpt.cli import sweep, train
from fidgpt.sweep.runners import local
from fidgpt.train import Trainer
from fidgpt.train.trackers.trackers import reproducible

DONE = "done"


class Trained(NamedTuple):
    """A line of the journal.

    Attributes:
      point: the name of its run directory.
      pid: the process.
      what: the step that begins, or "done".
    """

    point: str
    pid: int
    what: str


Row = Mapping[str, Any]
_BY_CHANCE = ("attempts", "seconds", "code")


class SweepResult(NamedTuple):
    """What must be alike.

    Attributes:
      rows: of `table.jsonl`, without what a clock measured and how often was tried.
      sheet: of `results.csv`, likewise.
      done: the number of each point in its `done.json`.
      runs: what each point left.
      trials: of a search: what was chosen, and what came of it.
    """

    rows: Sequence[Row]
    sheet: Sequence[Row]
    done: Mapping[str, Row]
    runs: Mapping[str, Result]
    trials: Sequence[Any]


def sweep_result(directory: Path) -> SweepResult:
    """Reads a sweep that is done.

    Raises:
      Wrong: something in it is not whole.
    """
    rows = plain_rows(directory)
    names = [row["directory"] for row in rows]
    return SweepResult(
        rows,
        [_plain(row) for row in sheet_of(directory)],
        {name: reproducible(_json(directory / name / "done.json")) for name in names},
        {name: result_of(directory / name) for name in names},
        _trials(directory / "study.journal"),
    )


def plain_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of `table.jsonl`, without what is left to chance.

    Raises:
      Wrong: one is not whole, or there twice.
    """
    rows = _table(directory / "table.jsonl")
    return [_plain(row) | {"metrics": reproducible(row["metrics"])} for row in rows]


def sheet_of(directory: Path) -> list[dict[str, str]]:
    """The rows of `results.csv`."""
    path = directory / "results.csv"
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return list(csv.DictReader(file))


def refuse_other(found: SweepResult, expected: SweepResult) -> None:
    """Raise Wrong if two sweeps differ, naming what."""
    in_any_order = bool(expected.trials)  # of a search, rows come as it goes
    for file, rows, wanted in (
        ("table.jsonl", found.rows, expected.rows),
        ("results.csv", found.sheet, expected.sheet),
    ):
        if in_any_order:
            rows, wanted = (sorted(one, key=lambda row: row["name"]) for one in (rows, wanted))
        _refuse_other_rows(file, rows, wanted)
    for name, run in expected.runs.items():
        try:
            refuse_difference(found.runs[name], run)
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
        if json.dumps(found.done[name]) != json.dumps(expected.done[name]):
            raise Wrong(f"{name}: done.json is {found.done[name]}, not {expected.done[name]}")
    for one, wanted in zip_longest(found.trials, expected.trials):
        if one != wanted:
            raise Wrong(f"a trial is {one} instead of {wanted}")


def refuse_second_training(lines: Iterable[Trained], *, lost: set[str]) -> None:
    """Raises Wrong where a point was trained after its end, or by two processes at a time.

    Args:
      lines: of the journal.
      lost: points that were removed, which must be trained again.
    """
    trained: dict[str, list[Trained]] = {}
    for line in lines:
        trained.setdefault(line.point, []).append(line)
    for point, own in trained.items():
        pids = [line.pid for line in own if line.what != DONE]
        changes = sum(one != other for one, other in pairwise(pids))
        if changes >= len(set(pids)):
            raise Wrong(f"{point} was trained by {len(set(pids))} processes at a time: {pids}")
        whats = [line.what for line in own]
        again = whats[whats.index(DONE) :] if DONE in whats else []
        if point not in lost and any(what != DONE for what in again):
            raise Wrong(f"{point} was trained again after its end: {whats}")


def _refuse_other_rows(file: str, found: Sequence[Row], expected: Sequence[Row]) -> None:
    names = [row["name"] for row in found]
    if names != (wanted := [row["name"] for row in expected]):
        raise Wrong(f"{file} has rows of {names} instead of {wanted}")
    for one, other in zip(found, expected, strict=True):
        keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        if keys:
            message = "; ".join(
                f"{key} is {one.get(key)!r}, not {other.get(key)!r}" for key in keys
            )
            raise Wrong(f"{file}, {one['name']}: {message}")


def _plain(row: Row) -> dict[str, Any]:
    return {key: value for key, value in reproducible(dict(row)).items() if key not in _BY_CHANCE}


def _table(path: Path) -> list[dict[str, Any]]:
    rows = [
        _parsed(path, line)
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    ]
    fingerprints = [row["fingerprint"] for row in rows]
    if len(set(fingerprints)) < len(fingerprints):
        raise Wrong(f"{path} has two rows of a point: {fingerprints}")
    return rows


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise Wrong(f"{path} is not there")
    return _parsed(path, path.read_text(encoding="utf-8", errors="replace"))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Wrong(f"{path} is not whole ({error}): {text[:200]!r}") from None


def _trials(path: Path) -> list[Any]:
    if not path.exists():
        return []
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="search", storage=storage)
    return [(one.number, one.state.name, one.params, one.values) for one in study.get_trials()]


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEGIN = [sys.executable, "-m", train.__name__]


class Journal:
    """What the points of a sweep do, written down from inside of their processes.

    Args:
      path: a file, outside of what may be disturbed.

    Attributes:
      path: the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    def note(self, point: str, what: str) -> None:
        """Adds a line of this process's."""
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{point} {os.getpid()} {what}\n".encode())

    def lines(self) -> list[Trained]:
        """All that was noted so far."""
        fields = [line.split() for line in self.path.read_text().splitlines()]
        return [Trained(point, int(pid), what) for point, pid, what in fields]

    def num_steps(self) -> int:
        """Steps that were begun so far, those that were done again included."""
        return sum(line.what.isdecimal() for line in self.lines())


class ForkedPoint:
    """What `Popen` is to a driver, of a child that need not import torch first.

    Args:
      command: the training command.
      journal: is told of its steps.
      listen: called first in the child.
      stdout: takes what it prints.
      env: its variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        journal: Journal,
        listen: Callable[[], None],
        stdout: IO[bytes],
        env: Mapping[str, str],
    ) -> None:
        assert list(command[:3]) == _BEGIN, command
        self.returncode: int | None = None

        def begin() -> None:
            os.setsid()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            _forget_files()
            os.environ.clear()
            os.environ.update(env)
            listen()

        # As in a new process, no signal is taken by what the driver does on it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            become(_watched(journal, command[3:]), command[3:], begin=begin)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        """The status with which it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _forget_files() -> None:
    """Lets go of files, and so of locks, as a new process would that inherits none."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own is closed already
            if handle > 2:
                os.dup2(nowhere, handle, inheritable=False)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not taken leave of."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _watched(journal: Journal, arguments: Sequence[str]) -> Command:
    """The training command, whose steps and end are noted."""
    words = [
        one.partition("=")[2] for one in arguments if one.startswith(("--run_dir", "--resume"))
    ]
    point = Path(words[-1]).name
    update = Trainer.update

    def noted(self: Trainer, state: Any, batch: Any) -> Any:
        journal.note(point, str(state.step + 1))
        return update(self, state, batch)

    def command() -> None:
        Trainer.update = noted
        try:
            train.run()
        except SystemExit as leaving:
            if not leaving.code:
                journal.note(point, DONE)
            raise

    return command


_POLL = 0.003


class Known(NamedTuple):
    """A sweep that is known.

    Attributes:
      arguments: of the command.
      result: of the undisturbed sweep.
      num_steps: that all points make together.
      may_be_side_by_side: whether its points do not depend on each other.
    """

    arguments: Sequence[str]
    result: SweepResult
    num_steps: int
    may_be_side_by_side: bool


class SweepCase:
    """A sweep in a directory of its own.

    Args:
      known: which one.
      folder: where its outputs and journal lie.
      draw: all that is left to chance.
      run: the sweep's directory, if it is not to lie in the folder.

    Attributes:
      refused: the first `error:` that a command ended with.
      journal: what its points did.
      num_jobs: how many of them run side by side.
      lost: names of points that were removed.
      listen: called first in each process.
    """

    def __init__(
        self, known: Known, folder: Path, draw: random.Random, *, run: Path | None = None
    ) -> None:
        self.known = known
        self.folder = folder
        self.draw = draw
        self.run = run or folder / "sweep"
        self.refused: str | None = None
        self.lost: set[str] = set()
        self.listen: Callable[[], None] = lambda: None
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / "journal")
        self.num_jobs = draw.choice([1, 2]) if known.may_be_side_by_side else 1
        self._pause = draw.choice([0.02, 0.2])
        self._num_started = 0
        self._alive: list[Process] = []

    def start(self, *flags: str, place: Place | None = None, act: Act | None = None) -> Process:
        """Begins the sweep, or goes on with it, disturbed at a place in the driver."""
        self._num_started += 1

        def disturbed() -> None:
            self.listen()
            local.Popen = self._forked
            local.LocalRunner.pause = self._pause
            if place is not None and act is not None:
                place.arm(act, self.run)

        driver = Process(
            [*self.known.arguments, f"--run_dir={self.run}", *flags],
            output=self.folder / f"output-{self._num_started}",
            disturbed=disturbed,
            command=sweep.run,
        )
        self._alive.append(driver)
        return driver

    def _forked(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        env: dict[str, str],
        start_new_session: bool,
    ) -> ForkedPoint:
        return ForkedPoint(
            command, journal=self.journal, listen=self.listen, stdout=stdout, env=env
        )

    def wait(self, driver: Process) -> None:
        """Lets the sweep go on until some moment, or its driver's end."""
        begun = self.journal.num_steps()
        left = max(1, self.known.num_steps - begun)
        until = begun + self.draw.randrange(left)
        self.wait_until(driver, lambda: self.journal.num_steps() >= until)
        time.sleep(self.draw.uniform(0, 0.15))

    def wait_until(self, driver: Process, condition: Callable[[], object]) -> None:
        """Lets the sweep go on until something holds, or its driver's end."""
        while not condition() and not driver.has_ended():
            time.sleep(_POLL)

    def end(self, driver: Process, *statuses: int) -> Ended:
        """Waits for the end of a driver.

        Raises:
          Wrong: it ended with a traceback, or without a word, or with another status.
        """
        ended = driver.end()
        self._alive.remove(driver)
        self.refused = self.refused or refusal_of(ended)
        require_status(ended, *statuses)
        return ended

    def orphans(self) -> list[int]:
        """Points whose driver is gone; they became this process's children."""
        known = {driver.pid for driver in self._alive}
        return [pid for pid in children_of(os.getpid()) if pid not in known]

    def kill_orphans(self) -> None:
        """SIGKILL to all of those."""
        for pid in self.orphans():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def finish(self) -> None:
        """Goes on undisturbed to the end, and compares; then once more, which does nothing.

        Raises:
          Wrong: it does not get there, or something differs.
        """
        self.end(self.start(), 0)
        self.await_orphans()
        found = sweep_result(self.run)
        refuse_other(found, self.known.result)
        lines = self.journal.lines()
        refuse_second_training(lines, lost=self.lost)
        self.end(self.start(), 0)
        refuse_other(sweep_result(self.run), self.known.result)
        if self.journal.lines() != lines:
            raise Wrong(f"a sweep that is done trains: {self.journal.lines()[len(lines) :]}")

    def await_orphans(self) -> None:
        """Waits for what was left behind, which must be ending.

        Raises:
          Wrong: it does not end.
        """
        deadline = time.monotonic() + PATIENCE
        while left := self.orphans():
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                self.kill_orphans()
                raise Wrong(f"processes {left} are left behind")
            time.sleep(_POLL)

    def end_all(self) -> None:
        """Kills what still runs of a case that went wrong."""
        for driver in self._alive:
            os.kill(driver.pid, signal.SIGKILL)
            driver.end()
        self._alive.clear()
        self.kill_orphans()
