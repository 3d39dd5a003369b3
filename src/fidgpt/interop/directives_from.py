"""Trees of settings from Python (`ml_collections.ConfigDict`, dataclasses, dicts) as directives."""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, bind, find_parameter, read_value
from fidgpt.graph.errors import ConfigErrors, raise_all
from fidgpt.graph.fiddle import default_of
from fidgpt.graph.hints import name_of
from fidgpt.graph.paths import ParameterRef, describe
from fidgpt.graph.walk import join


def directives_of(tree: Any, *, base: str = "config:base") -> list[str]:
    """The directives that bring a config to what a tree of settings says.

    The tree's names are paths of the graph: `tree.model.hidden_dim` is `model.hidden_dim`. A value
    that the graph has already, said, heard from above or by default, needs no directive.

    Args:
      tree: a dataclass instance, or what has `.items()`, such as a dict or a ConfigDict; and so on
        inside of it.
      base: the directive with which the graph begins.

    Returns:
      `base`, and a `set:path=value` for each difference.

    Raises:
      ConfigErrors: names that have no place in the graph, with the nearest that have, and values
        that do not fit; all in one go.
    """
    wanted, mistakes = _wanted(tree, compose([base]).config)
    directives = [base]
    try:
        directives = bring_about([base], wanted)
    except ConfigErrors as errors:
        mistakes += errors.messages
    raise_all(mistakes)
    return directives


def bring_about(directives: list[str], wanted: list[tuple[str, Any]]) -> list[str]:
    """Some directives, and after them those that give the wanted values to paths of their graph.

    Raises:
      ConfigErrors: a path leads nowhere, or a value does not fit; all in one go.
    """
    directives = [*directives]
    while more := changes(compose(directives).config, wanted):
        if directives[-len(more) :] == more:
            raise_all([f"{one} gives something else than that value." for one in more])
        directives += more  # what hears a changed quantity may have to be told once more
    return directives


def changes(root: fdl.Buildable, wanted: Iterable[tuple[str, Any]]) -> list[str]:
    """A `set:` for each path at which the graph has another value than the one wanted.

    Values that are only heard, or defaults, wait until those that are said are right: what hears
    them may then need no directive of its own.

    Raises:
      ConfigErrors: a path leads nowhere, or a value does not fit; all in one go.
    """
    bound = bind(root)
    said, others, mistakes = [], [], []
    for path, value in wanted:
        try:
            place = find_parameter(bound, path)
            if not _is_same(_value_at(place), value):
                is_said = find_parameter(root, path).value is not fdl.NO_VALUE
                (said if is_said else others).append(f"set:{path}={_text(place, value)}")
        except ConfigError as error:
            mistakes.append(str(error))
    raise_all(mistakes)
    return said or others


def _wanted(tree: Any, root: fdl.Buildable) -> tuple[list[tuple[str, Any]], list[str]]:
    """The plain values of a tree with their paths, and what is wrong with its names."""
    if (items := _items(tree)) is None:
        raise ConfigError(f"{describe(tree)} is no dataclass and has no .items().")
    wanted: list[tuple[str, Any]] = []
    mistakes: list[str] = []
    way = {id(tree)}
    todo: list[tuple[str, Any, bool]] = [(step.removeprefix("."), v, False) for step, v in items]
    todo.reverse()
    while todo:
        path, value, is_left = todo.pop()
        if is_left:
            way.discard(id(value))
            continue
        try:
            find_parameter(root, path)
        except ConfigError as error:  # of what lies below nobody needs to hear
            mistakes.append(str(error))
            continue
        items = _items(value)
        if items is None:
            wanted.append((path, value))
            continue
        if id(value) in way:
            raise ConfigError(f"{path:.80} holds the {type(value).__name__} that it lies in.")
        way.add(id(value))
        todo.append((path, value, True))
        todo += [(join(path, step), item, False) for step, item in reversed(items)]
    return wanted, mistakes


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """What a branch of the tree holds, each with the step to it; None for a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, list | tuple):
        is_branch = any(_items(item) is not None for item in value)
        return [(f"[{i}]", item) for i, item in enumerate(value)] if is_branch else None
    if not callable(getattr(value, "items", None)) or isinstance(value, type):
        return None
    try:
        items = list(value.items())
    except Exception as error:  # a ConfigDict of which a value must be said and was not
        raise ConfigError(f"{type(value).__name__} cannot be read: {error}") from error
    return [(_step(key), item) for key, item in items]


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _value_at(place: ParameterRef) -> Any:
    if place.value is fdl.NO_VALUE and isinstance(place.container, fdl.Buildable):
        return default_of(place.container, place.key)
    return place.value


def _is_same(have: Any, wanted: Any) -> bool:
    """Whether a graph's value is the one that somebody else's tree says: (1, 2) is [1, 2] there."""
    if isinstance(have, list | tuple) and isinstance(wanted, list | tuple):
        return len(have) == len(wanted) and all(map(_is_same, have, wanted))
    if isinstance(have, bool) is not isinstance(wanted, bool) or isinstance(have, fdl.Buildable):
        return have is wanted
    return bool(have == wanted) or (isinstance(wanted, str) and _word(have) == wanted)


def _word(value: Any) -> str | None:
    """The word for a value that is none itself: the name of an enum's member, a path, a dtype."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return None
    return value.name if isinstance(value, enum.Enum) else str(value)


def _text(place: ParameterRef, value: Any) -> str:
    """How to type a value, so that it is read as that value.

    Raises:
      ConfigError: no text is.
    """
    for form in filter(None, (_word(value), str(value), repr(value))):
        try:
            read = read_value(form, place.hint)
        except ConfigError:
            continue
        if _is_same(read, value):
            place.check(read)
            return form
    raise ConfigError(f"{place.path} takes {name_of(place.hint)}, not {describe(value)}.")
