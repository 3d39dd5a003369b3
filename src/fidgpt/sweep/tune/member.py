"""Members of a population."""

import hashlib
import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidgpt.files import atomic_path
from fidgpt.sweep.runners.work import Tail
from fidgpt.sweep.tune.trial import BEAT, Attended, Stretches, Surroundings

PINS = ".pins"  # in the directory of a sweep
_KEPT = 2  # pins of a run: between a look at the population and the clone, it may train one stretch
_NOT_COPIED = ("done.json",)


def pin(run: Path, step: int) -> None:
    """Keeps the checkpoint of a step for who is cloned from it, even where the run drops it."""
    folder = run.parent / PINS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _name(step)).exists():
        _link(run / "checkpoints" / _name(step), folder / _name(step))
    pins = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in pins[:-_KEPT]:
        shutil.rmtree(path)


def pinned(folder: Path, run: str, step: int) -> Path:
    """Where the checkpoint of a run is kept."""
    return folder / PINS / run / _name(step)


def clone(parent: Path, checkpoint: Path, run: Path, *, step: int) -> None:
    """Makes a run directory that reads as its parent's after a step; whole or not at all.

    Its own trackers know nothing of it yet: what they keep in folders of the parent stays there.

    Args:
      parent: a run directory.
      checkpoint: of the step.
      run: the new directory.
      step: the last one that both have in common.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(run) as draft:
        draft.mkdir()
        for path in parent.iterdir():
            if path.is_file() and path.name not in _NOT_COPIED and not path.name.startswith("."):
                shutil.copy2(path, draft / path.name)
        metrics = (parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [one for one in metrics if one.endswith("\n") and json.loads(one)["step"] <= step]
        (draft / "metrics.jsonl").write_text("".join(kept), encoding="utf-8")
        _link(checkpoint, draft / "checkpoints" / checkpoint.name)


def _link(source: Path, target: Path) -> None:
    """The same files under another name, or copies where there can be no second name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as draft:
        shutil.copytree(source, draft, copy_function=_linked)


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _name(step: int) -> str:
    return f"step_{step:08d}"


@dataclass(frozen=True)
class Descent:
    """The identity of a run of a population.

    Attributes:
      fingerprint: of the directives, the member, and all that it descends from.
      member: the number of the one whose run it is.
      parent: the fingerprint of the run that it is a clone of; None of a first one.
      step: after which it was cloned.
      directives: all that make its config.
      values: of the spaces, by name.
    """

    fingerprint: str
    member: int
    parent: str | None
    step: int
    directives: Sequence[str]
    values: Mapping[str, Any]

    @staticmethod
    def first(directives: Sequence[str], *, member: int, values: Mapping[str, Any]) -> "Descent":
        """A run from the first step."""
        fingerprint = _hash(directives, member, None, 0)
        return Descent(fingerprint, member, None, 0, list(directives), dict(values))

    def cloned(
        self, directives: Sequence[str], *, member: int, step: int, values: Mapping[str, Any]
    ) -> "Descent":
        """A clone of this run, for another member."""
        parent = self.fingerprint
        fingerprint = _hash(directives, member, parent, step)
        return Descent(fingerprint, member, parent, step, list(directives), dict(values))

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name its run directory."""
        return short(self.fingerprint)

    def row(self) -> dict[str, Any]:
        """The same in plain values."""
        return asdict(self)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> "Descent":
        """What a row says, which may hold more than that."""
        return Descent(**{name: row[name] for name in Descent.__dataclass_fields__})


def short(fingerprint: str) -> str:
    """The name of the run directory of a fingerprint."""
    return fingerprint[:12]


def _hash(directives: Sequence[str], member: int, parent: str | None, step: int) -> str:
    text = json.dumps([list(directives), member, parent, step])
    return hashlib.sha256(text.encode()).hexdigest()


FILE = "lineage.jsonl"


class Lineage:
    """All runs of a population, as they were begun.

    Args:
      directory: of the sweep.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._known = {one.fingerprint: one for one in map(Descent.of_row, Tail(self._path).rows())}

    def __iter__(self) -> Iterator[Descent]:
        return iter(self._known.values())

    def add(self, descent: Descent) -> bool:
        """Takes down a run; False where it is known."""
        if descent.fingerprint in self._known:
            return False
        self._known[descent.fingerprint] = descent
        with self._path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"run": descent.short, **descent.row()}, ensure_ascii=False) + "\n"
            )
        return True

    def ancestors(self, fingerprint: str) -> list[Descent]:
        """A run and all that it descends from, the first one first."""
        line: list[Descent] = []
        at: str | None = fingerprint
        while at is not None:
            line.insert(0, self._known[at])
            at = line[0].parent
        return line


