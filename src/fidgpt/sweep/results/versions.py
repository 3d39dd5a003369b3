"""Which code a run was made by, so that results of two versions are not compared in silence."""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fidgpt


@functools.cache
def code_version() -> str:
    """A hash of fidgpt's own sources, 12 hexadecimal digits: the same for the same code."""
    folder = Path(fidgpt.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def changed_code(rows: Iterable[Mapping[str, Any]], sweep: Path) -> list[str]:
    """A line for each other version of the code that points were run by, with its commit.

    Args:
      rows: the results of the points that were run before.
      sweep: the directory of the sweep.
    """
    others: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("code") not in (None, code_version()):
            others.setdefault(row["code"], []).append(row)
    return [
        f"{_counted(len(made))} run by another version of the code ({_commit(sweep, made[0])}): "
        f"{', '.join(row['name'] for row in made[:3])}{', ...' if len(made) > 3 else ''}. "
        "What is done is not done again; name another --run_dir to begin anew."
        for made in others.values()
    ]


def _counted(count: int) -> str:
    return "1 point was" if count == 1 else f"{count} points were"


def _commit(sweep: Path, row: Mapping[str, Any]) -> str:
    """The commit that the run of a row keeps, with whether more was changed."""
    try:
        kept = json.loads((sweep / row["directory"] / "environment.json").read_text())["git"]
        return f"{kept['commit'][:10]}{', with changes' if kept['changes'] else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"sources {row['code']}"
