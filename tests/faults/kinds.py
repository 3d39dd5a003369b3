"""The kinds of faults of runs, and what all cases share: texts, undisturbed runs, a small disk."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faults import harm
from faults.harm import Power
from faults.moments import Place, Survey
from faults.processes import AT_END, Process, ask_once, meet_soon, one_thread, warm_up
from faults.runs import (
    Case,
    Counts,
    Variant,
    Wrong,
    refuse_difference,
    require_status,
    result_of,
    variants,
    write_texts,
)

STEP = "fidgpt.train.trainer:Trainer.update"
EVALUATION = "fidgpt.train.evaluation:Validation.__call__"
SAVE = "fidgpt.train.checkpoints.checkpoints:Checkpoints.save"
WRITE = "fidgpt.train.checkpoints.checkpoints:save_files"
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
    require_status(case.start(place, harm.kill), KILLED)
    case.finish()


def killed_going_on(function: str, unit: str = "calls") -> Kind:
    """SIGKILL, and once more as the run goes on."""

    def kind(case: Case) -> None:
        case.kill(LOOP)
        place = case.place(function, unit)._replace(occurrence=1)
        require_status(case.start(place, harm.kill), KILLED)
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
        ended = case.start(case.place(function), harm.raising(*numbers))
        # 0: the last step was done; minus the signal: nobody listened yet, or any more.
        require_status(ended, 128 + numbers[-1], 0, -numbers[-1])
        asked = len(numbers) == 1 and ended.status == 128 + numbers[-1]
        if asked and "go on with" not in " ".join(ended.output.split()):
            require_status(ended)
        case.finish()

    return kind


def rank_killed(case: Case) -> None:
    """SIGKILL of one process of two; the other one reports it, and both start again."""
    rank = case.draw.randrange(2)
    require_status(case.start(case.place(LOOP), harm.kill, rank=rank), KILLED)
    case.finish()


def rank_signalled(case: Case) -> None:
    """One process of two gets SIGTERM; both stop after the same step, with one status."""
    ended = case.start(case.place(STEP), harm.raising(signal.SIGTERM), rank=case.draw.randrange(2))
    if set(case.statuses) != {128 + signal.SIGTERM}:
        raise Wrong(f"statuses {case.statuses}:\n{ended.output[-3000:]}")
    case.finish()


def disk_full(case: Case) -> None:
    """No room any more, from somewhere on; then there is again."""
    size = 700_000
    act = harm.filled(case.run.parent, left=case.draw.randrange(size))
    require_status(case.start(case.place(case.draw.choice([LOOP, SAVE, WRITE, CREATE])), act), 0, 2)
    (case.run.parent / harm.FILLER).unlink(missing_ok=True)
    case.finish()


def disk_limited(case: Case) -> None:
    """Files may not grow, from somewhere on; then they may again."""
    act = harm.limited(case.draw.randrange(20_000, 350_000))
    require_status(case.start(case.place(case.draw.choice([LOOP, SAVE, WRITE])), act), 0, 2)
    case.finish()


def checkpoints_gone(case: Case) -> None:
    """All checkpoints are removed, at any moment; more are written, or the run reports it."""
    case.is_damaged = True
    place = case.place(case.draw.choice([LOOP, SAVE, WRITE]), case.draw.choice(["calls", "disk"]))
    require_status(case.start(place, harm.removed(case.run / "checkpoints")), 0, 2)
    case.finish()


def run_gone(case: Case) -> None:
    """The whole run is removed in a step; it reports that, and can start again."""
    case.is_damaged = True
    require_status(case.start(case.place(STEP), harm.removed(case.run)), 2)
    case.finish()


def damaged(hurt: harm.Hurt) -> Kind:
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
        require_status(refused, 2)
        if file.name not in refused.output or f"step_{step:08d}" not in refused.output:
            require_status(refused)
        return _take_what_is_offered(case, refused.output)

    return kind


def damaged_text(hurt: harm.Hurt) -> Kind:
    """A shard of the prepared text is not what was written; then it is again."""

    def kind(case: Case) -> None:
        cache = case.own_cache()
        case.kill(LOOP)
        file = case.draw.choice(sorted(cache.rglob("*.bin")))
        good = file.read_bytes()
        hurt(file, case.draw)
        refused = case.start()
        require_status(refused, 2)
        if file.name not in refused.output:
            require_status(refused)
        file.write_bytes(good)
        case.finish()

    return kind


def text_cut_in_a_step(case: Case) -> None:
    """A shard of the prepared text is cut short while the run reads it; then it is whole again."""
    cache, good = case.own_cache(), case.folder / "good"

    def cut() -> None:
        shutil.copytree(cache, good)
        harm.truncate(case.draw.choice(sorted(cache.rglob("*.bin"))), case.draw)

    ended = case.start(case.place(STEP), cut)
    require_status(ended, 0, 2)
    if ended.status == 2 and ".bin was whole" not in " ".join(ended.output.split()):
        require_status(ended)
    shutil.copytree(good, cache, dirs_exist_ok=True)
    case.finish()


def undisturbed_by(act: Callable[[Case], harm.Act]) -> Kind:
    """What must not matter: the run ends at once, as if it had not been."""

    def kind(case: Case) -> None:
        require_status(case.start(case.place(LOOP), act(case)), 0)
        case.finish()

    return kind


def hung(case: Case) -> None:
    """A step never ends: the watchdog ends the process, with the stacks, to be started again."""
    watched = "--config=fiddler:use_watchdog(seconds=1.5)"
    case.variant = case.variant._replace(arguments=[*case.variant.arguments, watched])
    ended = case.start(case.place(STEP), harm.hang)
    require_status(ended, 1)
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
    """Follow the message: resume from an older checkpoint, or start again if none is left."""
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
    "checkpoint cut short": (damaged(harm.truncate), 4),
    "checkpoint with a bit turned": (damaged(harm.flip), 4),
    "checkpoint with a hole": (damaged(harm.zero), 3),
    "checkpoint without a file": (damaged(harm.remove), 2),
    "shard with a bit turned": (damaged_text(harm.flip), 2),
    "shard cut short": (damaged_text(harm.truncate), 2),
    "shard cut short during the run": (text_cut_in_a_step, 2),
    "a clock that jumps": (undisturbed_by(lambda case: harm.jumping_clock(case.draw)), 3),
    "asleep and awake": (undisturbed_by(lambda case: harm.sleep_and_wake), 2),
    "a tracker that breaks": (undisturbed_by(lambda case: harm.broken_tracker), 2),
    "a step that hangs": (hung, 1),
}
TWO_PROCESSES = frozenset(name for name in KINDS if name.startswith("one of two"))


_SMALL_MB = 16
_ON_SMALL_DISK = "no room on the disk"


class World:
    """Makes cases.

    Args:
      folder: empty; all lies in it.
      names: of the variants that are drawn from.

    Attributes:
      has_small_disk: whether the machine lets one be mounted.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._small = folder / "small"
        self._small.mkdir()
        self.has_small_disk = harm.mounted(self._small, megabytes=_SMALL_MB)
        one_thread()
        ask_once()
        meet_soon()
        write_texts(folder / "texts")
        os.environ["FIDGPT_CACHE"] = str(folder / "cache")
        known = variants(folder / "texts")
        warm_up([*known["plain"], f"--run_dir={folder / 'warm'}"])
        self.variants = {name: self._undisturbed(name, known[name]) for name in names}
        self._of_two = self._by_two(self.variants[names[0]])

    def case(self, kind: str, number: int, draw: random.Random) -> Case:
        """The case of that number; a file system is shared, so one after the other."""
        folder = self._folder / f"case-{number}"
        if kind in TWO_PROCESSES:
            return Case(self._of_two, folder, draw, num_processes=2)
        variant = self.variants[draw.choice(list(self.variants))]
        small = self._small / f"{number}" / "run" if kind == _ON_SMALL_DISK else None
        if small is not None:
            small.parent.mkdir()
        return Case(variant, folder, draw, run=small)

    def _undisturbed(self, name: str, arguments: list[str]) -> Variant:
        """Runs it alone, then counted, then counted as it goes on after a kill."""
        folder = self._folder / "undisturbed" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        alone = [*arguments, f"--run_dir={folder / 'alone'}"]
        self._run(alone, folder, disturbed=None)
        result = result_of(folder / "alone")
        counted = _Counted(folder / "counted", folder / "counts.json")
        cold = {"FIDGPT_CACHE": str(folder / "cache")}
        self._run([*arguments, f"--run_dir={folder / 'counted'}"], folder, counted, cold)
        refuse_difference(result_of(folder / "counted"), result)
        counts = counted.counts()
        resumed = _Counted(folder / "killed", folder / "counts.json")
        begin = [*arguments, f"--run_dir={folder / 'killed'}"]
        place = Place(STEP, 5, "calls", 0)
        self._run(begin, folder, lambda: place.arm(harm.kill, folder), status=-9)
        self._run([f"--resume={folder / 'killed'}"], folder, resumed)
        refuse_difference(result_of(folder / "killed"), result)
        going_on = {function: resumed.counts()[function] for function in (RESTORE, GO_ON)}
        return Variant(arguments, result, {**counts, **going_on})

    def _by_two(self, variant: Variant) -> Variant:
        folder = self._folder / "undisturbed" / "two"
        case = Case(variant, folder, random.Random(0), num_processes=2)
        require_status(case.start(), 0)
        return variant._replace(result=result_of(case.run))

    def _run(
        self,
        arguments: Sequence[str],
        folder: Path,
        disturbed: Callable[[], None] | None = None,
        environment: dict[str, str] | None = None,
        *,
        status: int = 0,
    ) -> None:
        output = folder / "output"
        process = Process(arguments, output=output, disturbed=disturbed, environment=environment)
        if (ended := process.end()).status != status:
            raise Wrong(f"the undisturbed run ends with {ended.status}:\n{ended.output}")


class _Counted:
    """Surveys a process, whose counts are to be had once it has ended."""

    def __init__(self, run: Path, file: Path) -> None:
        self._run = run
        self._file = file

    def __call__(self) -> None:
        survey = Survey(FUNCTIONS, self._run.parent)
        AT_END.append(lambda: self._file.write_text(json.dumps(survey.counts)))

    def counts(self) -> Counts:
        return json.loads(self._file.read_text())
