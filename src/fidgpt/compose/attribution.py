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


def messages_of(
    composition: Composition, error: ConfigError, *, attributed_only: bool = False
) -> list[str]:
    """Return one message for all errors of the same directives, which it shows.

    Args:
      composition: whose graph is wrong.
      error: the errors.
      attributed_only: whether to leave out errors that no directive caused.
    """
    inherited: dict[tuple[int, Any], list[Assignment]] = {}
    with contextlib.suppress(ConfigError):  # a graph that cannot be bound is among the errors
        for item in composition.resolved.inherited:
            sources = assignments_of(item.binding.node.value, item.binding.key)
            inherited[id(item.part), item.key] = sources
    groups: dict[Any, tuple[list[Source], list[ConfigError]]] = {}
    for mistake in error.mistakes:
        refs = [_nearest(composition.config, path) for path in mistake.sources]
        behind = dict.fromkeys(_source(ref, inherited) for ref in refs if ref)
        # Everything else was set by the config that the graph began with.
        directives = sorted(
            (s for s in behind if s and s.kind == "directive" and not (s.run or is_base(s.text))),
            key=lambda source: source.number,
        )
        key = tuple(directives) or _ITEM.sub("[]", str(mistake))
        if directives or not attributed_only:
            groups.setdefault(key, (directives, []))[1].append(mistake)
    return [directives_error(by, "\n".join(grouped(errors))) for by, errors in groups.values()]


def _nearest(root: Any, path: str) -> ParameterRef | None:
    """Return the parameter at a path, or the nearest one above that exists before binding."""
    with contextlib.suppress(ConfigError):
        keys = parse_path(path)
        for end in range(len(keys), 0, -1):
            with contextlib.suppress(ConfigError):
                return follow(root, keys[:end], path)
    return None


def _source(
    ref: ParameterRef, all_inherited: dict[tuple[int, Any], list[Assignment]]
) -> Source | None:
    """Return what last assigned a parameter, or what contains it."""
    nearest: ParameterRef | None = ref
    while nearest is not None:
        inherited = all_inherited.get((id(nearest.container), nearest.key), [])
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
