"""The kinds of faults of sweeps, and what all cases share."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from faults import harm
from faults.harm import Power
from faults.moments import Place
from faults.processes import Process, ask_once, one_thread, warm_up
from faults.runs import Wrong, variants, write_texts
from faults.sweeps.cases import Known, SweepCase, SweepResult, children_of, sweep_result
from fidgpt.cli import sweep

# Damages what a sweep has written, in a moment in which it may be written anew.
Harm = Callable[[SweepCase], None]
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
    return _killed(driver)


def all_killed(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """SIGKILL of the driver and of its points."""
    status = _killed(driver)
    while not driver.has_ended():
        time.sleep(0.001)
    case.kill_orphans()
    return status


def sending(*numbers: int) -> Strike:
    """Signals to the driver, one a little after the other."""

    def strike(case: SweepCase, driver: Process) -> tuple[int, ...]:
        case.wait_until(driver, case.run.exists)  # before that no command listens to anything
        for i, number in enumerate(numbers):
            time.sleep(case.draw.uniform(0, 0.3) if i else 0.0)
            os.kill(driver.pid, number)
        return (130, *WHOLE, *(-number for number in numbers))

    return strike


def harmed(harm: Harm) -> Strike:
    """A strike that damages while the sweep goes on."""

    def strike(case: SweepCase, driver: Process) -> tuple[int, ...]:
        harm(case)
        return WHOLE

    return strike


def table_hurt(case: SweepCase) -> None:
    """The results are not what was written."""
    file = case.run / case.draw.choice(["table.jsonl", "table.jsonl", "results.csv"])
    hurt = [harm.truncate, harm.zero, harm.remove, garbage]
    _hurt_one(case, [file], case.draw.choice(hurt))


def done_hurt(case: SweepCase) -> None:
    """The mark of a point that is done is not what was written."""
    hurt = [harm.truncate, harm.zero, harm.remove, garbage]
    _hurt_one(case, sorted(case.run.glob("*/done.json")), case.draw.choice(hurt))


def log_removed(case: SweepCase) -> None:
    """Somebody removes what a point wrote, which is also the lock of it; or all of that."""
    if case.draw.random() < 0.3:
        shutil.rmtree(case.run / "logs", ignore_errors=True)
    else:
        newest = sorted(case.run.glob("logs/*"), key=lambda path: path.stat().st_mtime)[-2:]
        _hurt_one(case, newest, harm.remove)


def directory_removed(case: SweepCase) -> None:
    """Somebody removes a point, whether it is done or not."""
    found = [path for path in sorted(case.run.glob("*")) if (path / "config.json").exists()]
    if found:
        path = case.draw.choice(found)
        case.lost.add(path.name)
        shutil.rmtree(path, ignore_errors=True)


def no_room(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """No room on the disk for a while, or until the driver ends."""
    filler = case.run.parent / harm.FILLER
    harm.filled(case.run.parent, left=case.draw.choice([0, case.draw.randrange(300_000)]))()
    until = time.monotonic() + case.draw.choice([0.3, 2.0, 120.0])
    case.wait_until(driver, lambda: time.monotonic() > until)
    filler.unlink()
    return (*WHOLE, 2)


def garbage(file: Path, draw: random.Random) -> None:
    """Some bytes are any."""
    data = file.read_bytes()
    begin = draw.randrange(len(data) + 1)
    file.write_bytes(data[:begin] + draw.randbytes(200) + data[begin + 200 :])


def _killed(driver: Process) -> tuple[int, ...]:
    os.kill(driver.pid, signal.SIGKILL)
    return (-signal.SIGKILL, *WHOLE)


def _hurt_one(case: SweepCase, files: list[Path], hurt: harm.Hurt) -> None:
    """Hurts one of some files, unless it is replaced or removed in the same moment."""
    files = [file for file in files if file.exists() and file.stat().st_size]
    if files:
        try:
            hurt(case.draw.choice(files), case.draw)
        except FileNotFoundError:
            return


KILLED = -signal.SIGKILL
SEARCH, NO_ROOM = "a search", "no room on the disk"
SweepKind = Callable[[SweepCase], None]
# Functions of a driver, the unit that is counted in them, and how much of it they do at most.
_PLACES = (
    ("fidgpt.sweep.results:ResultsTable.write", "disk", 12),
    ("fidgpt.sweep.runners.jobs:Job.finish", "disk", 4),
    ("fidgpt.sweep.runners.scheduler:Scheduler._begin", "calls", 60),
    ("fidgpt.sweep.runners.scheduler:Scheduler._poll", "calls", 200),
)
_ASK = ("fidgpt.sweep.search:Study.ask", "disk", 12)
_RECORD = ("fidgpt.sweep.search:Study.close", "disk", 6)


def struck(*drawn: Strike, times: tuple[int, ...] = (1,)) -> SweepKind:
    """One of several strikes at a random moment, each on a new start of the command."""

    def kind(case: SweepCase) -> None:
        for _ in range(case.draw.choice(times)):
            _strike(case, case.draw.choice(drawn))
        case.finish()

    return kind


def harmed_at_rest(*drawn: Harm) -> SweepKind:
    """A sweep that was stopped, or is done, is damaged while no process runs."""

    def kind(case: SweepCase) -> None:
        if case.draw.random() < 0.7:
            _strike(case, case.draw.choice([all_killed, sending(signal.SIGTERM)]))
        else:
            case.end(case.start(), 0)
        case.draw.choice(drawn)(case)
        case.finish()

    return kind


def killed_inside(*places: tuple[str, str, int]) -> SweepKind:
    """SIGKILL of the driver inside of what it does on files and processes."""

    def kind(case: SweepCase) -> None:
        function, unit, most = case.draw.choice(places)
        place = Place(function, case.draw.randrange(1, 21), unit, case.draw.randrange(most))
        case.end(case.start(*_flags(case), place=place, act=harm.kill), KILLED, *WHOLE)
        case.finish()

    return kind


def power_lost(case: SweepCase) -> None:
    """SIGKILL of all, which takes along what was not synced."""
    power = Power(case.folder / "synced")
    case.listen = power.listen
    _strike(case, all_killed)
    power.fail(case.run)
    case.finish()


def side_by_side(*drawn: Strike) -> SweepKind:
    """The same command twice at once, and one of them is struck."""

    def kind(case: SweepCase) -> None:
        first = case.start(*_flags(case))
        if case.draw.random() < 0.5:
            case.wait(first)
        one, other = case.draw.sample([first, case.start(*_flags(case))], 2)
        case.wait(one)
        statuses = case.draw.choice(drawn)(case, one)
        case.end(one, *statuses)
        case.end(other, *(WHOLE if statuses != (0,) else statuses))
        case.finish()

    return kind


def left_alone(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """Nothing happens."""
    return (0,)


def real_driver_killed(case: SweepCase) -> None:
    """The command as a user starts it, with processes as it starts them, killed at any time."""
    command = [sys.executable, "-m", "fidgpt.cli.sweep", *case.known.arguments, *_flags(case)]
    process = subprocess.Popen(
        [*command, f"--run_dir={case.run}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    num_begun = case.draw.randrange(1, 4)
    while len(list(case.run.glob("*/metrics.jsonl"))) < num_begun and process.poll() is None:
        time.sleep(0.01)
    time.sleep(case.draw.uniform(0, 0.5))
    process.kill()
    process.wait()
    if case.draw.random() < 0.5:
        case.kill_orphans()
    case.finish()


def _strike(case: SweepCase, strike: Strike) -> None:
    driver = case.start(*_flags(case))
    case.wait(driver)
    statuses = strike(case, driver)
    case.end(driver, *statuses)


def _flags(case: SweepCase) -> list[str]:
    """What of a command may differ from one time to the next."""
    return [f"--jobs={case.num_jobs}", f"--retries={case.draw.choice([0, 0, 1])}"]


_SIGTERM, _SIGINT, _SIGHUP = map(sending, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_TWICE = sending(signal.SIGINT, signal.SIGINT)
_THREE_TIMES = sending(signal.SIGINT, signal.SIGINT, signal.SIGINT)
_HARMS = (table_hurt, done_hurt, log_removed, directory_removed)
_ANY = (
    *(point_killed, driver_killed, all_killed),
    *(_SIGTERM, _SIGINT, _TWICE, *map(harmed, _HARMS)),
)
_ALIVE = (driver_killed, all_killed)

# By name: the kind, and how often it is drawn beside the others.
SWEEP_KINDS: dict[str, tuple[SweepKind, int]] = {
    "a point killed": (struck(point_killed), 4),
    "the driver killed, its points go on": (struck(driver_killed), 5),
    "all killed": (struck(all_killed), 5),
    "the driver killed as it writes": (killed_inside(*_PLACES), 5),
    "power lost": (power_lost, 4),
    "SIGTERM, or SIGHUP": (struck(_SIGTERM, _SIGHUP), 3),
    "SIGINT": (struck(_SIGINT), 2),
    "SIGINT, two or three times": (struck(_TWICE, _THREE_TIMES), 3),
    "two drivers at once": (side_by_side(left_alone), 3),
    "two drivers, one of them struck": (
        side_by_side(point_killed, driver_killed, _SIGTERM, _TWICE),
        4,
    ),
    NO_ROOM: (struck(no_room), 3),
    "results damaged": (harmed_at_rest(table_hurt), 3),
    "results damaged as it runs": (struck(harmed(table_hurt)), 1),
    "done.json damaged": (harmed_at_rest(done_hurt), 3),
    "a log removed as it runs": (struck(harmed(log_removed)), 2),
    "a point removed": (harmed_at_rest(directory_removed), 2),
    "a point removed as it runs": (struck(harmed(directory_removed)), 2),
    "two or three of these": (struck(*_ANY, times=(2, 3)), 6),
    "a real driver killed": (real_driver_killed, 1),
    f"{SEARCH}: the driver killed": (struck(*_ALIVE), 4),
    f"{SEARCH}: the driver killed as it asks or tells": (killed_inside(_ASK, _RECORD), 4),
    f"{SEARCH}: SIGTERM or SIGINT": (struck(_SIGTERM, _TWICE), 2),
    f"{SEARCH}: power lost": (power_lost, 2),
    f"{SEARCH}: no room on the disk": (struck(no_room), 2),
    f"{SEARCH}: results damaged": (harmed_at_rest(table_hurt), 2),
}


STEPS, POINTS, TRIALS = 4, 20, 12
_SMALL_MB = 64
_SUBREAPER = 36


class SweepWorld:
    """Makes cases.

    Args:
      folder: empty; all lies in it.

    Attributes:
      has_small_disk: whether the machine lets one be mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._small = folder / "small"
        self._small.mkdir()
        self.has_small_disk = harm.mounted(self._small, megabytes=_SMALL_MB)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that no point is out of sight
        one_thread()
        ask_once()
        write_texts(folder / "texts")
        os.environ["FIDGPT_CACHE"] = str(folder / "cache")
        point = [
            *variants(folder / "texts")["plain"],
            f"--config=set:num_steps={STEPS}",
            "--config=set:checkpoints.every=2",
        ]
        warm_up([*point, f"--run_dir={folder / 'warm'}"])
        swept = [
            *point,
            "--sweep=tag:LearningRate=log(1e-4,1e-2,5)",
            f"--repeat=seed:{POINTS // 5}",
        ]
        warm_up([*swept, "--print"], sweep.run)
        space = "--space=tag:LearningRate=log(1e-4,1e-1)"
        searched = [*point, space, "--objective=validation/loss"]
        self._commands = {
            "sweep": swept,
            **{name: [*searched, f"--search={name}:{TRIALS}"] for name in ("random", "tpe")},
        }
        self._known: dict[str, Known] = {}

    def case(self, kind: str, number: int, draw: random.Random) -> SweepCase:
        """The case of that number; a file system is shared, so one after the other."""
        folder = self._folder / f"case-{number}"
        # What failed for want of room has no value that TPE could learn from, as it would have had.
        search = "random" if kind.endswith(NO_ROOM) else draw.choice(["random", "tpe"])
        known = self.undisturbed(search if kind.startswith(SEARCH) else "sweep")
        small = self._small / f"{number}" / "sweep" if kind.endswith(NO_ROOM) else None
        if small is not None:
            small.parent.mkdir()
        return SweepCase(known, folder, draw, run=small)

    def undisturbed(self, name: str) -> Known:
        """Return an undisturbed "sweep", or a search by the name of its sampler."""
        if name not in self._known:
            self._known[name] = self._run(name, POINTS if name == "sweep" else TRIALS)
        return self._known[name]

    def _run(self, name: str, num_points: int) -> Known:
        nothing = SweepResult([], [], {}, {}, [])
        known = Known(self._commands[name], nothing, num_points * STEPS, name == "sweep")
        case = SweepCase(known, self._folder / "undisturbed" / name, random.Random(0))
        case.end(case.start(), 0)
        result = sweep_result(case.run)
        if (num_steps := case.journal.num_steps()) != len(result.rows) * STEPS:
            raise Wrong(f"{len(result.rows)} points of {STEPS} steps made {num_steps} steps")
        if len(result.rows) != num_points:
            raise Wrong(f"{len(result.rows)} points instead of {num_points}")
        return known._replace(result=result)
