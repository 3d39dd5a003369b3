"""What is known of a saved graph beside its content: who said what, before it was saved."""

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.cli.running.reading import UnreadableFile, is_there, read_text
from fidgpt.graph import ConfigError, load_with_changes
from fidgpt.graph.errors import listed
from fidgpt.graph.history.provenance import restore_provenance

B = TypeVar("B", bound=fdl.Buildable)


def load_told(text: str, *, source: str, allowed: tuple[str, ...]) -> Any:
    """The graph of a file; what has changed since it was written is told on standard error.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    cfg, changes = load_with_changes(text, source=source, allowed=allowed)
    for line in _together(changes):
        print(f"{source}: {line}", file=sys.stderr)
    return cfg


def _together(changes: list[str]) -> Iterator[str]:
    """Changes, those that many parts have alike as one line."""
    paths: dict[str, list[str]] = {}
    for line in changes:
        path, colon, what = line.partition(": ")
        paths.setdefault(what or line, []).extend([path] if colon else [])
    for what, found in paths.items():
        match found:
            case []:
                yield what
            case [path]:
                yield f"{path}: {what}"
            case _:
                yield f"{what}, in {listed(found, most=3)}"


def recall(cfg: B, file: str) -> B:
    """The graph of a run's `config.json`, with the history that lies beside the file, if it does.

    A history that cannot be read is said aloud, and keeps nobody from the graph.
    """
    folder, _, name = file.rpartition("/")
    beside = f"{file.removesuffix(name)}provenance.json"
    if name != "config.json" or not is_there(beside):
        return cfg
    try:
        restore_provenance(cfg, read_text(beside)[1], source=folder or ".")
    except UnreadableFile as error:
        print(f"{beside} is left aside: {error.reason}", file=sys.stderr)
    except ConfigError as error:
        print(f"{beside} is left aside: {error}", file=sys.stderr)
    return cfg
