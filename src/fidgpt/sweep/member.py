"""Members of a population: how their runs descend from one another."""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidgpt.files import atomic_path
from fidgpt.sweep.runners.remote import Tail

FILE = "lineage.jsonl"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Lineage:
    """The descent of a run of a population.

    Attributes:
      fingerprint: of the directives, the member, and the run's ancestors.
      member: the number of the member.
      parent: the fingerprint of the run that it was cloned from; None for a first run.
      step: the step after which it was cloned.
      directives: all directives of its config.
      values: the values of the spaces, by name.
    """

    fingerprint: str
    member: int
    parent: str | None
    step: int
    directives: list[str]
    values: dict[str, Any]

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name the run directory."""
        return self.fingerprint[:12]

    @property
    def varied(self) -> list[str]:
        """The directives of the spaces."""
        return [one for one in self.directives if one.partition("=")[0].strip() in self.values]


def lineage_of(
    config: Mapping[str, Any], *, member: int, parent: str | None = None, step: int = 0
) -> Lineage:
    """Return the lineage of a first run, or of a clone, by its directives and values."""
    directives, values = config["directives"], config["values"]
    text = json.dumps([directives, member, parent, step])
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    return Lineage(fingerprint, member, parent, step, directives, values)


def read_lineages(directory: Path) -> dict[str, Lineage]:
    """Return all runs of a population by fingerprint."""
    names = Lineage.__dataclass_fields__
    rows = [{name: row[name] for name in names} for row in Tail(directory / FILE).rows()]
    return {row["fingerprint"]: Lineage(**row) for row in rows}


def add_lineage(directory: Path, lineage: Lineage) -> None:
    """Record a run of a population."""
    row = json.dumps({"run": lineage.short, **asdict(lineage)}, ensure_ascii=False)
    with (directory / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{row}\n")


def ancestors(lineages: Mapping[str, Lineage], fingerprint: str) -> list[Lineage]:
    """Return a run and all that it descends from, the first one first."""
    line = [lineages[fingerprint]]
    while line[0].parent is not None:
        line.insert(0, lineages[line[0].parent])
    return line


def schedule(line: Sequence[Lineage], *, run_dir: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the commands that repeat the last run of a line, with all changes on its way.

    Args:
      line: a run after all that it descends from.
      run_dir: the directory of the repetition.
      flags: of every command.
    """
    commands: list[str] = []
    for number, one in enumerate(line):
        before = line[number - 1].directives if number else ()
        changes = [f"--config={text}" for text in one.directives if text not in before]
        words = ["python", "train.py", *flags, *changes]
        words += [f"--{'resume' if number else 'run_dir'}={run_dir}", "--allow_noop"]
        if number + 1 < len(line):
            words.append(f"--until_step={line[number + 1].step}")
        commands.append(shlex.join(words))
    return commands


def measured(run: Path, step: int, name: str) -> float | None:
    """Return a metric of a run at a step."""
    rows = [row for row in Tail(run / METRICS).rows() if row["step"] == step]
    return float(rows[-1][name]) if rows and name in rows[-1] else None


def copy_run(source: Path, target: Path, *, step: int) -> None:
    """Copy a run as it was after a step, whole or not at all; checkpoints are linked.

    Folders of trackers are left out: to them, the copy is a new run.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = f"checkpoints/step_{step:08d}"
    with atomic_path(target) as draft:
        draft.mkdir()
        for path in source.iterdir():
            if path.is_file() and path.name != "done.json" and not path.name.startswith("."):
                shutil.copy2(path, draft / path.name)
        rows = [row for row in Tail(source / METRICS).rows() if row["step"] <= step]
        metrics = "".join(f"{json.dumps(row)}\n" for row in rows)
        (draft / METRICS).write_text(metrics, encoding="utf-8")
        shutil.copytree(source / checkpoint, draft / checkpoint, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
