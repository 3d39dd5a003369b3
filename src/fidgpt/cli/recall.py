"""What is known of a saved graph beside its content: who said what, before it was saved."""

import sys
from pathlib import Path
from typing import TypeVar

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.graph.provenance import restore_provenance

B = TypeVar("B", bound=fdl.Buildable)


def recall(cfg: B, file: Path) -> B:
    """The graph of a run's `config.json`, with the history that lies beside the file, if it does.

    A history that cannot be read is said aloud, and keeps nobody from the graph.
    """
    beside = file.parent / "provenance.json"
    if file.name != "config.json" or not beside.is_file():
        return cfg
    try:
        restore_provenance(cfg, beside.read_text(encoding="utf-8"), source=str(file.parent))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        print(f"{beside} is left aside: {error}", file=sys.stderr)
    return cfg
