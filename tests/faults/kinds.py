"""The kinds of faults: what strikes where, how the run must end, and how it goes on."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from faults import acts, damage
from faults.cases import Case
from faults.power import Power
from faults.results import Wrong

STEP = "fidgpt.train.trainer:Trainer.update"
EVALUATION = "fidgpt.train.evaluation:Validation.__call__"
SAVE = "fidgpt.train.checkpoints.checkpoints:Checkpoints.save"
WRITE = "fidgpt.train.checkpoints.checkpoints:save_draft"
RETIRE = "fidgpt.train.checkpoints.checkpoints:Checkpoints._retire"
CREATE = "fidgpt.train.trainer:Trainer._create"
PREPARE = "fidgpt.train.trainer:Trainer.prepare"
LOOP = "fidgpt.train.trainer:Trainer._loop"
RESTORE = "fidgpt.train.trainer:Trainer.setup"
GO_ON = "fidgpt.train.trainer:Trainer._rewind"
FUNCTIONS = (STEP, EVALUATION, SAVE, WRITE, RETIRE, CREATE, PREPARE, LOOP, RESTORE, GO_ON)

KILLED = -signal.SIGKILL
Kind = Callable[[Case], None]


def killed(function: str, unit: str = "calls") -> Kind:
    """SIGKILL inside of a function."""

    def kind(case: Case) -> None:
        case.kill(function, unit)
        case.finish()

    return kind


def killed_preparing(case: Case) -> None:
    """SIGKILL while the text is prepared, which goes on where it was."""
    case.own_cache()
    place = case.place(PREPARE, case.draw.choice(["calls", "disk"]))
    case.require(case.start(place, acts.kill), KILLED)
    case.finish()


def killed_going_on(function: str, unit: str = "calls") -> Kind:
    """SIGKILL, and once more as the run goes on."""

    def kind(case: Case) -> None:
        case.kill(LOOP)
        place = case.place(function, unit)._replace(occurrence=1)
        case.require(case.start(place, acts.kill), KILLED)
        case.finish()

    return kind


def power_lost(function: str, unit: str = "calls") -> Kind:
    """A kill that takes along what was not synced."""

    def kind(case: Case) -> None:
        power = Power(case.folder / "synced")
        case.listen = power.listen
        case.kill(function, unit)
        power.fail(case.run.parent)
        case.finish()

    return kind


def power_lost_preparing(case: Case) -> None:
    """The same, of a text that is prepared."""
    case.own_cache()
    return power_lost(PREPARE, "disk")(case)


def signalled(*numbers: int) -> Kind:
    """Signals anywhere between the first step and the end."""

    def kind(case: Case) -> None:
        function = case.draw.choice([STEP, EVALUATION, SAVE, WRITE, LOOP])
        ended = case.start(case.place(function), acts.told(*numbers))
        # 0: the last step was done; minus the signal: nobody listened yet, or any more.
        case.require(ended, 128 + numbers[-1], 0, -numbers[-1])
        asked = len(numbers) == 1 and ended.status == 128 + numbers[-1]
        if asked and "go on with" not in " ".join(ended.output.split()):
            case.require(ended)
        case.finish()

    return kind


def rank_killed(case: Case) -> None:
    """SIGKILL of one process of two; the other one says so, and both start again."""
    rank = case.draw.randrange(2)
    case.require(case.start(case.place(LOOP), acts.kill, rank=rank), KILLED)
    case.finish()


def rank_signalled(case: Case) -> None:
    """One process of two is told to stop; both stop after the same step, with one status."""
    ended = case.start(case.place(STEP), acts.told(signal.SIGTERM), rank=case.draw.randrange(2))
    if set(case.statuses) != {128 + signal.SIGTERM}:
        raise Wrong(f"statuses {case.statuses}:\n{ended.output[-3000:]}")
    case.finish()


def disk_full(case: Case) -> None:
    """No room any more, from somewhere on; then there is again."""
    size = 700_000
    act = acts.filled(case.run.parent, left=case.draw.randrange(size))
    case.require(case.start(case.place(case.draw.choice([LOOP, SAVE, WRITE, CREATE])), act), 0, 2)
    (case.run.parent / acts.FILLER).unlink(missing_ok=True)
    case.finish()


def disk_limited(case: Case) -> None:
    """Files may not grow, from somewhere on; then they may again."""
    act = acts.limited(case.draw.randrange(20_000, 350_000))
    case.require(case.start(case.place(case.draw.choice([LOOP, SAVE, WRITE])), act), 0, 2)
    case.finish()


def checkpoints_gone(case: Case) -> None:
    """Somebody removes all checkpoints, at any moment; more are written, or the run says so."""
    case.is_damaged = True
    place = case.place(case.draw.choice([LOOP, SAVE, WRITE]), case.draw.choice(["calls", "disk"]))
    case.require(case.start(place, acts.removed(case.run / "checkpoints")), 0, 2)
    case.finish()


def run_gone(case: Case) -> None:
    """Somebody removes the whole run in a step; it says so, and can begin again."""
    case.is_damaged = True
    case.require(case.start(case.place(STEP), acts.removed(case.run)), 2)
    case.finish()


def damaged(hurt: damage.Hurt) -> Kind:
    """A file of a checkpoint is not what was written."""

    def kind(case: Case) -> None:
        case.kill(LOOP)
        saved = case.checkpoints()
        if not saved:
            return case.finish()
        case.is_damaged = True
        newest = max(saved)
        step = case.draw.choice(sorted(saved))
        file = case.draw.choice(sorted(saved[step].iterdir()))
        hurt(file, case.draw)
        if step != newest:
            return case.finish()
        refused = case.start()
        case.require(refused, 2)
        if file.name not in refused.output or f"step_{step:08d}" not in refused.output:
            case.require(refused)
        return _take_what_is_offered(case, refused.output)

    return kind


def damaged_text(hurt: damage.Hurt) -> Kind:
    """A shard of the prepared text is not what was written; then it is again."""

    def kind(case: Case) -> None:
        cache = case.own_cache()
        case.kill(LOOP)
        file = case.draw.choice(sorted(cache.rglob("*.bin")))
        good = file.read_bytes()
        hurt(file, case.draw)
        refused = case.start()
        case.require(refused, 2)
        if file.name not in refused.output:
            case.require(refused)
        file.write_bytes(good)
        case.finish()

    return kind


def text_cut_in_a_step(case: Case) -> None:
    """A shard of the prepared text is cut short while the run reads it; then it is whole again."""
    cache, good = case.own_cache(), case.folder / "good"

    def cut() -> None:
        shutil.copytree(cache, good)
        damage.truncate(case.draw.choice(sorted(cache.rglob("*.bin"))), case.draw)

    ended = case.start(case.place(STEP), cut)
    case.require(ended, 0, 2)
    if ended.status == 2 and ".bin was whole" not in " ".join(ended.output.split()):
        case.require(ended)
    shutil.copytree(good, cache, dirs_exist_ok=True)
    case.finish()


def undisturbed_by(act: Callable[[Case], acts.Act]) -> Kind:
    """What must not matter: the run ends at once, as if it had not been."""

    def kind(case: Case) -> None:
        case.require(case.start(case.place(LOOP), act(case)), 0)
        case.finish()

    return kind


def hung(case: Case) -> None:
    """A step never ends: the watchdog ends the process, with the stacks, to be started again."""
    watched = "--config=fiddler:use_watchdog(seconds=1.5)"
    case.variant = case.variant._replace(arguments=[*case.variant.arguments, watched])
    ended = case.start(case.place(STEP), acts.hang)
    case.require(ended, 1)
    if "Timeout" not in (case.run / "stacks" / "rank0.txt").read_text():
        raise Wrong("the watchdog left no stacks")
    case.finish()


def real_process_killed(case: Case) -> None:
    """The command as a user starts it, killed at any time."""
    command = [sys.executable, "-m", "fidgpt.cli.train", *case.variant.arguments]
    process = subprocess.Popen(
        [*command, f"--run_dir={case.run}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    metrics = case.run / "metrics.jsonl"
    while not metrics.exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(case.draw.uniform(0, 0.5))
    process.kill()
    process.wait()
    case.finish()


def _take_what_is_offered(case: Case, output: str) -> None:
    """Does what the message says: goes on from an older checkpoint, or anew where none is left."""
    offer = re.search(r"resume from it with (.*)", output)
    if offer:
        flags = [one for one in shlex.split(offer[1]) if one.startswith("--resume_step")]
        return case.finish(*flags)
    if "start the run again" in output:
        shutil.rmtree(case.run)
    else:
        raise Wrong(f"nothing is offered:\n{output}")
    case.finish()


# By name: the kind, and how often it is drawn beside the others.
KINDS: dict[str, tuple[Kind, int]] = {
    "killed in a step": (killed(STEP), 6),
    "killed anywhere": (killed(LOOP), 6),
    "killed in a save, between calls": (killed(SAVE), 6),
    "killed in a save, between changes of the disk": (killed(WRITE, "disk"), 8),
    "killed as old checkpoints go": (killed(RETIRE, "disk"), 3),
    "killed in evaluation": (killed(EVALUATION), 4),
    "killed as the run begins": (killed(CREATE, "disk"), 3),
    "killed in prepare": (killed_preparing, 6),
    "killed twice, in the first step again": (killed_going_on(STEP), 4),
    "killed twice, restoring": (killed_going_on(RESTORE), 4),
    "killed twice, setting rows back": (killed_going_on(LOOP, "disk"), 3),
    "a real process killed": (real_process_killed, 1),
    "power lost": (power_lost(LOOP), 5),
    "power lost in a save": (power_lost(WRITE, "disk"), 4),
    "power lost as the run begins": (power_lost(CREATE, "disk"), 2),
    "power lost in prepare": (power_lost_preparing, 3),
    "one of two processes killed": (rank_killed, 3),
    "one of two processes told to stop": (rank_signalled, 2),
    "SIGTERM": (signalled(signal.SIGTERM), 4),
    "SIGUSR1": (signalled(signal.SIGUSR1), 3),
    "SIGINT": (signalled(signal.SIGINT), 3),
    "SIGINT twice": (signalled(signal.SIGINT, signal.SIGINT), 4),
    "no room on the disk": (disk_full, 6),
    "files may not grow": (disk_limited, 2),
    "checkpoints removed during the run": (checkpoints_gone, 4),
    "the run's directory removed": (run_gone, 2),
    "checkpoint cut short": (damaged(damage.truncate), 4),
    "checkpoint with a bit turned": (damaged(damage.flip), 4),
    "checkpoint with a hole": (damaged(damage.zero), 3),
    "checkpoint without a file": (damaged(damage.remove), 2),
    "shard with a bit turned": (damaged_text(damage.flip), 2),
    "shard cut short": (damaged_text(damage.truncate), 2),
    "shard cut short during the run": (text_cut_in_a_step, 2),
    "a clock that jumps": (undisturbed_by(lambda case: acts.jumping_clock(case.draw)), 3),
    "asleep and awake": (undisturbed_by(lambda case: acts.sleep_and_wake), 2),
    "a tracker that breaks": (undisturbed_by(lambda case: acts.broken_tracker), 2),
    "a step that hangs": (hung, 1),
}
TWO_PROCESSES = frozenset(name for name in KINDS if name.startswith("one of two"))
