"""Which directives said what a mistake of the whole graph is about."""

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.cli.directives.blame import blamed, indented, pointed
from fidgpt.cli.directives.spelling import is_base
from fidgpt.graph import ConfigError, Saying, Speaker, resolve
from fidgpt.graph.errors import listed
from fidgpt.graph.history.sayings import sayings_of
from fidgpt.graph.history.story import sayings_at
from fidgpt.graph.selecting.paths import follow, parse_path
from fidgpt.graph.selecting.place import Place

_ITEM = re.compile(r"\[\d+\]")


class Culprits:
    """Finds the directives behind the mistakes of a graph, by the places that they come from.

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
        return _blocks([(one, self.behind(one)) for one in error.mistakes])

    def told_of_directives(self, error: ConfigError) -> list[str]:
        """The same of those mistakes only that have a directive behind them."""
        found = [(one, self.behind(one)) for one in error.mistakes]
        return _blocks([(mistake, directives) for mistake, directives in found if directives])

    def behind(self, mistake: ConfigError) -> dict[int, str]:
        """The directives, by number, that said the values from which a mistake comes.

        The config that the graph began with said all the rest, and is none of them.
        """
        places = filter(None, map(self._nearest, mistake.sources))
        said = [one for one in map(self._speaker, places) if one and _is_of_now(one)]
        return {one.number: one.text for one in sorted(said, key=lambda one: one.number)}

    def _nearest(self, path: str) -> Place | None:
        """The place at a path, or where none is yet, as before binding, the nearest above it."""
        with contextlib.suppress(ConfigError):
            keys = parse_path(path)
            for end in range(len(keys), 0, -1):
                with contextlib.suppress(ConfigError):
                    return follow(self._root, keys[:end], path)
        return None

    def _speaker(self, place: Place) -> Speaker | None:
        """Who spoke last of a place: of its value, or of what holds it."""
        nearest: Place | None = place
        while nearest is not None:
            heard = self._heard.get((id(nearest.container), nearest.key), [])
            if said := sayings_at(nearest) or heard:
                newest = heard[0] if heard and said[0].value is fdl.NO_VALUE else said[0]
                return newest.by
            nearest = self._nearest(nearest.holder) if nearest.holder else None
        return None


def _is_of_now(said: Speaker) -> bool:
    """Whether it was a directive of this command, and one that changed the graph."""
    return said.kind == "directive" and said.run is None and not is_base(said.text)


def grouped(mistakes: Iterable[ConfigError]) -> list[str]:
    """One message for all mistakes that differ only in which item of a list they are about."""
    alike: dict[str, list[ConfigError]] = {}
    for mistake in mistakes:
        alike.setdefault(_without_items(mistake), []).append(mistake)
    return [_as_one(*group) for group in alike.values()]


def _without_items(mistake: ConfigError) -> str:
    return _ITEM.sub("[]", str(mistake))


def _as_one(first: ConfigError, *others: ConfigError) -> str:
    places = [one.place for one in others if one.place]
    return f"{first}\nThe same at {listed(places, most=2)}." if places else str(first)


def _blocks(found: Iterable[tuple[ConfigError, dict[int, str]]]) -> list[str]:
    """One text for all that the same directives made."""
    blocks: dict[Any, tuple[dict[int, str], list[ConfigError]]] = {}
    for mistake, directives in found:
        key = tuple(directives) or _without_items(mistake)
        blocks.setdefault(key, (directives, []))[1].append(mistake)
    return [_told("\n".join(grouped(mistakes)), by) for by, mistakes in blocks.values()]


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
