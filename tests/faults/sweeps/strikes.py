"""What happens to a sweep from outside, at whatever moment it is: each tells how that may end."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from faults import acts, damage
from faults.processes import Process
from faults.sweeps.cases import SweepCase
from faults.sweeps.children import children_of

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


def told(*numbers: int) -> Strike:
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
    hurt = [damage.truncate, damage.zero, damage.remove, garbage]
    _hurt_one(case, [file], case.draw.choice(hurt))


def done_hurt(case: SweepCase) -> None:
    """The mark of a point that is done is not what was written."""
    hurt = [damage.truncate, damage.zero, damage.remove, garbage]
    _hurt_one(case, sorted(case.run.glob("*/done.json")), case.draw.choice(hurt))


def log_removed(case: SweepCase) -> None:
    """Somebody removes what a point wrote, which is also the lock of it; or all of that."""
    if case.draw.random() < 0.3:
        shutil.rmtree(case.run / "logs", ignore_errors=True)
    else:
        newest = sorted(case.run.glob("logs/*"), key=lambda path: path.stat().st_mtime)[-2:]
        _hurt_one(case, newest, damage.remove)


def directory_removed(case: SweepCase) -> None:
    """Somebody removes a point, whether it is done or not."""
    found = [path for path in sorted(case.run.glob("*")) if (path / "config.json").exists()]
    if found:
        path = case.draw.choice(found)
        case.lost.add(path.name)
        shutil.rmtree(path, ignore_errors=True)


def no_room(case: SweepCase, driver: Process) -> tuple[int, ...]:
    """No room on the disk for a while, or until the driver ends."""
    filler = case.run.parent / acts.FILLER
    acts.filled(case.run.parent, left=case.draw.choice([0, case.draw.randrange(300_000)]))()
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


def _hurt_one(case: SweepCase, files: list[Path], hurt: damage.Hurt) -> None:
    """Hurts one of some files, unless it is replaced or removed in the same moment."""
    files = [file for file in files if file.exists() and file.stat().st_size]
    if files:
        try:
            hurt(case.draw.choice(files), case.draw)
        except FileNotFoundError:
            return
