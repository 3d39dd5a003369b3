"""Disturbed commands, each in a directory of its own, and the kinds of faults of single runs."""

import functools
import json
import os
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forked import variables_of_ranks
from run_facts import reproducible

from faults import harm
from faults.harm import Act, Place
from faults.processes import Ended, Process, Spawned, prepare_forks, warm_up
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows

STEPS, EVERY = 10, 3
NO_ROOM = "no room on the disk"
KILLED = -signal.SIGKILL
Kinds = Mapping[str, tuple[Callable[[Any], None], int]]  # by name: the kind, and its share


class Wrong(AssertionError):
    """A fault changed a run in a way that it must not."""


def result_of(run: Path) -> dict[str, Any]:
    """Reads a finished run: its rows without timings, and SHA-256 of its last checkpoint's files.

    Raises:
      Wrong: it has a damaged row, or no good checkpoint.
    """
    metrics = run / "metrics.jsonl"
    rows = read_rows(metrics)
    if len(rows) != len(metrics.read_bytes().splitlines()):
        raise Wrong(f"row {len(rows) + 1} of {metrics} is damaged")
    newest = max(manifest.find(run).items(), default=None)
    if newest is None:
        raise Wrong(f"{run} has no checkpoint")
    if reason := manifest.damage(newest[1]):
        raise Wrong(f"{newest[1]} {reason}")
    files = manifest.read_manifest(newest[1])["files"]
    return {
        "steps": [row["step"] for row in rows],
        **{f"step {row['step']}": reproducible(row) for row in rows},
        "files": {name: seal["sha256"] for name, seal in files.items()},
    }


def refuse_difference(found: Any, expected: Any, *where: str) -> None:
    """Raises Wrong if two results differ in a bit, naming the place."""
    if isinstance(found, dict) and isinstance(expected, dict):
        if found.keys() == expected.keys():
            for key, value in expected.items():
                refuse_difference(found[key], value, *where, key)
            return
        found, expected = sorted(found), sorted(expected)
    if json.dumps(found) != json.dumps(expected):
        raise Wrong(f"{', '.join(where)} is {found}, not {expected}")


class Known(NamedTuple):
    """A command whose undisturbed result is known.

    Attributes:
      arguments: of the command.
      result: of the undisturbed command.
      num_steps: of all points of a sweep.
    """

    arguments: Sequence[str]
    result: dict[str, Any]
    num_steps: int = 0


def kind(
    share: int, function: Callable[..., None], *arguments: Any, **options: Any
) -> tuple[Callable[[Any], None], int]:
    """Return a kind of faults, which calls a function with a case and these arguments."""
    return lambda case: function(case, *arguments, **options), share


