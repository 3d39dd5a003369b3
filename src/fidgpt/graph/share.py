"""Tying and untying of components."""

from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.cloning import clone_part
from fidgpt.graph.edits import Edit, Planned, carry_out
from fidgpt.graph.errors import ConfigError, listed
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.selectors import find_parameters
from fidgpt.graph.walk import nodes, title


def tie(root: Any, selector: str, source: str) -> list[Edit]:
    """Makes every selected place hold the very part that `source` holds.

    Returns:
      What changed; nothing where they hold it already.

    Raises:
      ConfigError: there is no part at the source, it is made anew at every call, it does not fit,
        or it would contain itself; the graph is as it was.
    """
    part = _part_at(find_parameter(root, source))
    if isinstance(part, fdl.ArgFactory):
        raise ConfigError(
            f"{source} is made anew at every call (an ArgFactory), so that two places that hold "
            "it would still get one each: make it a fdl.Config first."
        )
    inside = {id(node.value) for node in nodes(part)}
    planned: list[Planned] = []
    for place in find_parameters(root, selector):
        if id(place.container) in inside:
            raise ConfigError(
                f"{place.path} lies inside {source} ({title(part)}), which would contain itself."
            )
        planned.append((place, part))
    return carry_out(planned)


def untie(root: Any, selector: str) -> list[Edit]:
    """Gives every selected place a copy of its own of the part that it shares with others.

    The copy holds the same inner parts, as `clone_part` says. Where all places that share a part
    are selected, the first of them keeps it.

    Returns:
      What changed.

    Raises:
      ConfigError: a place holds no part, or nothing shares any of them; the graph is as it was.
    """
    found = find_parameters(root, selector)
    shared = {id(node.value): node for node in nodes(root) if node.is_shared}
    together: dict[int, list[ParameterRef]] = {}
    for place in found:
        if id(_part_at(place)) in shared:
            together.setdefault(id(place.value), []).append(place)
    if not together:
        paths = [node.path for node in shared.values()]
        known = f"Shared are {listed(paths, most=6)}." if paths else "No part is shared."
        raise ConfigError(f"nothing else holds {found[0].path} ({title(found[0].value)}). {known}")
    planned: list[Planned] = []
    for key, selected in together.items():
        is_all = len(selected) == len(shared[key].parents)
        planned += [(place, clone_part(place.value)) for place in selected[is_all:]]
    return carry_out(planned)


def _part_at(place: ParameterRef) -> fdl.Buildable:
    value = place.value
    if isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls):
        return value
    state = "not set" if value is fdl.NO_VALUE else describe(value)
    raise ConfigError(f"{place.path} is {state}, and only a part can be shared.")
