"""The recorded assignments of a graph's parameters, and their sources."""

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle import history

from fidgpt.graph.fiddle import Key, argument_history

_WRITTEN = re.compile(
    r"(?:(?P<run>.+?): )??(?P<kind>directive|fiddler) (?P<number>\d+): (?P<text>.+)", re.DOTALL
)


class Source(NamedTuple):
    """What set a value: a directive, a fiddler, or anything with a name.

    Attributes:
      text: a directive as it was typed, the name of a fiddler, or any other description.
      kind: `directive` or `fiddler`; "" for others.
      number: its position among those of its kind, counted from 1; 0 for others.
      run: the previous run, or file, that it belongs to; None for this command.
    """

    text: str
    kind: str = ""
    number: int = 0
    run: str | None = None

    def __str__(self) -> str:
        own = f"{self.kind} {self.number}: {self.text}" if self.kind else self.text
        return f"{self.run}: {own}" if self.run else own

    @classmethod
    def read(cls, written: str) -> "Source":
        """Return the source of which `str` wrote a text."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            return cls(written)
        return cls(found["text"], found["kind"], int(found["number"]), found["run"])


_FIDGPT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files that assign on behalf of their caller, whose line is the one to record.
_MACHINERY = (
    os.path.dirname(os.path.abspath(fdl.__file__)) + os.sep,
    os.path.join(_FIDGPT, "graph") + os.sep,
    os.path.join(_FIDGPT, "cli") + os.sep,
    os.path.join(_FIDGPT, "compose") + os.sep,
    contextlib.__file__,  # which calls what a context manager decorates
)
_current: ContextVar[tuple[Source | None, FrameType | None]] = ContextVar(
    "source", default=(None, None)
)


@dataclass(frozen=True)
class AttributedLocation(history.Location):
    """A line of code and, if there is one, the source on whose behalf it ran."""

    by: Source | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One recorded change of a parameter.

    Attributes:
      value: the value; `fdl.NO_VALUE` where it was removed, or only a tag was added.
      by: the source, such as a directive; None where code alone set it.
      where: the line of code, such as `configs/base.py:70 in base`; "" if unknown.
    """

    value: Any
    by: Source | None
    where: str

    @property
    def set_by(self) -> str:
        """The source and the line of code, as one phrase for a terminal."""
        words = [_printable(str(word)) for word in (self.by, self.where) if word]
        return f"{words[0]} ({words[1]})" if len(words) == 2 else "".join(words) or "unknown code"


def _printable(text: str) -> str:
    """A text on one line, without control characters."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


@contextlib.contextmanager
def attributed_to(source: Source | str) -> Iterator[None]:
    """Record a source with every assignment made inside, beside the line of code."""
    by = Source(source) if isinstance(source, str) else source
    frame = inspect.currentframe()
    entered = frame.f_back.f_back if frame and frame.f_back else None  # past contextlib
    token = _current.set((by, entered))
    del frame
    try:
        yield
    finally:
        _current.reset(token)


def assignments_of(part: fdl.Buildable, key: Key, steps: str = "") -> list[Assignment]:
    """Return the assignments to an argument, newest first.

    Args:
      part: the node.
      key: the argument.
      steps: the path from there to an item of a list or dict, such as `[0]`.
    """
    # Fiddle's history adds a key that is looked up with [].
    entries = argument_history(part).get(f"{key}{steps}" if steps else key, [])
    return [_assignment(entry) for entry in reversed(entries) if not _is_of_tags(entry)]


def unset_by(part: fdl.Buildable, key: Key) -> Assignment | None:
    """Return what last gave an argument a tag, so that it inherits its value."""
    entries = argument_history(part).get(key, [])
    return next((_assignment(entry) for entry in reversed(entries) if _is_of_tags(entry)), None)


def sources_of(found: Iterable[fdl.Buildable]) -> list[Source]:
    """Return the sources of all assignments and tags of some nodes, each once."""
    locations = (
        entry.location
        for part in found
        for entries in argument_history(part).values()
        for entry in entries
    )
    sources = (one.by for one in locations if isinstance(one, AttributedLocation) and one.by)
    return list(dict.fromkeys(sources))


def keep_assignments(
    new: fdl.Buildable, old: fdl.Buildable, key: Key, *, known_as: Key | None = None
) -> None:
    """Copy the history of an argument to a node that replaces another.

    Args:
      new: the new node.
      old: the node that `new` replaces.
      key: the argument of `old`.
      known_as: its name in `new`; None for the same.
    """
    entries = list(argument_history(old).get(key, []))
    argument_history(new)[key if known_as is None else known_as] = entries


def restore_assignments(part: fdl.Buildable, key: Key, assignments: Iterable[Assignment]) -> None:
    """Replace the history of an argument by assignments, oldest first."""
    argument_history(part)[key] = [
        history.HistoryEntry(
            sequence_id=number,
            param_name=str(key),
            kind=history.ChangeKind.NEW_VALUE,
            new_value=history.DELETED if one.value is fdl.NO_VALUE else one.value,
            location=AttributedLocation(one.where, 0, None, one.by),
        )
        for number, one in enumerate(assignments)
    ]


def _is_of_tags(entry: history.HistoryEntry) -> bool:
    return entry.kind is history.ChangeKind.UPDATE_TAGS


def _assignment(entry: history.HistoryEntry) -> Assignment:
    is_value = not _is_of_tags(entry) and entry.new_value is not history.DELETED
    location = entry.location
    where = location.filename
    if location.line_number:
        where = f"{where.removeprefix(os.getcwd() + os.sep)}:{location.line_number}"
        if location.function_name not in (None, "<module>"):
            where += f" in {location.function_name}"
    by = location.by if isinstance(location, AttributedLocation) else None
    return Assignment(entry.new_value if is_value else fdl.NO_VALUE, by, where)


def _location() -> history.Location:
    """Return the nearest line of code outside the machinery, up to the one that set the source."""
    by, entered = _current.get()
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if not _is_machinery(code.co_filename):
            return _cached_location(code.co_filename, frame.f_lineno, code.co_name, by)
        if frame is entered:
            break
        frame = frame.f_back
    return _cached_location("", 0, None, by)


@functools.cache
def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)


_cached_location = functools.lru_cache(maxsize=8192)(AttributedLocation)

# Fiddle calls this for every assignment from now on. It stays entered until the process ends; a
# nested `history.custom_location` takes precedence.
_installed = history.custom_location(_location)
_installed.__enter__()