class Case:
    """A command in a directory of its own.

    Args:
      known: the command.
      folder: for its outputs.
      draw: makes all random choices.
      run: the directory of the run or sweep; in `folder` by default.

    Attributes:
      refused: the first `error:` that a command ended with.
      at_start: called first in each forked process.
    """

    def __init__(
        self, known: Known, folder: Path, draw: random.Random, run: Path | None = None
    ) -> None:
        self.known = known
        self.folder = folder
        self.draw = draw
        self.run = run or folder / "run"
        self.refused: str | None = None
        self.at_start: Callable[[], None] = lambda: None
        self._alive: list[Process] = []
        self._num_started = 0
        folder.mkdir(parents=True, exist_ok=True)

    def output(self) -> Path:
        """A file for the output of one more process."""
        self._num_started += 1
        return self.folder / f"output-{self._num_started}"

    def fork(
        self,
        arguments: Sequence[str],
        place: Place | None = None,
        act: Act | None = None,
        *,
        first: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Process:
        """Starts a command, disturbed at a place; `first` is called before it."""

        def disturbed() -> None:
            self.at_start()
            first()
            if place is not None and act is not None:
                place.arm(act, self.run.parent)

        return self.started(
            Process(arguments, output=self.output(), disturbed=disturbed, **options)
        )

    def started(self, process: Process) -> Process:
        """Ends this process with the others, if the case goes wrong."""
        self._alive.append(process)
        return process

    def end(self, process: Process, *statuses: int, is_one_of_several: bool = False) -> Ended:
        """Waits for the end of a process; of several, one reports what ended all.

        Raises:
          Wrong: it ended with a traceback, without a message, or with another status.
        """
        ended = process.end()
        self._alive.remove(process)
        if not is_one_of_several:
            self.refused = self.refused or refusal_of(ended)
        if statuses:
            require_status(ended, *statuses)
        return ended

    def finish(self) -> None:
        """Goes on undisturbed, to where the undisturbed command ended.

        Raises:
          Wrong: it does not get there, or something differs.
        """
        raise NotImplementedError

    def end_all(self) -> None:
        """Kills what still runs of a case that went wrong."""
        for process in self._alive:
            os.kill(process.pid, signal.SIGKILL)
            process.end()
        self._alive.clear()


def refusal_of(ended: Ended) -> str | None:
    """Return the `error:` line of a command that was refused.

    Raises:
      Wrong: it ended with a traceback, or without exactly one such line.
    """
    if "Traceback" in ended.output:
        raise Wrong(f"a traceback, status {ended.status}:\n{ended.output[-3000:]}")
    if ended.status != 2:
        return None
    lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    if len(lines) != 1:
        raise Wrong(f"{len(lines)} errors are printed:\n{ended.output[-3000:]}")
    return lines[0]


def refusal_of_several(ended: Sequence[Ended], *, is_one_reporting: bool = True) -> str | None:
    """Return the `error:` of the processes of a run, which are all on this machine.

    Args:
      ended: how each of them ended.
      is_one_reporting: whether they can agree on one that reports it.

    Raises:
      Wrong: a process ended with a traceback, or not exactly one reports an error.
    """
    lines = [
        line for one in ended for line in one.output.splitlines() if line.startswith("error: ")
    ]
    texts = "\n".join(one.output[-3000:] for one in ended)
    if "Traceback" in texts:
        raise Wrong(f"a traceback:\n{texts}")
    has_store = ended[0].status != KILLED and is_one_reporting  # or they cannot agree
    if any(one.status == 2 for one in ended) and (not lines or (has_store and len(lines) > 1)):
        raise Wrong(f"{len(lines)} errors are printed:\n{texts}")
    return lines[0] if lines else None


def require_status(ended: Ended, *statuses: int, output: str = "") -> None:
    """Raise Wrong if a process ended with another status, or with other output."""
    text = " ".join(ended.output.split())
    if ended.status not in statuses or output not in text:
        wanted = " or ".join(map(str, statuses))
        raise Wrong(f"status {ended.status} instead of {wanted}, {output}:\n{ended.output[-3000:]}")


class World:
    """Makes cases; prepares this process for forks.

    Args:
      folder: empty; all lies in it.
      megabytes: size of a small disk.

    Attributes:
      kinds: of faults, and how often each is drawn beside the others.
      has_small_disk: whether the machine lets one be mounted.
    """

    kinds: Kinds

    def __init__(self, folder: Path, *, megabytes: int) -> None:
        self.folder = folder
        self._small = folder / "small"
        self._small.mkdir()
        self.has_small_disk = harm.mounted(self._small, megabytes=megabytes)
        prepare_forks()
        write_texts(folder / "texts")
        os.environ["FIDGPT_CACHE"] = str(folder / "cache")
        self.commands = variants(folder / "texts")

    def run_of(self, kind: str, number: int) -> Path | None:
        """The run directory of a case that needs a small disk; cases share it."""
        if not kind.endswith(NO_ROOM):
            return None
        (self._small / f"{number}").mkdir()
        return self._small / f"{number}" / "run"

    def case(self, kind: str, number: int, draw: random.Random) -> Case:
        """The case of that number."""
        raise NotImplementedError


def variants(texts: Path) -> dict[str, list[str]]:
    """The arguments of the training command for each run, by name.

    Args:
      texts: filled by `write_texts`.
    """
    changes: dict[str, list[str]] = {
        "plain": [],
        "dropout, accumulation": ["set:model.dropout=0.1", "set:micro_batch_size=1"],
        "Muon": ["fiddler:use_muon"],
        "average": ["fiddler:use_ema(beta=0.9)", "set:checkpoints.keep_last=1"],
        "guard": ["fiddler:use_skip_step(window=4, num_deviations=0.5)"],
        "prefetch": ["fiddler:use_prefetch"],
        "mixture": [f'fiddler:use_mixture(texts={{"other": "{texts / "other"}"}})'],
        "saved beside": ["fiddler:use_async_checkpoints"],
        "saved by time, best kept": ["fiddler:save_by_time(0.0005)", "fiddler:keep_best"],
    }
    changes["all of it"] = [one for several in changes.values() for one in several]
    common = [
        "config:debug",
        f"fiddler:use_text({texts / 'own'})",
        "set:data.corpus.shard_tokens=20000",
        f"set:num_steps={STEPS}",
        f"set:checkpoints.every={EVERY}",
        'set:evaluators["validation"].every=2',
        "set:samples=None",
    ]
    return {
        name: [f"--config={directive}" for directive in [*common, *more]]
        for name, more in changes.items()
    }


def write_texts(texts: Path) -> None:
    """Writes two folders of small files of text, the same every time."""
    draw = random.Random(0)
    vocabulary = [f"word{number}" for number in range(16)]
    for folder in ("own", "other"):
        (texts / folder).mkdir(parents=True)
        for number in range(60):
            words = " ".join(draw.choices(vocabulary, k=draw.randrange(50, 300)))
            (texts / folder / f"{number:02d}.txt").write_text(
                words if folder == "own" else words.upper(), encoding="utf-8"
            )


_TRAINER = "fidgpt.train.trainer:Trainer"
_CHECKPOINTS = "fidgpt.train.checkpoints.checkpoints"
STEP = "fidgpt.train.train_step:TrainStep.launch"
CREATE, PREPARE, LOOP, RESTORE = (
    f"{_TRAINER}.{name}" for name in ("_create", "prepare", "_loop", "setup")
)
EVALUATION = "fidgpt.train.evaluation:Validation.__call__"
SAVE, RETIRE = (f"{_CHECKPOINTS}:Checkpoints.{name}" for name in ("save", "_retire"))
WRITE = f"{_CHECKPOINTS}:save_files"
# Of the plain run: how often it calls functions, and how many calls of others, and changes of the
# disk, are in each. Where a run makes fewer, what is to happen does so at the function's end.
TIMES = {STEP: STEPS, EVALUATION: 5, SAVE: 4, WRITE: 4, RETIRE: 4}
AMOUNTS = {
    "calls": {
        **{STEP: 6000, EVALUATION: 2200, SAVE: 20_000, WRITE: 14_000, LOOP: 180_000},
        **{PREPARE: 65_000, RESTORE: 33_000, CREATE: 660},
    },
    "disk": {SAVE: 48, WRITE: 26, LOOP: 260, PREPARE: 134, CREATE: 23, RETIRE: 15},
}


class RunCase(Case):
    """A run in a directory of its own.

    Args:
      num_processes: that share the work.

    Attributes:
      is_damaged: whether checkpoints may differ from what was written.
      is_one_reporting: whether its processes can agree on one that reports an error.
      flags: with which the run is resumed.
      statuses: with which the processes of the last command ended, by rank.
    """

    def __init__(self, *arguments: Any, num_processes: int = 1) -> None:
        super().__init__(*arguments)
        self.is_damaged = False
        self.is_one_reporting = True
        self.flags: list[str] = []
        self.statuses: list[int] = []
        self.num_processes = num_processes
        self._environment: dict[str, str] = {}

    def place(self, *functions: str, units: Sequence[str] = ("calls",)) -> Place:
        """A moment in one of the calls that the undisturbed run makes of one of some functions."""
        function, unit = self.draw.choice(functions), self.draw.choice(units)
        occurrence = self.draw.randrange(TIMES.get(function, 1)) + 1
        return Place(function, occurrence, unit, self.draw.randrange(AMOUNTS[unit][function]))

    def start(self, place: Place | None = None, act: Act | None = None) -> Ended:
        """Begins the run, or goes on with it, disturbed at a place; returns how that ended.

        Raises:
          Wrong: it ended with a traceback, or without a message, or what it had saved is lost.
        """
        rank = self.draw.randrange(self.num_processes)
        is_begun = (self.run / "config.json").exists()
        if is_begun and (self.flags or self.draw.random() < 0.5):
            command = [f"--resume={self.run}", *self.flags]
        else:
            command = [*self.known.arguments, f"--run_dir={self.run}", "--auto_resume"]
        several = variables_of_ranks(self.num_processes) if self.num_processes > 1 else [{}]
        processes = [
            self.fork(
                command,
                place,
                act if number == rank else None,
                environment=self._environment | dict(own),
            )
            for number, own in enumerate(several)
        ]
        is_one = len(processes) > 1
        ended = [self.end(process, is_one_of_several=is_one) for process in processes]
        if is_one:
            self.refused = self.refused or refusal_of_several(
                ended, is_one_reporting=self.is_one_reporting
            )
        self.statuses = [one.status for one in ended]
        if not self.is_damaged:
            beside = any("use_async_checkpoints" in one for one in self.known.arguments)
            refuse_loss(self.run, margin=EVERY if beside else 0)
        return ended[rank]

    def kill(self, *functions: str, units: Sequence[str] = ("calls",)) -> None:
        """Kills the run at some moment in a function.

        Raises:
          Wrong: it ended in another way.
        """
        place = self.place(*functions, units=units)
        ended = self.start(place, harm.kill)
        if ended.status == 0:  # what is due by the clock is not due as often each time
            shutil.rmtree(self.run)
            ended = self.start(place._replace(occurrence=1), harm.kill)
        require_status(ended, KILLED)

    def finish(self) -> None:
        require_status(self.start(), 0)
        refuse_difference(result_of(self.run), self.known.result)

    def own_cache(self) -> Path:
        """The text is prepared for this case alone; returns where."""
        cache = self.folder / "cache"
        self._environment["FIDGPT_CACHE"] = str(cache)
        return cache


def refuse_loss(run: Path, *, margin: int = 0) -> None:
    """Raises Wrong unless each checkpoint is whole, and none that was written is missing.

    Args:
      run: its directory.
      margin: steps for which a checkpoint may still be on its way.
    """
    metrics = run / "metrics.jsonl"
    rows = read_rows(metrics) if metrics.exists() else []
    for path in manifest.find(run).values():
        if reason := manifest.damage(path):
            raise Wrong(f"{path} {reason}")
    done = (rows[-1]["step"] - 1 - margin) // EVERY * EVERY if rows else 0
    if done > 0 and max(manifest.find(run), default=0) < done:
        raise Wrong(f"step {rows[-1]['step']} was begun, and the checkpoint of {done} is missing")


def killed(
    case: RunCase,
    function: str,
    *units: str,
    again: tuple[str, str] | None = None,
    power: bool = False,
) -> None:
    """SIGKILL inside of a function.

    Args:
      case: the run.
      function: the place; where it is `PREPARE`, the case has a cache of its own.
      units: of its moments.
      again: a function and its unit, killed too as the run goes on.
      power: takes along what was not synced.
    """
    if function == PREPARE:
        case.own_cache()
    lost = harm.Power(case.folder / "synced")
    if power:
        case.at_start = lost.record
    case.kill(function, units=units or ("calls",))
    if power:
        lost.fail(case.run.parent)
    if again is not None:
        place = case.place(again[0], units=again[1:])._replace(occurrence=1)
        require_status(case.start(place, harm.kill), KILLED)


def disturbed(
    case: RunCase,
    act: Callable[[RunCase], Act],
    *functions: str,
    statuses: Sequence[int] = (0,),
    units: Sequence[str] = ("calls",),
    removes: bool = False,
) -> None:
    """Something happens in one of some functions, after which the run goes on.

    Args:
      case: the run.
      act: makes what happens.
      functions: the places.
      statuses: with which the process may end.
      units: of moments.
      removes: whether files of the run are gone then.
    """
    case.is_damaged = removes
    require_status(case.start(case.place(*functions, units=units), act(case)), *statuses)
    (case.run.parent / harm.FILLER).unlink(missing_ok=True)


def signalled(case: RunCase, *numbers: int) -> None:
    """Signals anywhere between the first step and the end."""
    ended = case.start(case.place(STEP, EVALUATION, SAVE, WRITE, LOOP), harm.raising(*numbers))
    stopped = 128 + numbers[-1]
    # 0: the last step was done; minus the signal: no handler is set yet, or any more.
    require_status(ended, stopped, 0, -numbers[-1])
    if len(numbers) == 1 and ended.status == stopped:
        require_status(ended, stopped, output="resume with")


def rank_signalled(case: RunCase) -> None:
    """One process of two gets SIGTERM; both stop after the same step, with one status."""
    ended = case.start(case.place(STEP), harm.raising(signal.SIGTERM))
    if set(case.statuses) != {128 + signal.SIGTERM}:
        raise Wrong(f"statuses {case.statuses}:\n{ended.output[-3000:]}")


def damaged(case: RunCase, hurt: harm.Hurt) -> None:
    """A file of a checkpoint differs from what was written."""
    case.kill(LOOP)
    if not (saved := manifest.find(case.run)):
        return
    case.is_damaged = True
    step = case.draw.choice(sorted(saved))
    file = case.draw.choice(sorted(saved[step].iterdir()))
    hurt(file, case.draw)
    if step != max(saved):
        return
    refused = case.start()
    for words in (file.name, f"step_{step:08d}"):
        require_status(refused, 2, output=words)
    if offer := re.search(r"resume from it with (.*)", refused.output):
        case.flags = [one for one in shlex.split(offer[1]) if one.startswith("--resume_step")]
    else:
        require_status(refused, 2, output="start the run again")
        shutil.rmtree(case.run)


def damaged_text(case: RunCase, hurt: harm.Hurt) -> None:
    """A shard of the prepared text differs from what was written; then it is mended."""
    cache = case.own_cache()
    case.kill(LOOP)
    file = case.draw.choice(sorted(cache.rglob("*.bin")))
    good = file.read_bytes()
    hurt(file, case.draw)
    require_status(case.start(), 2, output=file.name)
    file.write_bytes(good)


def hung(case: RunCase) -> None:
    """A step never ends: the watchdog ends the process, with the stacks, to be started again."""
    watched = "--config=fiddler:use_watchdog(seconds=1.5, first_seconds=10)"
    case.known = case.known._replace(arguments=[*case.known.arguments, watched])
    require_status(case.start(case.place(STEP), harm.hang), 1)
    if "Timeout" not in (case.run / "stacks" / "rank0.txt").read_text():
        raise Wrong("the watchdog left no stacks")


def real_process_killed(case: RunCase) -> None:
    """The command as a user starts it, killed at any time."""
    words = ["-m", "fidgpt.cli.train", *case.known.arguments, f"--run_dir={case.run}"]
    process = Spawned(*words, output=case.output())
    while not (case.run / "metrics.jsonl").exists() and not process.has_ended():
        time.sleep(0.005)
    time.sleep(case.draw.uniform(0, 0.5))
    os.kill(process.pid, signal.SIGKILL)
    process.end()


def room_left(case: RunCase) -> Act:
    """The disk is full, but for some bytes."""
    return harm.filled(case.run.parent, left=case.draw.randrange(700_000))


_TWO = "one of two processes"
# By kind: the mesh, on which one process is killed, and the number of its processes.
MESHES = {
    f"a process of {mesh} killed": (mesh, 2 ** mesh.count("="))
    for mesh in ("shard=2", "context=2, tensor=2")
}
_BOTH = ("calls", "disk")
_ANY = (LOOP, SAVE, WRITE)
KINDS: Kinds = {
    "killed in a step": kind(6, killed, STEP),
    "killed anywhere": kind(6, killed, LOOP),
    "killed in a save, between calls": kind(6, killed, SAVE),
    "killed in a save, between changes of the disk": kind(8, killed, WRITE, "disk"),
    "killed as old checkpoints go": kind(3, killed, RETIRE, "disk"),
    "killed in evaluation": kind(4, killed, EVALUATION),
    "killed as the run begins": kind(3, killed, CREATE, "disk"),
    "killed in prepare": kind(6, killed, PREPARE, *_BOTH),
    "killed twice, in the first step again": kind(4, killed, LOOP, again=(STEP, "calls")),
    "killed twice, restoring": kind(4, killed, LOOP, again=(RESTORE, "calls")),
    "killed twice, setting rows back": kind(3, killed, LOOP, again=(LOOP, "disk")),
    "a real process killed": kind(1, real_process_killed),
    "power lost": kind(5, killed, LOOP, power=True),
    "power lost in a save": kind(4, killed, WRITE, "disk", power=True),
    "power lost in prepare": kind(3, killed, PREPARE, "disk", power=True),
    f"{_TWO} killed": kind(3, disturbed, lambda _: harm.kill, LOOP, statuses=(KILLED,)),
    f"{_TWO} stopped": kind(2, rank_signalled),
    "SIGTERM": kind(4, signalled, signal.SIGTERM),
    "SIGUSR1": kind(3, signalled, signal.SIGUSR1),
    "SIGINT": kind(3, signalled, signal.SIGINT),
    "SIGINT twice": kind(4, signalled, signal.SIGINT, signal.SIGINT),
    NO_ROOM: kind(6, disturbed, room_left, *_ANY, CREATE, statuses=(0, 2)),
    "checkpoints removed during the run": kind(
        4,
        disturbed,
        lambda case: harm.removed(case.run / "checkpoints"),
        *_ANY,
        statuses=(0, 2),
        units=_BOTH,
        removes=True,
    ),
    "the run's directory removed": kind(
        2, disturbed, lambda case: harm.removed(case.run), STEP, statuses=(2,), removes=True
    ),
    "checkpoint cut short": kind(4, damaged, harm.truncate),
    "checkpoint with a bit turned": kind(4, damaged, harm.flip),
    "checkpoint without a file": kind(2, damaged, harm.remove),
    "shard with a bit turned": kind(2, damaged_text, harm.flip),
    "shard cut short": kind(2, damaged_text, harm.truncate),
    "a clock that jumps": kind(3, disturbed, lambda case: harm.jumping_clock(case.draw), LOOP),
    "asleep and awake": kind(2, disturbed, lambda _: harm.sleep_and_wake, LOOP),
    "a tracker that breaks": kind(2, disturbed, lambda _: harm.broken_tracker, LOOP),
    "a step that hangs": kind(1, hung),
    **dict.fromkeys(
        MESHES,
        kind(2, disturbed, lambda _: harm.kill, LOOP, STEP, SAVE, RESTORE, statuses=(KILLED,)),
    ),
}


class RunWorld(World):
    """Makes cases of runs.

    Args:
      folder: empty; all lies in it.
      names: of the variants to draw from; empty for all.
    """

    kinds: Kinds = KINDS

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, megabytes=16)
        warm_up([*self.commands["plain"], f"--run_dir={folder / 'warm'}"])
        self._known = {name: self._undisturbed(name) for name in names or self.commands}
        self._of_meshes: dict[str, Known] = {}

    def case(self, kind: str, number: int, draw: random.Random) -> RunCase:
        folder = self.folder / f"case-{number}"
        if kind.startswith(_TWO):
            return RunCase(self._of_two, folder, draw, num_processes=2)
        if kind in MESHES:
            return RunCase(self._on_mesh(kind), folder, draw, num_processes=MESHES[kind][1])
        known = self._known[draw.choice(list(self._known))]
        return RunCase(known, folder, draw, self.run_of(kind, number))

    @functools.cached_property
    def _of_two(self) -> Known:
        """Return the first command on two processes, which is run undisturbed the first time."""
        first = next(iter(self._known.values()))
        folder = self.folder / "undisturbed" / "two"
        two = RunCase(first, folder, random.Random(0), num_processes=2)
        require_status(two.start(), 0)
        return first._replace(result=result_of(two.run))

    def _on_mesh(self, kind: str) -> Known:
        """Return the plain command on a mesh, which is run undisturbed the first time."""
        if kind not in self._of_meshes:
            mesh, size = MESHES[kind]
            words = [f"--config=fiddler:use_mesh({mesh})", "--config=set:parallel.timeout=60"]
            first = next(iter(self._known.values()))
            known = first._replace(arguments=[*self.commands["plain"], *words])
            folder = self.folder / "undisturbed" / mesh.replace(", ", "-")
            case = RunCase(known, folder, random.Random(0), num_processes=size)
            require_status(case.start(), 0)
            self._of_meshes[kind] = known._replace(result=result_of(case.run))
        return self._of_meshes[kind]

    def _undisturbed(self, name: str) -> Known:
        folder = self.folder / "undisturbed" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        words = [*self.commands[name], f"--run_dir={folder / 'run'}"]
        require_status(Process(words, output=folder / "output").end(), 0)
        return Known(self.commands[name], result_of(folder / "run"))
