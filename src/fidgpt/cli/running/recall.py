"""What is known of a saved graph beside its content: who said what, before it was saved."""

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph import ConfigError, load_with_changes
from fidgpt.graph.history.provenance import restore_provenance

B = TypeVar("B", bound=fdl.Buildable)


def load_told(text: str, *, source: str, allowed: tuple[str, ...]) -> Any:
    """The graph of a file; what has changed since it was written is told on standard error.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    cfg, changes = load_with_changes(text, source=source, allowed=allowed)
    for line in changes:
        print(f"{source}: {line}", file=sys.stderr)
    return cfg


def recall(cfg: B, file: Path) -> B:
    """The graph of a run's `config.json`, with the history that lies beside the file, if it does.

    A history that cannot be read is said aloud, and keeps nobody from the graph.
    """
    beside = file.parent / "provenance.json"
    if file.name != "config.json" or not os.path.lexists(beside):
        return cfg
    try:
        restore_provenance(cfg, beside.read_text(encoding="utf-8"), source=str(file.parent))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"{beside} is left aside: {reason}", file=sys.stderr)
    return cfg
