"""Errors of a graph with the directives that set the values from which they come."""

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.compose.composition import Composition
from fidgpt.compose.directives import is_base
from fidgpt.compose.messages import directives_error
from fidgpt.errors import listed
from fidgpt.graph import ConfigError
from fidgpt.graph.paths import ParameterRef, follow, parse_path
from fidgpt.graph.provenance import Assignment, Source, assignments_at, assignments_of

_ITEM = re.compile(r"\[\d+\]")


class Attribution:
    """Finds the directives that set the values from which the errors of a graph come."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._root = composition.config
        self._inherited: dict[tuple[int, Any], list[Assignment]] = {}
        with contextlib.suppress(ConfigError):  # a graph that cannot be bound is among the errors
            for inherited in composition.resolved.inherited:
                sources = assignments_of(inherited.binding.node.value, inherited.binding.key)
                self._inherited[id(inherited.part), inherited.key] = sources

    def messages(self, error: ConfigError, *, attributed_only: bool = False) -> list[str]:
        """Return one message for all errors of the same directives, which it shows.

        Args:
          error: the errors.
          attributed_only: whether to leave out errors that no directive caused.
        """
        groups: dict[Any, tuple[list[Source], list[ConfigError]]] = {}
        for mistake in error.mistakes:
            directives = self.directives_behind(mistake)
            key = tuple(directives) or _ITEM.sub("[]", str(mistake))
            if directives or not attributed_only:
                groups.setdefault(key, (directives, []))[1].append(mistake)
        return [directives_error(by, "\n".join(grouped(errors))) for by, errors in groups.values()]

    def directives_behind(self, error: ConfigError) -> list[Source]:
        """Return the directives, in order, that set the values from which an error comes.

        Everything else was set by the config that the graph began with, which is none of them.
        """
        sources = [self._source(ref) for path in error.sources if (ref := self._nearest(path))]
        behind = [one for one in sources if one and one.kind == "directive" and one.run is None]
        behind = [source for source in behind if not is_base(source.text)]
        return sorted(dict.fromkeys(behind), key=lambda source: source.number)

    def _nearest(self, path: str) -> ParameterRef | None:
        """Return the parameter at a path, or the nearest one above that exists before binding."""
        with contextlib.suppress(ConfigError):
            keys = parse_path(path)
            for end in range(len(keys), 0, -1):
                with contextlib.suppress(ConfigError):
                    return follow(self._root, keys[:end], path)
        return None

    def _source(self, ref: ParameterRef) -> Source | None:
        """Return what last assigned a parameter, or what contains it."""
        nearest: ParameterRef | None = ref
        while nearest is not None:
            inherited = self._inherited.get((id(nearest.container), nearest.key), [])
            if own := assignments_at(nearest) or inherited:
                return (inherited if inherited and own[0].value is fdl.NO_VALUE else own)[0].by
            nearest = nearest.above
        return None


def grouped(errors: Iterable[ConfigError]) -> list[str]:
    """Return one message for all errors that differ only in the index of an item of a list."""
    groups: dict[str, list[ConfigError]] = {}
    for error in errors:
        groups.setdefault(_ITEM.sub("[]", str(error)), []).append(error)
    messages: list[str] = []
    for first, *others in groups.values():
        places = [source.place for source in others if source.place]
        more = f"\nThe same at {listed(places, most=2)}." if places else ""
        messages.append(f"{first}{more}")
    return messages
