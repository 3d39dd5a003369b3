"""The formulas of a graph: what they name is looked up, and what they give is checked."""

from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.selecting.place import describe
from fidgpt.graph.signatures.annotations import members_of
from fidgpt.graph.signatures.hints import fits, hint_of, name_of
from fidgpt.graph.structure.arguments import Key, assign, default_of, given
from fidgpt.graph.structure.walk import Node, join, nodes
from fidgpt.graph.typed.formula import Number, formula, is_formula, names_in


def look_up_names(root: Any, found: list[Node]) -> None:
    """Gives each formula among the nodes of a graph that is being bound the values it names.

    Raises:
      ConfigErrors: names that lead nowhere, or to what is no number.
      ConfigError: a formula is computed from itself.
    """
    formulas = [node for node in found if is_formula(node.value)]
    mistakes: list[ConfigError] = []
    for node in formulas:
        known = dict(given(node.value).get("values") or {})
        for name in names_in(node.value.text):
            try:
                if name not in known:
                    known[name] = _referred(root, name)
            except ConfigError as error:
                told = f"{node.path} is {node.value.text}: {error}"
                mistakes.append(ConfigError(told, place=node.path, sources=[node.path, name]))
        assign(node.value, "values", known)
        if any(_asks_whole(hint) for _, hint in _asked(node)):
            assign(node.value, "whole", True)
    raise_all(mistakes)
    if circle := _circle(formulas):
        steps = [f"{node.path} is {node.value.text}" for node in circle]
        raise ConfigError(
            f"{', and '.join(steps)}: no number can be computed from itself.",
            sources=[node.path for node in circle],
        )
    if formulas:
        nodes(root)  # refuses a circle that leads through other parts


def _referred(root: Any, path: str) -> Any:
    """The value at a path of a graph in which every quantity has been heard."""
    place = find_place(root, path)
    value = place.value
    if value is fdl.NO_VALUE:
        value = default_of(place.container, place.key)
    if value is fdl.NO_VALUE:
        raise ConfigError(f"{place.path} has no value.")
    if isinstance(value, bool) or not fits(value, Number):
        raise ConfigError(f"{place.path} is {describe(value)}, and no number.")
    return value


def _circle(formulas: list[Node]) -> list[Node]:
    """The first formulas that are computed from each other in a circle."""
    known = {id(node.value): node for node in formulas}
    done: set[int] = set()
    for node in formulas:
        way: list[Any] = []
        inside: set[int] = set()
        left = [(node.value, 0)]
        while left:
            part, depth = left.pop()
            inside.difference_update(map(id, way[depth:]))
            del way[depth:]
            if id(part) in inside:
                first = next(i for i, passed in enumerate(way) if passed is part)
                return [known[id(one)] for one in way[first:]]
            if id(part) in done:
                continue
            done.add(id(part))
            inside.add(id(part))
            way.append(part)
            left += [(value, depth + 1) for value in part.values.values() if is_formula(value)]
    return []


def wrong_formulas(found: list[Node]) -> Iterator[ConfigError]:
    """What is wrong with the results of formulas whose inputs are all known by now."""
    results: dict[int, Any] = {}
    for node in reversed(found):
        if not is_formula(node.value):
            continue
        try:
            result = _result(node.value, results)
        except ConfigError as error:
            yield ConfigError(f"{node.path}: {error}", place=node.path, sources=_sources(node))
            continue
        results[id(node.value)] = result
        misfit = [asked for asked in _asked(node) if not fits(result, asked[1])]
        if result is not fdl.NO_VALUE and misfit:
            path, hint = misfit[0]
            yield ConfigError(
                f"{path} is {node.value.text} = {result!r}, and takes {name_of(hint)}.",
                place=path,
                sources=_sources(node),
            )


def _sources(node: Node) -> list[str]:
    """The paths of a formula and of all that it names; a tag is heard by an entry of its values."""
    tags = given(node.value).get("values") or {}
    return [
        node.path,
        *(
            f"{node.path}.values[{name!r}]" if isinstance(tags.get(name), TaggedValueCls) else name
            for name in names_in(node.value.text)
        ),
    ]


def _result(part: fdl.Buildable, results: Mapping[int, Any]) -> Any:
    """What a formula gives; `fdl.NO_VALUE` while an input is not known."""
    arguments = given(part)
    known: dict[str, Any] = {}
    for name, value in (arguments.get("values") or {}).items():
        if isinstance(value, TaggedValueCls):
            value = given(value).get("value", fdl.NO_VALUE)
        known[name] = results.get(id(value), fdl.NO_VALUE) if is_formula(value) else value
    is_complete = all(name in known for name in names_in(arguments["text"]))
    if not is_complete or not all(type(value) in (int, float) for value in known.values()):
        return fdl.NO_VALUE
    return formula(arguments["text"], known, arguments.get("whole", False))


def _asked(node: Node) -> Iterator[tuple[str, Any]]:
    """The parameters that hold a formula, each with its annotation."""
    for parent, step in node.parents:
        if isinstance(parent.value, fdl.Buildable) and not isinstance(parent.value, TaggedValueCls):
            key: Key = step[1:] if step.startswith(".") else int(step[1:-1])
            yield join(parent.path, step), hint_of(parent.value, key)


def _asks_whole(hint: Any) -> bool:
    return int in members_of(hint) and float not in members_of(hint)