def schedule(line: Sequence[Descent], *, run_dir: str, flags: Sequence[str] = ()) -> list[str]:
    """The commands that make the last run of a line anew: from its first step, through all changes.

    Args:
      line: a run and what it descends from, the first one first.
      run_dir: where it is made.
      flags: what every command is told.
    """
    commands: list[str] = []
    for number, one in enumerate(line):
        before = line[number - 1].directives if number else ()
        changes = [f"--config={said}" for said in one.directives if said not in before]
        words = ["python", "train.py", *flags, *changes]
        words += [f"--{'resume' if number else 'run_dir'}={run_dir}", "--allow_noop"]
        if number + 1 < len(line):
            words.append(f"--until_step={line[number + 1].step}")
        commands.append(shlex.join(words))
    return commands


_TOLD = (130, 143)  # how a run ends that somebody told to


@dataclass(frozen=True)
class Plan:
    """What all members of a population have in common.

    Attributes:
      folder: of the sweep.
      items: directives in their order; of a space, its name and the directive up to its value.
      program: what trains.
      every: steps from one look at the population to the next.
      num_steps: of the whole run.
      objective: the name of what is reported.
      worst: reported of what fails.
      retries: how often a run that failed is tried again.
      surroundings: of the processes.
    """

    folder: str
    items: Sequence[str | tuple[str, str]]
    program: Sequence[str]
    every: int
    num_steps: int
    objective: str
    worst: float
    retries: int
    surroundings: Surroundings

    def directives(self, values: Mapping[str, Any]) -> list[str]:
        """All directives, with the values in their places."""
        return [_said(item, values) for item in self.items]

    def changes(self, values: Mapping[str, Any]) -> list[str]:
        """The directives of the values alone."""
        return [_said(item, values) for item in self.items if not isinstance(item, str)]


