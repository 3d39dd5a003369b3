"""Trees of settings (`ml_collections.ConfigDict`, dataclasses, dicts) as directives."""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.compose.composition import compose
from fidgpt.compose.report import is_noop
from fidgpt.errors import ConfigErrors, raise_all
from fidgpt.graph import ConfigError, bind, fiddle, find_parameter, hints, read_value
from fidgpt.graph.paths import ParameterRef, describe
from fidgpt.graph.walk import join


def directives_of(tree: Any, *, base: str = "config:base") -> list[str]:
    """Return the directives that set the values of a tree of settings in a config.

    Names in the tree are paths of the graph: `tree.model.hidden_dim` is `model.hidden_dim`. Values
    that the graph already has, set, inherited or by default, need no directive.

    Args:
      tree: a dataclass instance, or an object with `.items()` such as a dict or a ConfigDict;
        values may be such objects too.
      base: the directive that creates the initial graph.

    Returns:
      `base`, and a `set:path=value` for each difference.

    Raises:
      ConfigErrors: all names that are not in the graph, with the nearest ones that are, and all
        values of the wrong type.
    """
    if (items := _items(tree)) is None:
        raise ConfigError(f"{describe(tree)} is not a dataclass and has no .items().")
    wanted: list[tuple[str, Any]] = []
    errors = _collect(items, "", compose([base]).config, wanted)
    directives = [base]
    try:
        directives = bring_about([base], wanted)
    except ConfigErrors as found:
        errors += found.messages
    raise_all(errors)
    return directives


def bring_about(directives: list[str], wanted: list[tuple[str, Any]]) -> list[str]:
    """Return `directives` that change something, and those that set the wanted values at paths.

    Raises:
      ConfigErrors: a path leads nowhere, or a value does not fit; all at once.
    """
    directives = [effect.text for effect in compose(directives).effects if not is_noop(effect)]
    while more := _changes(compose(directives).config, wanted):
        if directives[-len(more) :] == more:
            raise_all([f"{directive} does not result in that value." for directive in more])
        directives += more  # parameters that inherit a changed quantity may need a directive too
    return directives


def _changes(root: fdl.Buildable, wanted: Iterable[tuple[str, Any]]) -> list[str]:
    """Return a `set:` for each path whose value in the graph is not the wanted one.

    Values that are inherited or defaults are deferred until those that are set are right, because
    they may then need no directive.

    Raises:
      ConfigErrors: a path leads nowhere, or a value does not fit; all at once.
    """
    bound = bind(root)
    explicit: list[str] = []
    others: list[str] = []
    errors: list[str] = []
    for path, value in wanted:
        try:
            ref = find_parameter(bound, path)
            if not _is_same(_value_of(ref), value):
                is_set = find_parameter(root, path).value is not fdl.NO_VALUE
                (explicit if is_set else others).append(f"set:{path}={_text(ref, value)}")
        except ConfigError as error:
            errors.append(str(error))
    raise_all(errors)
    return explicit or others


def _collect(
    items: list[tuple[str, Any]], path: str, root: fdl.Buildable, wanted: list[tuple[str, Any]]
) -> list[str]:
    """Add the plain values of a tree and their paths to `wanted`; return the unknown names."""
    errors: list[str] = []
    for step, value in items:
        here = join(path, step)
        try:
            find_parameter(root, here)
        except ConfigError as error:  # one error for the whole subtree
            errors.append(str(error))
            continue
        inside = _items(value)
        if inside is None:
            wanted.append((here, value))
        else:
            errors += _collect(inside, here, root, wanted)
    return errors


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """Return the children of a branch, with their path steps; None for a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, list | tuple):
        is_branch = any(_items(item) is not None for item in value)
        return [(f"[{i}]", item) for i, item in enumerate(value)] if is_branch else None
    if not callable(getattr(value, "items", None)) or isinstance(value, type):
        return None
    return [
        (f".{key}" if str(key).isidentifier() else f"[{key!r}]", item)
        for key, item in value.items()
    ]


def _value_of(ref: ParameterRef) -> Any:
    if ref.value is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable):
        return fiddle.default_of(ref.container, ref.key)
    return ref.value


def _is_same(have: Any, wanted: Any) -> bool:
    """Return whether a graph's value equals the tree's, where lists equal tuples."""
    if isinstance(have, list | tuple) and isinstance(wanted, list | tuple):
        return len(have) == len(wanted) and all(map(_is_same, have, wanted))
    if isinstance(have, bool) is not isinstance(wanted, bool) or isinstance(have, fdl.Buildable):
        return have is wanted
    return bool(have == wanted) or (isinstance(wanted, str) and _word(have) == wanted)


def _word(value: Any) -> str | None:
    """Return the text of an enum member, a path or a dtype; None for other values."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return None
    return value.name if isinstance(value, enum.Enum) else str(value)


def _text(ref: ParameterRef, value: Any) -> str:
    """Return a value as a directive's text.

    Raises:
      ConfigError: no text parses to the value.
    """
    for text in filter(None, (_word(value), str(value), repr(value))):
        try:
            read = read_value(text, ref.hint)
        except ConfigError:
            continue
        if _is_same(read, value):
            ref.check(read)
            return text
    raise ConfigError(f"{ref.path} takes {hints.name_of(ref.hint)}, not {describe(value)}.")
