"""The kinds of faults of sweeps: what strikes when, how the command ends, and how it goes on."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from faults import acts
from faults.moments import Place
from faults.power import Power
from faults.processes import Process
from faults.sweeps import strikes
from faults.sweeps.cases import SweepCase
from faults.sweeps.strikes import WHOLE, Harm, Strike

KILLED = -signal.SIGKILL
SEARCH, NO_ROOM = "a search", "no room on the disk"
SweepKind = Callable[[SweepCase], None]
# Functions of a driver, the unit that is counted in them, and how much of it they do at most.
_PLACES = (
    ("fidgpt.sweep.results:ResultsTable.write", "disk", 12),
    ("fidgpt.sweep.runners.attempt:Job.finish", "disk", 4),
    ("fidgpt.sweep.runners.work:Work._begin", "calls", 60),
    ("fidgpt.sweep.runners.work:Work._look", "calls", 200),
)
_ASK = ("fidgpt.sweep.search:Study.ask", "disk", 12)
_TELL = ("fidgpt.sweep.search:Study.close", "disk", 6)


def struck(*drawn: Strike, times: tuple[int, ...] = (1,)) -> SweepKind:
    """One of several strikes, at a moment of chance; each on the command said again."""

    def kind(case: SweepCase) -> None:
        for _ in range(case.draw.choice(times)):
            _strike(case, case.draw.choice(drawn))
        case.finish()

    return kind


def harmed_at_rest(*drawn: Harm) -> SweepKind:
    """A sweep that was stopped, or is done, is damaged while no process runs."""

    def kind(case: SweepCase) -> None:
        if case.draw.random() < 0.7:
            _strike(case, case.draw.choice([strikes.all_killed, strikes.told(signal.SIGTERM)]))
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
        case.end(case.start(*_flags(case), place=place, act=acts.kill), KILLED, *WHOLE)
        case.finish()

    return kind


def power_lost(case: SweepCase) -> None:
    """SIGKILL of all, which takes along what was not synced."""
    power = Power(case.folder / "synced")
    case.listen = power.listen
    _strike(case, strikes.all_killed)
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


_SIGTERM, _SIGINT, _SIGHUP = map(strikes.told, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
_TWICE = strikes.told(signal.SIGINT, signal.SIGINT)
_THREE_TIMES = strikes.told(signal.SIGINT, signal.SIGINT, signal.SIGINT)
_HARMS = (strikes.table_hurt, strikes.done_hurt, strikes.log_removed, strikes.directory_removed)
_ANY = (
    *(strikes.point_killed, strikes.driver_killed, strikes.all_killed),
    *(_SIGTERM, _SIGINT, _TWICE, *map(strikes.harmed, _HARMS)),
)
_ALIVE = (strikes.driver_killed, strikes.all_killed)

# By name: the kind, and how often it is drawn beside the others.
SWEEP_KINDS: dict[str, tuple[SweepKind, int]] = {
    "a point killed": (struck(strikes.point_killed), 4),
    "the driver killed, its points go on": (struck(strikes.driver_killed), 5),
    "all killed": (struck(strikes.all_killed), 5),
    "the driver killed as it writes": (killed_inside(*_PLACES), 5),
    "power lost": (power_lost, 4),
    "SIGTERM, or SIGHUP": (struck(_SIGTERM, _SIGHUP), 3),
    "SIGINT": (struck(_SIGINT), 2),
    "SIGINT, two or three times": (struck(_TWICE, _THREE_TIMES), 3),
    "two drivers at once": (side_by_side(left_alone), 3),
    "two drivers, one of them struck": (
        side_by_side(strikes.point_killed, strikes.driver_killed, _SIGTERM, _TWICE),
        4,
    ),
    NO_ROOM: (struck(strikes.no_room), 3),
    "results damaged": (harmed_at_rest(strikes.table_hurt), 3),
    "results damaged as it runs": (struck(strikes.harmed(strikes.table_hurt)), 1),
    "done.json damaged": (harmed_at_rest(strikes.done_hurt), 3),
    "a log removed as it runs": (struck(strikes.harmed(strikes.log_removed)), 2),
    "a point removed": (harmed_at_rest(strikes.directory_removed), 2),
    "a point removed as it runs": (struck(strikes.harmed(strikes.directory_removed)), 2),
    "two or three of these": (struck(*_ANY, times=(2, 3)), 6),
    "a real driver killed": (real_driver_killed, 1),
    f"{SEARCH}: the driver killed": (struck(*_ALIVE), 4),
    f"{SEARCH}: the driver killed as it asks or tells": (killed_inside(_ASK, _TELL), 4),
    f"{SEARCH}: SIGTERM or SIGINT": (struck(_SIGTERM, _TWICE), 2),
    f"{SEARCH}: power lost": (power_lost, 2),
    f"{SEARCH}: no room on the disk": (struck(strikes.no_room), 2),
    f"{SEARCH}: results damaged": (harmed_at_rest(strikes.table_hurt), 2),
}
