"""Which directives said what a mistake of the whole graph is about."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.cli.directives.blame import blamed, indented, pointed
from fidgpt.graph import ConfigError, ConfigErrors, Saying, find_place, resolve
from fidgpt.graph.errors import listed
from fidgpt.graph.history.sayings import sayings_of
from fidgpt.graph.history.story import sayings_at
from fidgpt.graph.selecting.place import Place
from fidgpt.graph.structure.walk import join

_SPEAKER = re.compile(r"directive (\d+): ((?!config(?:_file|_str)?:).*)", re.DOTALL)
_STEP = r"\.[A-Za-z_]\w*|\[[^\]\s]+\]"
_BEGIN = re.compile(rf"[A-Za-z_]\w*(?:{_STEP})*")
_PATH = re.compile(rf"\b[A-Za-z_]\w*(?:{_STEP})+")
_ITEM = re.compile(r"\[\d+\]")
_VALUE = re.compile(r"(?<![\w.\]])([A-Za-z_]\w*)=")
_SAYER = re.compile(r"said by (\S+)")
_IN_FORMULA = re.compile(r"\{([^{}]+)\}")
_OF_A_FILE = "the config: "  # before what is said of a config that is being saved
_ELSEWHERE = " It exists at "  # what follows is where one may have meant


class Culprits:
    """Finds the directives behind the mistakes of a graph, by the places that messages name.

    Args:
      root: the graph as the directives made it.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._heard: dict[tuple[int, Any], list[Saying]] = {}
        with contextlib.suppress(ConfigError):  # what cannot be bound is among the mistakes
            for one in resolve(root):
                said = sayings_of(one.said.node.value, one.said.key)
                self._heard[id(one.part), one.key] = said

    def told(self, error: ConfigError) -> list[str]:
        """Every mistake, with the directives that said what it is about, where some did."""
        return _blocks([(one, self.behind(one)) for one in grouped(_messages(error))])

    def told_of_directives(self, error: ConfigError) -> list[str]:
        """The same of those mistakes only that have a directive behind them."""
        found = [(one, self.behind(one)) for one in grouped(_messages(error))]
        return _blocks([(message, directives) for message, directives in found if directives])

    def behind(self, message: str) -> dict[int, str]:
        """The directives, by number, that said the values in the places that a message names.

        The config that the graph began with said all the rest, and is none of them.
        """
        said = filter(None, map(self._speaker, self._places(message)))
        return dict(sorted((int(one[1]), one[2]) for one in said))

    def _places(self, message: str) -> Iterator[Place]:
        """Whole paths, and `name=value` of the part that the message begins with."""
        first = message.removeprefix(_OF_A_FILE).splitlines()[0].partition(_ELSEWHERE)[0]
        match = _BEGIN.match(first)
        begin = self._found(match[0]) if match else None
        around = begin.path if begin and isinstance(begin.value, fdl.Buildable) else ""
        values = [self._found(join(around, f".{name}")) for name in _VALUE.findall(message)]
        if begin is not None and not any(values):
            yield begin
        yield from filter(None, values)
        paths = _PATH.findall(first[len(around) :]) + _IN_FORMULA.findall(first)
        yield from filter(None, map(self._found, [*paths, *_SAYER.findall(message)]))

    def _found(self, path: str) -> Place | None:
        with contextlib.suppress(ConfigError):
            return find_place(self._root, path)
        return None

    def _speaker(self, place: Place) -> re.Match[str] | None:
        """The directive that spoke last of a place: of its value, or of what holds it."""
        nearest: Place | None = place
        while nearest is not None:
            heard = self._heard.get((id(nearest.container), nearest.key), [])
            if said := sayings_at(nearest) or heard:
                newest = heard[0] if heard and said[0].value is fdl.NO_VALUE else said[0]
                return _SPEAKER.fullmatch(newest.by or "")
            nearest = self._found(nearest.holder) if nearest.holder else None
        return None


def grouped(messages: list[str]) -> list[str]:
    """One message for all that differ only in which item of a list they are about."""
    alike: dict[str, list[str]] = {}
    for message in messages:
        alike.setdefault(_ITEM.sub("[]", message), []).append(message)
    return [_as_one(*group) for group in alike.values()]


def _as_one(first: str, *others: str) -> str:
    places = [match[0] for match in map(_BEGIN.match, others) if match]
    return f"{first}\nThe same at {listed(places, most=2)}." if places else first


def _messages(error: ConfigError) -> list[str]:
    return error.messages if isinstance(error, ConfigErrors) else [str(error)]


def _blocks(found: list[tuple[str, dict[int, str]]]) -> list[str]:
    """One text for all that the same directives made."""
    blocks: dict[tuple[Any, ...], list[str]] = {}
    for message, directives in found:
        blocks.setdefault(tuple(directives) or (message,), []).append(message)
    behind = dict(found)
    return [_told("\n".join(messages), behind[messages[0]]) for messages in blocks.values()]


def _told(message: str, directives: dict[int, str]) -> str:
    if not directives:
        return message
    if len(directives) == 1:
        ((number, directive),) = directives.items()
        return blamed(number, directive, message)
    *others, last = map(str, directives)
    shown = [pointed(directive, message) for directive in directives.values()]
    first = f"directives {', '.join(others)} and {last} do not go together:"
    return "\n".join([first, *shown, indented(message)])
