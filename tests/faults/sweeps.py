"""Disturbed sweeps: their points as forks of the driver, the kinds of faults, what is known."""

import csv
import ctypes
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from run_facts import reproducible

from faults import cases, harm
from faults.cases import KILLED, NO_ROOM, Known, Wrong, kind, refuse_difference
from faults.harm import Act, Place
from faults.processes import PATIENCE, Command, ForkedPoint, Process, warm_up
from fidgpt import forking
from fidgpt.cli import sweep, train
from fidgpt.sweep.runners import jobs
from fidgpt.train import TrainStep

DONE = "done"
_BY_CHANCE = ("attempts", "seconds", "code")
_POLL = 0.003


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


def sweep_result(directory: Path) -> dict[str, Any]:
    """Reads a finished sweep: its results without timings and attempts, its runs, its trials.

    Raises:
      ValueError: a line of its files is damaged.
      Wrong: so is one of its runs.
    """
    rows = table_of(directory)
    trials = _trials(directory / "study.journal")
    names, sheet = [row["name"] for row in rows.values()], sheet_of(directory)
    order = {"table.jsonl": names, "results.csv": [row["name"] for row in sheet]}
    if trials:  # of a search, rows come as it goes
        order = {file: sorted(names) for file, names in order.items()}
    return {
        "order": order,
        "table.jsonl": rows,
        "results.csv": {row["name"]: _plain(row) for row in sheet},
        "done.json": {
            name: reproducible(json.loads((directory / name / "done.json").read_text()))
            for name in rows
        },
        "runs": {name: cases.result_of(directory / name) for name in rows},
        "trials": trials,
    }


def table_of(directory: Path) -> dict[str, Any]:
    """The rows of `table.jsonl` by directory, without what differs each time.

    Raises:
      ValueError: a line is damaged.
      Wrong: two rows are of one point.
    """
    rows = [json.loads(line) for line in (directory / "table.jsonl").read_text().splitlines()]
    found = {row["directory"]: _plain(row, metrics=reproducible(row["metrics"])) for row in rows}
    if len(found) < len(rows):
        raise Wrong(f"{directory} has two rows of a point: {[row['directory'] for row in rows]}")
    return found


