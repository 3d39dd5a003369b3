"""What people and machines do to the directory of a run: send, share, edit or stop it."""

import errno
import os
import shutil
import signal
import time

from faults import harm
from faults.cases import (
    CREATE,
    LOOP,
    SAVE,
    STEP,
    WRITE,
    Kinds,
    RunCase,
    RunWorld,
    Wrong,
    disturbed,
    kind,
    require_status,
    signalled,
)
from faults.processes import PATIENCE, TRAIN, Spawned

NOBODY = 65534
_KEPT = ("config.json", "metrics.jsonl")  # without which it is another run, or has no rows
_FOLDERS = ("inbox/a run of mine (2)", "рun", "renamed")
_NOTICE = 4.0  # seconds until a process that sleeps is missed


def begun(case: RunCase) -> bool:
    """Kill the run; return whether it had a directory by then."""
    case.kill(LOOP)
    return (case.run / "config.json").exists()


def sent(case: RunCase) -> None:
    """The directory arrives elsewhere, without one of its files, and its old place is gone."""
    if not begun(case):
        return
    there = case.folder / case.draw.choice(_FOLDERS)
    shutil.copytree(case.run, there)
    shutil.rmtree(case.run)
    case.run = there
    names = sorted(path.name for path in there.iterdir() if path.is_file())
    lost = case.draw.choice(["", *(name for name in names if name not in _KEPT)])
    if lost:
        (there / lost).unlink()


def another_users(case: RunCase) -> None:
    """Another user, who may only read it, tries to resume it, and then resumes a copy."""
    if not begun(case) or os.getuid():
        return
    mine = case.at_start
    case.flags = ["--debug=false"]  # it is resumed, and not begun again
    case.at_start = lambda: os.setuid(NOBODY)
    require_status(case.start(), 2, output="cannot be")
    case.at_start, case.flags = mine, []


def edited(case: RunCase) -> None:
    """A number in its config is changed by hand, which is reported; the run starts again."""
    if not begun(case):
        return
    path = case.run / "config.json"
    good = path.read_text()
    path.write_text(good.replace("0.95", "0.94"))
    ended = case.start()
    if "was edited" not in ended.output:
        require_status(ended, 2)
    shutil.rmtree(case.run)


def shared(case: RunCase) -> None:
    """Another process starts the same run while it goes on."""
    reached, go_on = case.folder / "reached", case.folder / "go_on"

    def wait() -> None:
        reached.touch()
        while not go_on.exists():
            time.sleep(0.01)

    arguments = [*case.known.arguments, f"--run_dir={case.run}", "--auto_resume"]
    first = case.fork(arguments, case.place(STEP, SAVE, LOOP), wait)
    deadline = time.monotonic() + PATIENCE
    while not reached.exists() and not first.has_ended() and time.monotonic() < deadline:
        time.sleep(0.01)
    second = case.fork([f"--resume={case.run}"] if case.draw.random() < 0.5 else arguments)
    if not first.has_ended():
        case.end(second, 2, is_one_of_several=True)
    go_on.touch()
    case.end(first, 0)


def read_only(case: RunCase) -> harm.Act:
    """From now on nothing in the directory can be written."""
    return lambda: harm.refuse_changes(case.run, errno.EROFS)


def overslept(case: RunCase) -> None:
    """One process of two sleeps for longer than the other one waits."""
    timeout = f"--config=set:parallel.timeout={_NOTICE}"
    case.known = case.known._replace(arguments=[*case.known.arguments, timeout])

    def sleep() -> None:
        harm.sleep_and_wake(seconds=3 * _NOTICE)

    case.is_one_reporting = False  # each misses the other
    case.start(case.place(STEP), sleep)
    if 0 not in case.statuses and not {*case.statuses} <= {1, 2, -signal.SIGABRT}:
        raise Wrong(f"statuses {case.statuses}")


def interrupted(case: RunCase) -> None:
    """Ctrl-C, once or twice, or a terminal that is closed, where processes have a launcher."""
    number = case.draw.choice([signal.SIGINT, signal.SIGINT, signal.SIGHUP])
    launch = ["-m", "fidgpt.launch", "--standalone", "--nproc-per-node=2", TRAIN]
    process = case.started(
        Spawned(
            *launch,
            *case.known.arguments,
            f"--run_dir={case.run}",
            "--auto_resume",
            output=case.output(),
            environment={"OMP_NUM_THREADS": "1"},
        )
    )
    while not (case.run / "metrics.jsonl").exists() and not process.has_ended():
        time.sleep(0.005)
    for _ in range(case.draw.choice([1, 2])):
        time.sleep(case.draw.uniform(0, 0.5))
        if not process.has_ended():
            os.killpg(process.pid, number)  # a terminal sends it to all
    case.end(process, 0, 128 + number, -number, is_one_of_several=True)


KINDS: Kinds = {
    "SIGHUP": kind(2, signalled, signal.SIGHUP),
    "sent to another place": kind(4, sent),
    "resumed by another user": kind(2, another_users),
    "its config edited": kind(2, edited),
    "started twice": kind(3, shared),
    "a disk that becomes read-only": kind(
        4, disturbed, read_only, LOOP, SAVE, WRITE, CREATE, statuses=(0, 2), units=("calls",)
    ),
    "one of two processes asleep": kind(2, overslept),
    "one of two processes and their launcher interrupted": kind(1, interrupted),
}
ALL_KINDS: Kinds = {**RunWorld.kinds, **KINDS}


class PeopleWorld(RunWorld):
    """Makes cases of single runs, of all kinds."""

    kinds: Kinds = ALL_KINDS
