"""The runs that are disturbed, what they leave, and what must hold of each of them."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forked import variables_of_ranks

from faults import harm
from faults.harm import Act
from faults.moments import Place
from faults.processes import Ended, Process
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows, reproducible

STEPS, EVERY = 10, 3
WORDS = [f"word{number}" for number in range(16)]


def variants(texts: Path) -> dict[str, list[str]]:
    """The arguments of the training command for each run, by name.

    Args:
      texts: has been filled by `write_texts`.
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
    """Two folders of small files of text, alike every time."""
    draw = random.Random(0)
    for folder in ("own", "other"):
        (texts / folder).mkdir(parents=True)
        for number in range(60):
            words = " ".join(draw.choices(WORDS, k=draw.randrange(50, 300)))
            (texts / folder / f"{number:02d}.txt").write_text(
                words if folder == "own" else words.upper(), encoding="utf-8"
            )


class Wrong(AssertionError):
    """What a fault must not do to a run was done."""


class Result(NamedTuple):
    """What must be alike.

    Attributes:
      rows: of `metrics.jsonl`, without what a clock measured.
      files: SHA-256 of each file of the last checkpoint: weights, optimizer, averages, data.
    """

    rows: list[dict[str, Any]]
    files: dict[str, str]


def result_of(run: Path) -> Result:
    """Reads a run that is done.

    Raises:
      Wrong: it left no rows, or no good checkpoint.
    """
    metrics = run / "metrics.jsonl"
    rows = read_rows(metrics)
    if len(rows) != len(metrics.read_bytes().splitlines()):
        raise Wrong(f"row {len(rows) + 1} of {metrics} is none")
    newest = max(manifest.find(run).items(), default=None)
    if newest is None:
        raise Wrong(f"{run} has no checkpoint")
    if reason := manifest.damage(newest[1]):
        raise Wrong(f"{newest[1]} {reason}")
    files = manifest.read_manifest(newest[1])["files"]
    return Result(
        [reproducible(row) for row in rows],
        {name: seal["sha256"] for name, seal in files.items()},
    )


def refuse_difference(found: Result, expected: Result) -> None:
    """Raise Wrong if two results differ in a bit, naming it."""
    steps = [row["step"] for row in found.rows]
    if steps != (wanted := [row["step"] for row in expected.rows]):
        raise Wrong(f"the rows are of steps {steps} instead of {wanted}")
    for one, other in zip(found.rows, expected.rows, strict=True):
        if json.dumps(one) != json.dumps(other):
            keys = sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))
            raise Wrong(
                f"step {one['step']}: {keys[0]} is {one.get(keys[0])}, not {other.get(keys[0])}"
            )
    names = found.files.keys() | expected.files.keys()
    if other := sorted(n for n in names if found.files.get(n) != expected.files.get(n)):
        raise Wrong(f"the last checkpoint has other bytes in {', '.join(other)}")


Counts = Mapping[str, Mapping[str, Sequence[int]]]


class Variant(NamedTuple):
    """A run that is known.

    Attributes:
      arguments: of the command.
      result: of the undisturbed run.
      counts: how much happens in it, by function.
    """

    arguments: Sequence[str]
    result: Result
    counts: Counts