def sheet_of(directory: Path) -> list[dict[str, str]]:
    """The rows of `results.csv`."""
    with (directory / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _plain(row: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    plain = {key: one for key, one in reproducible(dict(row)).items() if key not in _BY_CHANCE}
    return plain | others


def _trials(path: Path) -> list[Any]:
    if not path.exists():
        return []
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="search", storage=storage)
    return [(one.number, one.state.name, one.params, one.values) for one in study.get_trials()]


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


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not waited for."""
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
    launch = TrainStep.launch

    def noted(self: TrainStep, run: Any, state: Any, *batch: Any, **options: Any) -> Any:
        journal.note(point, str(state.step + 1))
        return launch(self, run, state, *batch, **options)

    def command() -> None:
        TrainStep.launch = noted
        try:
            train.run()
        except SystemExit as leaving:
            if not leaving.code:
                journal.note(point, DONE)
            raise

    return command


class SweepCase(cases.Case):
    """A sweep in a directory of its own.

    Attributes:
      journal: what its points did.
      num_jobs: how many of them run side by side; those of a search depend on each other.
      lost: names of points that were removed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost: set[str] = set()
        self.journal = Journal(self.folder / "journal")
        self.num_jobs = 1 if self.known.result.get("trials") else self.draw.choice([1, 2])
        self._pause = self.draw.choice([0.02, 0.2])

    def start(self, *flags: str, place: Place | None = None, act: Act | None = None) -> Process:
        """Begins the sweep, or goes on with it, disturbed at a place in the driver."""

        def fork_points() -> None:
            run = partial(_watched, self.journal)
            jobs.Popen = partial(ForkedPoint, run=run, at_start=self.at_start)
            jobs.LocalRunner.pause, forking.is_safe = self._pause, lambda: False

        command = [*self.known.arguments, f"--run_dir={self.run}", *flags]
        return self.fork(command, place, act, first=fork_points, command=sweep.run)

    def wait(self, driver: Process) -> None:
        """Lets the sweep go on until some moment, or its driver's end."""
        begun = self.journal.num_steps()
        until = begun + self.draw.randrange(max(1, self.known.num_steps - begun))
        self.wait_until(driver, lambda: self.journal.num_steps() >= until)
        time.sleep(self.draw.uniform(0, 0.15))

    def wait_until(self, driver: Process, condition: Callable[[], object]) -> None:
        """Lets the sweep go on until something holds, or its driver's end."""
        while not condition() and not driver.has_ended():
            time.sleep(_POLL)

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
        """The same, once all is compared; then once more, which does nothing."""
        self.end(self.start(), 0)
        deadline = time.monotonic() + PATIENCE
        while left := self.orphans():
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                raise Wrong(f"processes {left} are left behind")
            time.sleep(_POLL)
        refuse_difference(sweep_result(self.run), self.known.result)
        lines = self.journal.lines()
        refuse_second_training(lines, lost=self.lost)
        self.end(self.start(), 0)
        refuse_difference(sweep_result(self.run), self.known.result)
        if self.journal.lines() != lines:
            raise Wrong(f"a sweep that is done trains: {self.journal.lines()[len(lines) :]}")

    def end_all(self) -> None:
        super().end_all()
        self.kill_orphans()


# Strikes a sweep whose driver may have ended; returns the statuses that the driver may end with.
Strike = Callable[[SweepCase, Process], tuple[int, ...]]
WHOLE = (0, 1)  # 1: a point failed


def point_killed(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """SIGKILL of a process that trains."""
    case.wait_until(driver, lambda: children_of(driver.pid))
    running = children_of(driver.pid)
    if running:
        os.kill(case.draw.choice(running), signal.SIGKILL)
    return WHOLE


def driver_killed(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """SIGKILL of the driver, whose points go on without it."""
    os.kill(driver.pid, signal.SIGKILL)
    return (KILLED, *WHOLE)


def all_killed(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """SIGKILL of the driver and of its points."""
    statuses = driver_killed(case, driver)
    while not driver.has_ended():
        time.sleep(0.001)
    case.kill_orphans()
    return statuses


def sending(*numbers: int) -> Strike:
    """Signals to the driver, one a little after the other."""

    def strike(case: SweepCase, driver: Process) -> tuple[int, ...]:
        case.wait_until(driver, case.run.exists)  # before that no command handles signals
        for i, number in enumerate(numbers):
            time.sleep(case.draw.uniform(0, 0.3) if i else 0.0)
            os.kill(driver.pid, number)
        return (130, *WHOLE, *(-number for number in numbers))

    return strike


def no_room(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """No room on the disk for a while, or until the driver ends."""
    filler = case.run.parent / harm.FILLER
    harm.filled(case.run.parent, left=case.draw.choice([0, case.draw.randrange(300_000)]))()
    until = time.monotonic() + case.draw.choice([0.3, 2.0, 120.0])
    case.wait_until(driver, lambda: time.monotonic() > until)
    filler.unlink()
    return (*WHOLE, 2)


SEARCH = "a search"
# Functions of a driver, the unit that is counted in them, and how much of it they do at most.
_PLACES = (
    ("fidgpt.sweep.results:ResultsTable.write", "disk", 12),
    ("fidgpt.sweep.runners.jobs:Job.finish", "disk", 4),
    ("fidgpt.sweep.runners.jobs:Runner._begin", "calls", 60),
    ("fidgpt.sweep.runners.jobs:Runner._poll", "calls", 200),
)
_ASK = ("fidgpt.sweep.search:Driver.ask", "disk", 12)
_RECORD = ("fidgpt.sweep.search:Driver.report", "disk", 6)


def struck(case: SweepCase, *drawn: Strike, times: tuple[int, ...] = (1,)) -> None:
    """One of several strikes at a random moment, each on a new start of the command."""
    for _ in range(case.draw.choice(times)):
        strike = case.draw.choice(drawn)
        driver = case.start(*_flags(case))
        case.wait(driver)
        case.end(driver, *strike(case, driver))


def point_removed(case: SweepCase) -> None:
    """Someone removes a point, whether it is done or not, while no process runs."""
    if case.draw.random() < 0.7:
        struck(case, all_killed, _SIGTERM)
    else:
        case.end(case.start(), 0)
    if directories := sorted(path.parent for path in case.run.glob("*/config.json")):
        directory = case.draw.choice(directories)
        case.lost.add(directory.name)
        shutil.rmtree(directory, ignore_errors=True)


def killed_inside(case: SweepCase, *places: tuple[str, str, int]) -> None:
    """SIGKILL of the driver inside of what it does on files and processes."""
    function, unit, most = case.draw.choice(places)
    place = Place(function, case.draw.randrange(1, 21), unit, case.draw.randrange(most))
    case.end(case.start(*_flags(case), place=place, act=harm.kill), KILLED, *WHOLE)


def power_lost(case: SweepCase) -> None:
    """SIGKILL of all, which takes along what was not synced."""
    power = harm.Power(case.folder / "synced")
    case.at_start = power.record
    struck(case, all_killed)
    power.fail(case.run)


def side_by_side(case: SweepCase, *drawn: Strike) -> None:
    """The same command twice at once, and one of them is struck."""
    first = case.start(*_flags(case))
    if case.draw.random() < 0.5:
        case.wait(first)
    one, other = case.draw.sample([first, case.start(*_flags(case))], 2)
    case.wait(one)
    statuses = case.draw.choice(drawn)(case, one)
    case.end(one, *statuses)
    case.end(other, *(WHOLE if statuses != (0,) else statuses))


def left_alone(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """Nothing happens."""
    return (0,)


def _flags(case: SweepCase) -> list[str]:
    """Flags that may differ from one command to the next."""
    return [f"--jobs={case.num_jobs}", f"--retries={case.draw.choice([0, 0, 1])}"]


_SIGTERM, _SIGINT, _SIGHUP = map(sending, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_TWICE = sending(signal.SIGINT, signal.SIGINT)
_ALIVE = (driver_killed, all_killed)
_ANY = (point_killed, *_ALIVE, _SIGTERM, _SIGINT, _TWICE)
SWEEP_KINDS: cases.Kinds = {
    "a point killed": kind(4, struck, point_killed),
    "the driver killed, its points go on": kind(5, struck, driver_killed),
    "all killed": kind(5, struck, all_killed),
    "the driver killed as it writes": kind(5, killed_inside, *_PLACES),
    "power lost": kind(4, power_lost),
    "SIGTERM, SIGHUP, SIGINT once or twice": kind(6, struck, _SIGTERM, _SIGHUP, _SIGINT, _TWICE),
    "two drivers at once": kind(3, side_by_side, left_alone),
    "two drivers, one of them struck": kind(
        4, side_by_side, point_killed, driver_killed, _SIGTERM, _TWICE
    ),
    NO_ROOM: kind(3, struck, no_room),
    "a point removed": kind(2, point_removed),
    "two or three of these": kind(6, struck, *_ANY, times=(2, 3)),
    f"{SEARCH}: the driver killed": kind(4, struck, *_ALIVE),
    f"{SEARCH}: the driver killed as it asks or records": kind(4, killed_inside, _ASK, _RECORD),
    f"{SEARCH}: SIGTERM or SIGINT": kind(2, struck, _SIGTERM, _TWICE),
    f"{SEARCH}: power lost": kind(2, power_lost),
    f"{SEARCH}: {NO_ROOM}": kind(2, struck, no_room),
}


STEPS, POINTS, TRIALS = 4, 10, 12
_SUBREAPER = 36


class SweepWorld(cases.World):
    """Makes cases of sweeps.

    Args:
      folder: empty; all lies in it.
    """

    kinds: cases.Kinds = SWEEP_KINDS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, megabytes=64)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that no point is out of sight
        fewer = [f"--config=set:num_steps={STEPS}", "--config=set:checkpoints.every=2"]
        point = [*self.commands["plain"], *fewer]
        warm_up([*point, f"--run_dir={folder / 'warm'}"])
        sweeps = ["--sweep=tag:LearningRate=log(1e-4,1e-2,5)", f"--repeat=seed:{POINTS // 5}"]
        warm_up([*point, *sweeps, "--print"], sweep.run)
        searched = ["--space=tag:LearningRate=log(1e-4,1e-1)", "--objective=validation/loss"]
        self._commands = {
            "sweep": [*point, *sweeps],
            **{
                name: [*point, *searched, f"--search={name}:{TRIALS}"] for name in ("random", "tpe")
            },
        }
        self._known: dict[str, Known] = {}

    def case(self, kind: str, number: int, draw: random.Random) -> SweepCase:
        # What failed for want of room has no value that TPE could learn from, as it would have had.
        search = "random" if kind.endswith(NO_ROOM) else draw.choice(["random", "tpe"])
        known = self.undisturbed(search if kind.startswith(SEARCH) else "sweep")
        return SweepCase(known, self.folder / f"case-{number}", draw, self.run_of(kind, number))

    def undisturbed(self, name: str) -> Known:
        """Return an undisturbed "sweep", or a search by the name of its sampler."""
        if name not in self._known:
            num_points = POINTS if name == "sweep" else TRIALS
            known = Known(self._commands[name], {}, num_steps=num_points * STEPS)
            case = SweepCase(known, self.folder / "undisturbed" / name, random.Random(0))
            case.end(case.start(), 0)
            result = sweep_result(case.run)
            found = len(result["runs"]), case.journal.num_steps()
            if found != (num_points, known.num_steps):
                raise Wrong(f"{found[0]} points made {found[1]} steps")
            self._known[name] = known._replace(result=result)
        return self._known[name]
