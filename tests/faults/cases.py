"""Disturbed commands: their undisturbed results, a directory of their own, and a small disk."""

import json
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from faults import harm
from faults.moments import Act, Place
from faults.processes import Command, Ended, Process, prepare_forks
from fidgpt.cli import train
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows, reproducible

STEPS, EVERY = 10, 3
NO_ROOM = "no room on the disk"
KILLED = -signal.SIGKILL
Counts = Mapping[str, Mapping[str, Sequence[int]]]
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
      counts: how much happens in it, by function.
      num_steps: of all points of a sweep.
    """

    arguments: Sequence[str]
    result: dict[str, Any]
    counts: Counts = MappingProxyType({})
    num_steps: int = 0


class Case:
    """A command in a directory of its own.

    Args:
      known: the command.
      folder: for its outputs.
      draw: makes all random choices.
      run: the directory of the run or sweep; in `folder` by default.

    Attributes:
      refused: the first `error:` that a command ended with.
      listen: called first in each forked process.
    """

    def __init__(
        self, known: Known, folder: Path, draw: random.Random, run: Path | None = None
    ) -> None:
        self.known = known
        self.folder = folder
        self.draw = draw
        self.run = run or folder / "run"
        self.refused: str | None = None
        self.listen: Callable[[], None] = lambda: None
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
        first: Callable[[], None] | None = None,
        command: Command = train.run,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a command, disturbed at a place; `first` is called before it."""

        def disturbed() -> None:
            self.listen()
            if first is not None:
                first()
            if place is not None and act is not None:
                place.arm(act, self.run.parent)

        return self.started(
            Process(
                arguments,
                output=self.output(),
                disturbed=disturbed,
                environment=environment,
                command=command,
            )
        )

    def started(self, process: Process) -> Process:
        """Ends this process with the others, if the case goes wrong."""
        self._alive.append(process)
        return process

    def end(self, process: Process, *statuses: int) -> Ended:
        """Waits for the end of a process.

        Raises:
          Wrong: it ended with a traceback, without a message, or with another status.
        """
        ended = process.end()
        self._alive.remove(process)
        self.refused = self.refused or refusal_of(ended)
        if statuses:
            require_status(ended, *statuses)
        return ended

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
