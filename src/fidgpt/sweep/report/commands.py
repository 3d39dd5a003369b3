"""The shortest command that trains a point of a sweep again."""

import shlex
from collections.abc import Sequence

from fidgpt.cli.again import command_for
from fidgpt.cli.catalogue import own_catalogue
from fidgpt.graph import ConfigError, load
from fidgpt.sweep.report.records import Record


def shortest_command(record: Record, *, allowed: Sequence[str] = ()) -> str:
    """What to type, from the config that the run wrote; as it was said, where that cannot be read.

    Args:
      record: the point.
      allowed: packages of the user's own that its config may name.
    """
    path = record.directory / "config.json"
    said = record.row["directives"]
    try:
        cfg = load(path.read_text(encoding="utf-8"), source=str(path), allowed=tuple(allowed))
        return command_for(cfg, own_catalogue(tuple(allowed)), directives=said, allowed=allowed)
    except (ConfigError, OSError):
        flags = [f"--allow={one}" for one in allowed] + [f"--config={one}" for one in said]
        return shlex.join(["python", "train.py", *flags])
