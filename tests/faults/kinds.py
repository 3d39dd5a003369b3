"""The kinds of faults of runs, and what is known of the undisturbed ones."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forked import variables_of_ranks

from faults import cases, harm
from faults.moments import Act, Place, Survey
from faults.processes import AT_END, Ended, Process, Spawned, warm_up
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows

_TRAINER = "fidgpt.train.trainer:Trainer"
_CHECKPOINTS = "fidgpt.train.checkpoints.checkpoints"
STEP, CREATE, PREPARE, LOOP, RESTORE, GO_ON = (
    f"{_TRAINER}.{name}" for name in ("update", "_create", "prepare", "_loop", "setup", "_rewind")
)
EVALUATION = "fidgpt.train.evaluation:Validation.__call__"
SAVE, RETIRE = (f"{_CHECKPOINTS}:Checkpoints.{name}" for name in ("save", "_retire"))
WRITE = f"{_CHECKPOINTS}:save_files"
FUNCTIONS = (STEP, EVALUATION, SAVE, WRITE, RETIRE, CREATE, PREPARE, LOOP, RESTORE, GO_ON)


class RunCase(cases.Case):
    """A run in a directory of its own.

    Args:
      num_processes: that share the work.

    Attributes:
      is_damaged: whether checkpoints may differ from what was written.
      statuses: with which the processes of the last command ended, by rank.
    """

    def __init__(self, *arguments: Any, num_processes: int = 1) -> None:
        super().__init__(*arguments)
        self.is_damaged = False
        self.statuses: list[int] = []
        self.num_processes = num_processes
        self._environment: dict[str, str] = {}

    def place(self, *functions: str, units: Sequence[str] = ("calls",)) -> Place:
        """A moment in one of the calls that the undisturbed run makes of one of some functions."""
        function, unit = self.draw.choice(functions), self.draw.choice(units)
        counts = self.known.counts[function][unit]
        occurrence = self.draw.randrange(len(counts)) + 1
        return Place(function, occurrence, unit, self.draw.randint(0, counts[occurrence - 1]))

    def start(self, place: Place | None = None, act: Act | None = None, *flags: str) -> Ended:
        """Begins the run, or goes on with it, disturbed at a place; returns how that ended.

        Raises:
          Wrong: it ended with a traceback, or without a message, or what it had saved is lost.
        """
        rank = self.draw.randrange(self.num_processes)
        is_begun = (self.run / "config.json").exists()
        if is_begun and (flags or self.draw.random() < 0.5):
            command = [f"--resume={self.run}", *flags]
        else:
            command = [*self.known.arguments, f"--run_dir={self.run}", "--auto_resume", *flags]
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
        ended = [self.end(process) for process in processes]
        self.statuses = [one.status for one in ended]
        if not self.is_damaged:
            beside = any("use_async_checkpoints" in one for one in self.known.arguments)
            refuse_loss(self.run, margin=cases.EVERY if beside else 0)
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
        cases.require_status(ended, cases.KILLED)

    def finish(self, *flags: str) -> None:
        """Goes on undisturbed, to where the undisturbed run ended.

        Raises:
          Wrong: it does not get there, or something differs.
        """
        cases.require_status(self.start(None, None, *flags), 0)
        cases.refuse_difference(cases.result_of(self.run), self.known.result)

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
            raise cases.Wrong(f"{path} {reason}")
    done = (rows[-1]["step"] - 1 - margin) // cases.EVERY * cases.EVERY if rows else 0
    if done > 0 and max(manifest.find(run), default=0) < done:
        raise cases.Wrong(
            f"step {rows[-1]['step']} was begun, and the checkpoint of {done} is missing"
        )


Kind = Callable[[RunCase], None]


def killed(
    function: str, *units: str, again: tuple[str, str] | None = None, power: bool = False
) -> Kind:
    """SIGKILL inside of a function.

    Args:
      function: the place; where it is `PREPARE`, the case has a cache of its own.
      units: of its moments.
      again: a function and its unit, killed too as the run goes on.
      power: takes along what was not synced.
    """

    def kind(case: RunCase) -> None:
        if function == PREPARE:
            case.own_cache()
        lost = harm.Power(case.folder / "synced")
        if power:
            case.listen = lost.listen
        case.kill(function, units=units or ("calls",))
        if power:
            lost.fail(case.run.parent)
        if again is not None:
            place = case.place(again[0], units=again[1:])._replace(occurrence=1)
            cases.require_status(case.start(place, harm.kill), cases.KILLED)
        case.finish()

    return kind


def disturbed(
    act: Callable[[RunCase], Act],
    *functions: str,
    statuses: tuple[int, ...] = (0,),
    units: Sequence[str] = ("calls",),
    removes: bool = False,
) -> Kind:
    """Something happens in one of some functions, after which the run goes on.

    Args:
      act: makes what happens.
      functions: the places.
      statuses: with which the process may end.
      units: of moments.
      removes: whether files of the run are gone then.
    """

    def kind(case: RunCase) -> None:
        case.is_damaged = removes
        cases.require_status(case.start(case.place(*functions, units=units), act(case)), *statuses)
        (case.run.parent / harm.FILLER).unlink(missing_ok=True)
        case.finish()

    return kind


def signalled(*numbers: int) -> Kind:
    """Signals anywhere between the first step and the end."""

    def kind(case: RunCase) -> None:
        place = case.place(STEP, EVALUATION, SAVE, WRITE, LOOP)
        ended = case.start(place, harm.raising(*numbers))
        stopped = 128 + numbers[-1]
        # 0: the last step was done; minus the signal: no handler is set yet, or any more.
        cases.require_status(ended, stopped, 0, -numbers[-1])
        if len(numbers) == 1 and ended.status == stopped:
            cases.require_status(ended, stopped, output="go on with")
        case.finish()

    return kind


def rank_signalled(case: RunCase) -> None:
    """One process of two gets SIGTERM; both stop after the same step, with one status."""
    ended = case.start(case.place(STEP), harm.raising(signal.SIGTERM))
    if set(case.statuses) != {128 + signal.SIGTERM}:
        raise cases.Wrong(f"statuses {case.statuses}:\n{ended.output[-3000:]}")
    case.finish()


def damaged(hurt: harm.Hurt) -> Kind:
    """A file of a checkpoint differs from what was written."""

    def kind(case: RunCase) -> None:
        case.kill(LOOP)
        saved = manifest.find(case.run)
        if not saved:
            return case.finish()
        case.is_damaged = True
        step = case.draw.choice(sorted(saved))
        file = case.draw.choice(sorted(saved[step].iterdir()))
        hurt(file, case.draw)
        if step != max(saved):
            return case.finish()
        refused = case.start()
        for words in (file.name, f"step_{step:08d}"):
            cases.require_status(refused, 2, output=words)
        if offer := re.search(r"resume from it with (.*)", refused.output):
            flags = [one for one in shlex.split(offer[1]) if one.startswith("--resume_step")]
            return case.finish(*flags)
        cases.require_status(refused, 2, output="start the run again")
        shutil.rmtree(case.run)
        return case.finish()

    return kind


def damaged_text(hurt: harm.Hurt) -> Kind:
    """A shard of the prepared text differs from what was written; then it is mended."""

    def kind(case: RunCase) -> None:
        cache = case.own_cache()
        case.kill(LOOP)
        file = case.draw.choice(sorted(cache.rglob("*.bin")))
        good = file.read_bytes()
        hurt(file, case.draw)
        cases.require_status(case.start(), 2, output=file.name)
        file.write_bytes(good)
        case.finish()

    return kind


def text_cut_in_a_step(case: RunCase) -> None:
    """A shard of the prepared text is cut short while the run reads it; then it is mended."""
    cache, good = case.own_cache(), case.folder / "good"

    def cut() -> None:
        shutil.copytree(cache, good)
        harm.truncate(case.draw.choice(sorted(cache.rglob("*.bin"))), case.draw)

    ended = case.start(case.place(STEP), cut)
    cases.require_status(ended, 0, 2, output=".bin was whole" if ended.status else "")
    shutil.copytree(good, cache, dirs_exist_ok=True)
    case.finish()


def hung(case: RunCase) -> None:
    """A step never ends: the watchdog ends the process, with the stacks, to be started again."""
    watched = "--config=fiddler:use_watchdog(seconds=1.5)"
    case.known = case.known._replace(arguments=[*case.known.arguments, watched])
    cases.require_status(case.start(case.place(STEP), harm.hang), 1)
    if "Timeout" not in (case.run / "stacks" / "rank0.txt").read_text():
        raise cases.Wrong("the watchdog left no stacks")
    case.finish()


def real_process_killed(case: RunCase) -> None:
    """The command as a user starts it, killed at any time."""
    words = ["-m", "fidgpt.cli.train", *case.known.arguments, f"--run_dir={case.run}"]
    process = Spawned(*words, output=case.output())
    while not (case.run / "metrics.jsonl").exists() and not process.has_ended():
        time.sleep(0.005)
    time.sleep(case.draw.uniform(0, 0.5))
    os.kill(process.pid, signal.SIGKILL)
    process.end()
    case.finish()


def _fill(case: RunCase) -> Act:
    return harm.filled(case.run.parent, left=case.draw.randrange(700_000))


def _limit(case: RunCase) -> Act:
    return harm.limited(case.draw.randrange(20_000, 350_000))


_TWO = "one of two processes"
_BOTH = ("calls", "disk")
KINDS: dict[str, tuple[Kind, int]] = {
    "killed in a step": (killed(STEP), 6),
    "killed anywhere": (killed(LOOP), 6),
    "killed in a save, between calls": (killed(SAVE), 6),
    "killed in a save, between changes of the disk": (killed(WRITE, "disk"), 8),
    "killed as old checkpoints go": (killed(RETIRE, "disk"), 3),
    "killed in evaluation": (killed(EVALUATION), 4),
    "killed as the run begins": (killed(CREATE, "disk"), 3),
    "killed in prepare": (killed(PREPARE, *_BOTH), 6),
    "killed twice, in the first step again": (killed(LOOP, again=(STEP, "calls")), 4),
    "killed twice, restoring": (killed(LOOP, again=(RESTORE, "calls")), 4),
    "killed twice, setting rows back": (killed(LOOP, again=(LOOP, "disk")), 3),
    "a real process killed": (real_process_killed, 1),
    "power lost": (killed(LOOP, power=True), 5),
    "power lost in a save": (killed(WRITE, "disk", power=True), 4),
    "power lost as the run begins": (killed(CREATE, "disk", power=True), 2),
    "power lost in prepare": (killed(PREPARE, "disk", power=True), 3),
    f"{_TWO} killed": (disturbed(lambda _: harm.kill, LOOP, statuses=(cases.KILLED,)), 3),
    f"{_TWO} stopped": (rank_signalled, 2),
    "SIGTERM": (signalled(signal.SIGTERM), 4),
    "SIGUSR1": (signalled(signal.SIGUSR1), 3),
    "SIGINT": (signalled(signal.SIGINT), 3),
    "SIGINT twice": (signalled(signal.SIGINT, signal.SIGINT), 4),
    cases.NO_ROOM: (disturbed(_fill, LOOP, SAVE, WRITE, CREATE, statuses=(0, 2)), 6),
    "files may not grow": (disturbed(_limit, LOOP, SAVE, WRITE, statuses=(0, 2)), 2),
    "checkpoints removed during the run": (
        disturbed(
            lambda case: harm.removed(case.run / "checkpoints"),
            *(LOOP, SAVE, WRITE),
            statuses=(0, 2),
            units=_BOTH,
            removes=True,
        ),
        4,
    ),
    "the run's directory removed": (
        disturbed(lambda case: harm.removed(case.run), STEP, statuses=(2,), removes=True),
        2,
    ),
    "checkpoint cut short": (damaged(harm.truncate), 4),
    "checkpoint with a bit turned": (damaged(harm.flip), 4),
    "checkpoint with a hole": (damaged(harm.zero), 3),
    "checkpoint without a file": (damaged(harm.remove), 2),
    "shard with a bit turned": (damaged_text(harm.flip), 2),
    "shard cut short": (damaged_text(harm.truncate), 2),
    "shard cut short during the run": (text_cut_in_a_step, 2),
    "a clock that jumps": (disturbed(lambda case: harm.jumping_clock(case.draw), LOOP), 3),
    "asleep and awake": (disturbed(lambda _: harm.sleep_and_wake, LOOP), 2),
    "a tracker that breaks": (disturbed(lambda _: harm.broken_tracker, LOOP), 2),
    "a step that hangs": (hung, 1),
}


class RunWorld(cases.World):
    """Makes cases of runs.

    Args:
      folder: empty; all lies in it.
      choose: returns the names of the variants to draw from, given all.
    """

    kinds: cases.Kinds = KINDS

    def __init__(self, folder: Path, choose: Callable[[list[str]], Sequence[str]]) -> None:
        super().__init__(folder, megabytes=16)
        warm_up([*self.commands["plain"], f"--run_dir={folder / 'warm'}"])
        self._known = {name: self._undisturbed(name) for name in choose([*self.commands])}
        first = next(iter(self._known.values()))
        two = RunCase(first, folder / "undisturbed" / "two", random.Random(0), num_processes=2)
        cases.require_status(two.start(), 0)
        self._of_two = first._replace(result=cases.result_of(two.run))

    def case(self, kind: str, number: int, draw: random.Random) -> RunCase:
        folder = self.folder / f"case-{number}"
        if kind.startswith(_TWO):
            return RunCase(self._of_two, folder, draw, num_processes=2)
        known = self._known[draw.choice(list(self._known))]
        return RunCase(known, folder, draw, self.run_of(kind, number))

    def _undisturbed(self, name: str) -> cases.Known:
        """Runs it alone, then counted, then counted as it goes on after a kill."""
        folder = self.folder / "undisturbed" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        alone, counted, killed = (folder / name for name in ("alone", "counted", "killed"))
        arguments = self.commands[name]

        def run(
            *words: str, into: Path, first: Callable[[], None] | None = None, status: int = 0
        ) -> dict[str, Any]:
            # What is counted prepares its text too.
            cache = {"FIDGPT_CACHE": str(folder / "cache")} if into == counted else {}
            process = Process(words, output=folder / "output", disturbed=first, environment=cache)
            cases.require_status(process.end(), status)
            return {} if status else cases.result_of(into)

        result = run(*arguments, f"--run_dir={alone}", into=alone)
        counts = folder / "counts.json"

        def count() -> None:
            survey = Survey(FUNCTIONS, folder)
            AT_END.append(lambda: counts.write_text(json.dumps(survey.counts)))

        found = run(*arguments, f"--run_dir={counted}", into=counted, first=count)
        cases.refuse_difference(found, result)
        begun: cases.Counts = json.loads(counts.read_text())
        place = Place(STEP, 5, "calls", 0)
        run(
            *arguments,
            f"--run_dir={killed}",
            into=killed,
            first=lambda: place.arm(harm.kill, folder),
            status=cases.KILLED,
        )
        cases.refuse_difference(run(f"--resume={killed}", into=killed, first=count), result)
        resumed: cases.Counts = json.loads(counts.read_text())
        going_on = {function: resumed[function] for function in (RESTORE, GO_ON)}
        return cases.Known(arguments, result, {**begun, **going_on})