class Case:
    """A run in a directory of its own.

    Args:
      variant: which one.
      folder: where its run, outputs and whatever else lie.
      draw: all that is left to chance.
      run: the run's directory, if it is not to lie in the folder.
      num_processes: that share the work.

    Attributes:
      refused: the first `error:` that a command ended with.
      is_damaged: whether checkpoints may be other than what was written.
      listen: called first in each process of the run.
      statuses: with which the processes of the last command ended, by rank.
    """

    def __init__(
        self,
        variant: Variant,
        folder: Path,
        draw: random.Random,
        *,
        run: Path | None = None,
        num_processes: int = 1,
    ) -> None:
        self.variant = variant
        self.folder = folder
        self.draw = draw
        self.run = run or folder / "run"
        self.refused: str | None = None
        self.is_damaged = False
        self.listen: Callable[[], None] = lambda: None
        self.statuses: list[int] = []
        self._environment: dict[str, str] = {}
        self._num_processes = num_processes
        self._num_started = 0
        folder.mkdir(parents=True, exist_ok=True)

    def place(self, function: str, unit: str = "calls") -> Place:
        """A moment in one of the calls that the undisturbed run makes of a function."""
        counts = self.variant.counts[function][unit]
        occurrence = self.draw.randrange(len(counts)) + 1
        return Place(function, occurrence, unit, self.draw.randint(0, counts[occurrence - 1]))

    def start(
        self, place: Place | None = None, act: Act | None = None, *flags: str, rank: int = 0
    ) -> Ended:
        """Begins the run, or goes on with it, disturbed at a place; returns how that ended.

        Raises:
          Wrong: it ended with a traceback, or without a word, or what it had saved is lost.
        """
        processes = self._processes(place, act, flags, rank)
        ended = [process.end() for process in processes]
        self.statuses = [one.status for one in ended]
        for one in ended:
            self.refused = self.refused or refusal_of(one)
        if not self.is_damaged:
            beside = any("use_async_checkpoints" in one for one in self.variant.arguments)
            nothing_is_lost(self.run, margin=EVERY if beside else 0)
        return ended[rank]

    def kill(self, function: str, unit: str = "calls") -> None:
        """Kills the run at some moment in a function.

        Raises:
          Wrong: it ended in another way.
        """
        place = self.place(function, unit)
        ended = self.start(place, harm.kill)
        if ended.status == 0:  # what is due by the clock is not due as often each time
            shutil.rmtree(self.run)
            ended = self.start(place._replace(occurrence=1), harm.kill)
        require_status(ended, -signal.SIGKILL)

    def finish(self, *flags: str) -> None:
        """Goes on undisturbed, to where the undisturbed run ended.

        Raises:
          Wrong: it does not get there, or something differs.
        """
        require_status(self.start(None, None, *flags), 0)
        refuse_difference(result_of(self.run), self.variant.result)

    def end_all(self) -> None:
        """Nothing is left running, whatever went wrong."""

    def own_cache(self) -> Path:
        """The text is prepared for this case alone; returns where."""
        cache = self.folder / "cache"
        self._environment["FIDGPT_CACHE"] = str(cache)
        return cache

    def checkpoints(self) -> dict[int, Path]:
        """Those that the run has, by step."""
        return manifest.find(self.run)

    def _processes(
        self, place: Place | None, act: Act | None, flags: Sequence[str], rank: int
    ) -> list[Process]:
        def disturbed() -> None:
            self.listen()
            if place is not None and act is not None:
                place.arm(act, self.run.parent)

        self._num_started += 1
        command = [*self._command(by_resume=bool(flags)), *flags]
        several = variables_of_ranks(self._num_processes) if self._num_processes > 1 else [{}]
        return [
            Process(
                command,
                output=self.folder / f"output-{self._num_started}-{number}",
                disturbed=disturbed if number == rank else self.listen,
                environment=self._environment | dict(own),
            )
            for number, own in enumerate(several)
        ]

    def _command(self, *, by_resume: bool) -> list[str]:
        """Return the command that began the run, or --resume."""
        is_begun = (self.run / "config.json").exists()
        if is_begun and (by_resume or self.draw.random() < 0.5):
            return [f"--resume={self.run}"]
        return [*self.variant.arguments, f"--run_dir={self.run}", "--auto_resume"]


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


def require_status(ended: Ended, *statuses: int) -> None:
    """Raise Wrong if a process ended with another status."""
    if ended.status not in statuses:
        wanted = " or ".join(map(str, statuses))
        raise Wrong(f"status {ended.status} instead of {wanted}:\n{ended.output[-3000:]}")


def nothing_is_lost(run: Path, *, margin: int = 0) -> None:
    """Raises Wrong unless each checkpoint is whole, and none is missing that was done.

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
        raise Wrong(f"step {rows[-1]['step']} was begun, and the checkpoint of {done} is not there")