class Member:
    """Trains a run to the next look, and reports what it has come to there.

    Where it was trained before, as by a command that was killed, it reports what is written of it,
    so that the same looks lead to the same clones. A report has an `event`: runs, waits (another
    process has the run), again (it failed, and is tried once more), looked, finished, failed,
    unmeasured (it came to the look well, and has not measured the objective, but its `names`).

    Args:
      values: of the spaces, by name.
      number: of the member.
      plan: of the population.
    """

    def __init__(self, values: Mapping[str, Any], *, number: int, plan: Plan) -> None:
        self._values = dict(values)
        self._number = number
        self._plan = plan
        self._retries = plan.retries
        self._attended: Attended | None = None
        self._descent = Descent.first(plan.directives(values), member=number, values=self._values)
        self._step = 0

    def state(self) -> dict[str, Any]:
        """Where it is, in plain values: the checkpoint stays in the directory of the sweep."""
        return {"step": self._step, "descent": self._descent.row()}

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Goes on where it was before, or as a clone of the member that had this state."""
        descent = Descent.of_row(state["descent"])
        self._step = state["step"]
        if descent.member == self._number:
            self._descent = descent
        else:
            directives = self._plan.directives(self._values)
            self._descent = descent.cloned(
                directives, member=self._number, step=self._step, values=self._values
            )

    def step(self) -> dict[str, Any]:
        """The next report, after a second at most."""
        until = min((self._step // self._plan.every + 1) * self._plan.every, self._plan.num_steps)
        if (known := self._stretches.known(until)) is not None:
            return self._looked(until, known["value"], known["words"])
        if self._attended is None:
            return self._begin(until)
        status = self._attended.wait(BEAT)
        return self._report("runs") if status is None else self._ended(until, status)

    def end(self) -> None:
        """Lets the process save where it is, and waits for its end."""
        if self._attended is not None:
            self._attended.end()

    @property
    def _run(self) -> Path:
        return Path(self._plan.folder) / self._descent.short

    @property
    def _stretches(self) -> Stretches:
        return Stretches(Path(self._plan.folder), self._descent.short)

    def _begin(self, until: int) -> dict[str, Any]:
        descent, run = self._descent, self._run
        if descent.parent is not None and not (run / "config.json").exists():
            parent = run.with_name(short(descent.parent))
            checkpoint = pinned(run.parent, parent.name, descent.step)
            clone(parent, checkpoint, run, step=descent.step)
        log = run.parent / "logs" / f"{run.name}.log"
        attended = Attended(run, log, self._plan.surroundings)
        if not attended.start(self._command(until)):
            time.sleep(BEAT)
            return self._report("waits")
        self._attended = attended
        return self._report("runs")

    def _command(self, until: int) -> list[str]:
        command = [*self._plan.program, "--allow_noop", f"--until_step={until}"]
        if not (self._run / "config.json").exists():
            directives = self._plan.directives(self._values)
            return [*command, *map(_flag, directives), f"--run_dir={self._run}"]
        changes = self._plan.changes(self._values) if self._descent.parent else []
        return [*command, *map(_flag, changes), f"--resume={self._run}"]

    def _ended(self, until: int, status: int) -> dict[str, Any]:
        assert self._attended is not None  # it was begun
        attended, self._attended = self._attended, None
        if status in _TOLD:
            return self._report("runs")
        if status == 0:
            value = self._stretches.measured(self._run, until, self._plan.objective)
            if value is not None:
                pin(self._run, until)
                self._stretches.add(until, value)
                return self._report("runs")
            if names := self._stretches.names(self._run):
                return self._report("unmeasured", names=names)
        words = attended.words(status) if status else f"it ended before step {until:,}"
        if self._retries > 0:
            self._retries -= 1
            return self._report("again", words=words)
        self._stretches.add(until, None, words)
        return self._report("runs")

    def _looked(self, until: int, value: float | None, words: str) -> dict[str, Any]:
        """What has come of a stretch; one that failed stays where it is until it is cloned over."""
        self._step = until
        is_last = until == self._plan.num_steps
        is_number = value is not None and not math.isnan(value)
        following = min(until + self._plan.every, self._plan.num_steps)
        if not is_number and self._stretches.known(following) is None:
            self._stretches.add(following, None, words)
        event = ("finished" if is_last else "looked") if is_number else "failed"
        shown = value if is_number else self._plan.worst
        told = {"step": until, self._plan.objective: shown, "done": is_last}
        return self._report(event, words=words, **told)

    def _report(self, event: str, words: str = "", **more: Any) -> dict[str, Any]:
        return {"event": event, "words": words, "descent": self._descent.row(), **more}


def member_of(config: Mapping[str, Any], identity: str, *, plan: Plan) -> Member:
    """The member that a trial of Ray Tune's trains, whose identity ends with its number."""
    values = {item[0]: config[item[0]] for item in plan.items if not isinstance(item, str)}
    return Member(values, number=int(identity.rpartition("_")[2]), plan=plan)


def _said(item: str | tuple[str, str], values: Mapping[str, Any]) -> str:
    """A directive as it stands; of a space, with the value in its place."""
    if isinstance(item, str):
        return item
    name, prefix = item
    value = values[name]
    return prefix + (value if isinstance(value, str) else repr(value))


def _flag(directive: str) -> str:
    return f"--config={directive}"
