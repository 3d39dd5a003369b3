"""What needs the user's consent: places to send to, code to run, and links out of a directory.

A constructor declares them by parameter: `SENDS`, with what is sent to the place that the value
names, and `RUNS`, with what is executed there.
"""

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose.directives import kind_of
from fidgpt.files import trust, trusted
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.fiddle import set_arguments
from fidgpt.graph.walk import join, parts, step_to

_LISTED = 5


class Risk(NamedTuple):
    """A value that sends something away, or has code run.

    Attributes:
      path: of the argument.
      does: what it does, as a verb with its object.
      value: a place.
    """

    path: str
    does: str
    value: str


def risks(root: fdl.Buildable | Resolved, *, sends: bool = True) -> Iterator[Risk]:
    """Yield what a graph may send and run; only what it runs with `sends` False."""
    for node in parts(Resolved.of(root).bound):
        called = fdl.get_callable(node.value)
        for attribute, does in (("SENDS", "sends {} to"), ("RUNS", "runs {} in"))[not sends :]:
            for name, what in getattr(called, attribute, {}).items():
                value = set_arguments(node.value).get(name)
                for one in value if isinstance(value, list | tuple) else [value]:
                    if one is not None and (attribute == "SENDS" or _is_path(one)):
                        yield Risk(join(node.path, step_to(name)), does.format(what), str(one))


def _is_path(value: Any) -> bool:
    """Return whether a value may be a path rather than a plain name."""
    is_name = isinstance(value, str) and re.fullmatch(r"[\w-]+", value)
    return not is_name or os.path.exists(value)


def require_consent(
    root: fdl.Buildable | Resolved, *, words: Sequence[str], is_loaded: bool, sends: bool = True
) -> list[str]:
    """Return a line for each place that a graph from a file sends to or runs code from.

    What a command itself has named on this machine is known from then on.

    Args:
      root: the graph.
      words: of the command, such as its directives; what files hold does not count.
      is_loaded: whether the graph, or a part of it, comes from a file.
      sends: whether anything is sent.

    Raises:
      ConfigError: the command does not name such a place, and none has before.
    """
    found = list(risks(root, sends=sends))
    if is_loaded:
        own = [word for word in words if (kind := kind_of(word)) is None or kind.portable]
        named = [one.value for one in found if any(_names(word, one.value) for word in own)]
        head = "a file sets what was never named by a command on this machine:"
        _require_known(found, named=named, head=head, remedy="remove it from the config")
    trust(one.value for one in found)
    return [f"this run {one.does} {one.value} ({one.path})" for one in found if is_loaded]


def require_own_files(directory: Path) -> None:
    """Refuse a directory with links by which writing there would change what lies elsewhere.

    Looks at its entries, and at those of the folders in it. A pipe or a device is refused too.

    Raises:
      ConfigError: a link leads out of it, to a place that no command has named.
    """
    root, found = os.path.realpath(directory), list[Risk]()
    entries = _entries(directory)
    inside = (_entries(one) for one in entries if one.is_dir(follow_symlinks=False))
    for one in itertools.chain(entries, *inside):
        if os.path.exists(one.path) and not (one.is_file() or one.is_dir()):
            raise ConfigError(f"{one.path} is neither a file nor a folder: remove it.")
        place = os.path.realpath(one.path) if one.is_symlink() else root
        if os.path.commonpath([root, place]) != root:
            found.append(Risk(one.path, "is a link to", place))
    head = f"{directory} has links out of it, by which files elsewhere would be changed:"
    _require_known(found, named=(), head=head, remedy="remove the link")


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing if it cannot be read, as whoever writes there reports."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda one: one.name)
    return []


def _require_known(
    found: Sequence[Risk], *, named: Collection[str], head: str, remedy: str
) -> None:
    known = {*named, *trusted()} if found else set()
    if unknown := [one for one in found if one.value not in known]:
        lines = [f"{one.path} {one.does} {one.value!r:.200}" for one in unknown[:_LISTED]]
        flags = [*dict.fromkeys(shlex.quote(f"--trust={one.value}") for one in unknown)]
        more = f"\n  and {len(unknown) - _LISTED} more" if unknown[_LISTED:] else ""
        raise ConfigError(
            "\n  ".join([head, *lines])
            + f"{more}\nIf you want that, add {' '.join(flags[:_LISTED])}, which is remembered "
            f"here; otherwise {remedy}."
        )


def _names(word: str, value: str) -> bool:
    """Return whether a word of a command contains a value, whole."""
    return re.search(rf"(?<![\w/.:-]){re.escape(value)}(?![\w/.:-])", word) is not None
