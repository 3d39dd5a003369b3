"""The history of assignments of a graph and their sources."""

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

from fidgpt.graph.fiddle import Key

_WRITTEN = re.compile(
    r"(?:(?P<run>.+?): )??(?P<kind>directive|fiddler) (?P<number>\d+): (?P<text>.+)", re.DOTALL
)


class Source(NamedTuple):
    """Who said a value.

    Attributes:
      text: its words: a directive as it was typed, the name of a fiddler, or any others.
      kind: `directive` or `fiddler`; "" where it is neither.
      number: which one of its kind it was, counted from 1; 0 where it is neither.
      run: the earlier run, or file, that it spoke in; None for now.
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
        """The one of whom `str` wrote this; all of it is the text of one that has no kind."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            return cls(written)
        return cls(found["text"], found["kind"], int(found["number"]), found["run"])


_FIDGPT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files that assign on behalf of somebody else, who is the one to be named.
_MACHINERY = (
    os.path.dirname(os.path.abspath(fdl.__file__)) + os.sep,
    os.path.join(_FIDGPT, "graph") + os.sep,
    os.path.join(_FIDGPT, "cli") + os.sep,
    os.path.join(_FIDGPT, "compose") + os.sep,
    contextlib.__file__,  # which calls what a context manager decorates
)
_speaker: ContextVar[tuple[Source | None, FrameType | None]] = ContextVar(
    "speaker", default=(None, None)
)


@dataclass(frozen=True)
class Spot(history.Location):
    """A line of code and, where there is one, on whose behalf it ran."""

    by: Source | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that somebody gave a parameter.

    Attributes:
      value: the value; `fdl.NO_VALUE` where it was taken away, or left open.
      by: on whose behalf, such as a directive's; None where code alone said it.
      where: the line of code, such as `configs/base.py:70 in base`; "" where none is known.
    """

    value: Any
    by: Source | None
    where: str

    @property
    def who(self) -> str:
        """By whom and where, as one phrase."""
        words = [_shown(str(word)) for word in (self.by, self.where) if word]
        return (
            f"{words[0]} ({words[1]})" if len(words) == 2 else (words or ["nobody knows whom"])[0]
        )


def _shown(text: str) -> str:
    """A text on one line, without what would move the cursor of a terminal, or colour it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class Remembered(str):
    """The text of a value that was said before the graph was saved; the value itself is gone."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@contextlib.contextmanager
def attributed_to(speaker: Source | str) -> Iterator[None]:
    """Assignments made inside are recorded as made on somebody's behalf, beside the line of code.

    Args:
      speaker: who it is, or in any words.
    """
    by = Source(speaker) if isinstance(speaker, str) else speaker
    frame = inspect.currentframe()
    entered = frame.f_back.f_back if frame and frame.f_back else None  # past contextlib
    token = _speaker.set((by, entered))
    del frame
    try:
        yield
    finally:
        _speaker.reset(token)


def assignments_of(part: fdl.Buildable, key: Key, step: str = "") -> list[Assignment]:
    """What was said to an argument, newest first.

    Args:
      part: the part.
      key: the argument.
      step: the way on from there into lists and dicts, such as `[0]`.
    """
    # Fiddle's history makes an entry of what it is asked for with [].
    found = part.__argument_history__.get(f"{key}{step}" if step else key, [])
    return [_saying(entry) for entry in reversed(found) if _is_saying(entry)]


def left_open_by(part: fdl.Buildable, key: Key) -> Assignment | None:
    """Who tagged an argument last."""
    entries = part.__argument_history__.get(key, [])
    tags = [entry for entry in entries if entry.kind is history.ChangeKind.UPDATE_TAGS]
    return _saying(tags[-1]) if tags else None


def speakers(found: Iterable[fdl.Buildable]) -> list[Source]:
    """On whose behalf anything was said or tagged in some parts, each once."""
    spots = (
        entry.location
        for part in found
        for entries in part.__argument_history__.values()
        for entry in entries
    )
    return list(dict.fromkeys(one.by for one in spots if isinstance(one, Spot) and one.by))


def keep_assignments(
    new: fdl.Buildable, old: fdl.Buildable, key: Key, *, known_as: Key | None = None
) -> None:
    """Gives an argument of a new part the history that it had in the part it was taken from.

    Args:
      new: the new part.
      old: the one that `new` takes the place of.
      key: the argument of `old`.
      known_as: what `new` calls it; the same unless said.
    """
    taken = list(old.__argument_history__.get(key, []))
    new.__argument_history__[key if known_as is None else known_as] = taken


class Memory:
    """Puts what was said before a graph was saved in the place of its parameters' history.

    Inside of `with`, what is recalled is not said by the code that recalls it.
    """

    def __init__(self) -> None:
        self._spot = Spot("", 0, None)
        self._asked = history.custom_location(lambda: self._spot)

    def __enter__(self) -> "Memory":
        self._asked.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._asked.__exit__(*error)

    def recall(self, part: fdl.Buildable, name: Key, sayings: list[Assignment]) -> None:
        """Recalls what was said to an argument, oldest first."""
        entries = history.History()
        for saying in sayings:
            self._spot = Spot(saying.where, 0, None, saying.by)
            if saying.value is fdl.NO_VALUE:
                entries.add_deleted_value(name)
            else:
                entries.add_new_value(name, saying.value)
        part.__argument_history__[name] = entries.get(name, [])


def _is_saying(entry: history.HistoryEntry) -> bool:
    return entry.kind is history.ChangeKind.NEW_VALUE


def _saying(entry: history.HistoryEntry) -> Assignment:
    is_value = _is_saying(entry) and entry.new_value is not history.DELETED
    place = entry.location
    where = place.filename
    if place.line_number:
        where = f"{_short(where)}:{place.line_number}"
        if place.function_name not in (None, "<module>"):
            where += f" in {place.function_name}"
    by = place.by if isinstance(place, Spot) else None
    return Assignment(entry.new_value if is_value else fdl.NO_VALUE, by, where)


def _short(filename: str) -> str:
    """A file's path as one would type it here."""
    inside = os.getcwd() + os.sep
    return filename.removeprefix(inside)


def _spot() -> history.Location:
    """The nearest line of code that is not machinery, up to where `attributed_to` was entered."""
    by, entered = _speaker.get()
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if not _is_machinery(code.co_filename):
            return _made(code.co_filename, frame.f_lineno, code.co_name, by)
        if frame is entered:
            break
        frame = frame.f_back
    return _made("", 0, None, by)


@functools.cache
def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)


@functools.lru_cache(maxsize=8192)
def _made(filename: str, line: int, function: str | None, by: Source | None) -> Spot:
    return Spot(filename, line, function, by)


# Fiddle asks this for every assignment from now on. It stays entered as long as the process runs;
# somebody's own `history.custom_location` still goes before it.
_installed = history.custom_location(_spot)
_installed.__enter__()
