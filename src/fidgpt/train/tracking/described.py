"""What a tracker is told of a run besides its numbers: name, group, config, command, commit."""

import ast
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidgpt.train.facts.facts import Facts
from fidgpt.train.run import RunDirectory

GROUP = "FIDGPT_GROUP"  # set by a sweep for its points, or by who starts runs that belong together
_ROOT = "trainer"  # of the graph, which has no path: MLflow takes no value without a name

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Described:
    """A run as a tracker shows it.

    Attributes:
      path: its directory.
      name: that of its directory.
      group: what it belongs to, such as a sweep; None where it stands alone.
      config: every value of the graph by its path, and what is known of the run as a whole.
    """

    path: Path
    name: str
    group: str | None
    config: Mapping[str, Scalar]


def described(run: RunDirectory, facts: Facts) -> Described:
    """Reads what the run directory holds; what is missing there is left out."""
    environment = _environment(_text(run, "environment.json"))
    whole: dict[str, Scalar] = {
        "run/directory": str(run.path.resolve()),
        "run/command": _text(run, "command.txt").strip(),
        "run/git_commit": environment.get("git", {}).get("commit"),
        "run/parameters": facts.parameters,
        "run/tokens": facts.tokens,
        "run/device": str(facts.device),
        "run/world_size": facts.world_size,
    }
    return Described(
        path=run.path,
        name=run.path.resolve().name,
        group=os.environ.get(GROUP) or None,
        config={path or _ROOT: _value(text) for path, text in run.identity.items()}
        | {name: value for name, value in whole.items() if value not in (None, "")},
    )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row: its numbers, without the step."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step"
    }


def texts(row: Mapping[str, Any]) -> dict[str, str]:
    """What the model wrote at a step, each text by a name of its own."""
    return {f"samples/{number}": text for number, text in enumerate(row.get("samples", ()))}


def _environment(text: str) -> dict[str, Any]:
    """What the file holds; nothing where it is damaged."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


def _text(run: RunDirectory, name: str) -> str:
    try:
        return (run.path / name).read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return run.texts.get(name, "")


def _value(text: str) -> Scalar:
    """A number where the text is one, so that a tracker can sort by it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, Scalar) else text
