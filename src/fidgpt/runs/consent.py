"""What needs the user's consent: places that a config from a file sends to or runs code in.

A constructor declares them by parameter: `SENDS`, with the things sent to the place that the value
names, and `RUNS`, with the code executed there.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose.directives import kind_of
from fidgpt.files import trust, trusted
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.fiddle import set_arguments
from fidgpt.graph.walk import join, parts, step_to


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
                for item in value if isinstance(value, list | tuple) else [value]:
                    if item is not None and (attribute == "SENDS" or _is_path(item)):
                        yield Risk(join(node.path, step_to(name)), does.format(what), str(item))


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
    present = list(risks(root, sends=sends))
    if is_loaded:
        typed = [word for word in words if (kind := kind_of(word)) is None or kind.portable]
        named = {risk.value for risk in present if any(_names(word, risk.value) for word in typed)}
        allowed = named | trusted() if present else named
        if unknown := [risk for risk in present if risk.value not in allowed]:
            lines = [f"{risk.path} {risk.does} {risk.value!r:.200}" for risk in unknown]
            remedies = [*dict.fromkeys(shlex.quote(f"--trust={risk.value}") for risk in unknown)]
            raise ConfigError(
                "\n  ".join(["a file sets what no command on this machine has named:", *lines])
                + f"\nIf you want that, add {' '.join(remedies)}, which is remembered here; "
                "otherwise remove it from the config."
            )
    trust(risk.value for risk in present)
    return [f"this run {risk.does} {risk.value} ({risk.path})" for risk in present if is_loaded]


def _names(word: str, value: str) -> bool:
    """Return whether a word of a command contains a value, whole."""
    return re.search(rf"(?<![\w/.:-]){re.escape(value)}(?![\w/.:-])", word) is not None
