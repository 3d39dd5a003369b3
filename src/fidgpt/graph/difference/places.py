"""Places that a patch names: what they held when it was made, and what they hold now.

A patch names items of lists by their positions, which mean the same only where the lists do, and
removes nodes with all that they hold. What that rests on is recorded when the patch is made, by
path, and compared before it is applied:

- of a list through which a change leads: its items, a node as what it calls;
- of a node that is removed, or that is copied to an added item of a list: what it calls, and its
  arguments;
- of a list that repeats until there are as many items as an argument gives, as blocks do over the
  depth, and that has one for each of them: that number.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from typing import Any

import fiddle as fdl

from fidgpt.errors import ConfigError
from fidgpt.graph import codec, fiddle, files, formulas
from fidgpt.graph.binding import numbers_in
from fidgpt.graph.difference.comparison import Comparison
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, num_entries, parse_path
from fidgpt.graph.walk import IS_NODE, join, parts, step_from, step_to, title


def both(
    old: Mapping[Any, Any], new: Mapping[Any, Any], default: Any
) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """Yield the keys of two mappings, each with both values."""
    for key in {**old, **new}:
        yield key, (old.get(key, default), new.get(key, default))


def outside(value: Any) -> Any:
    """Return what a place held, as far as it is compared: of a node, what it calls.

    A formula is a value, as its text has it.
    """
    if value is fdl.NO_VALUE:
        return value
    if formulas.is_formula(value):
        return {"formula": fiddle.set_arguments(value)["text"]}
    if isinstance(value, fdl.Buildable):
        return {"a": getattr(fdl.get_callable(value), "__qualname__", "?")}
    if isinstance(value, list | tuple):
        return [outside(item) for item in value]
    try:
        if isinstance(value, dict):
            return codec.encode_items(value, outside)
        return codec.encode(value)
    except ConfigError:
        return {"a": type(value).__name__}


def text_of(value: Any, made: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return a value of a patch, or of a graph, for a message.

    Args:
      value: the value.
      made: the new nodes of the patch.
    """
    if value is fdl.NO_VALUE:
        return "not set"
    match value:
        case fdl.Buildable():
            return leaf_text(value) if formulas.is_formula(value) else f"a {title(value)}"
        case {"a": name, **rest} if not rest:
            return f"a {name}"
        case {"formula": str(text), **rest} if not rest:
            return text
        case {"keep": path, **rest} if not rest:
            return f"the part at {path or 'the root'}"
        case {"part": str(path), **rest} if not rest:
            return _text_of_new((made or {}).get(path, {}))
        case list() if any(isinstance(item, dict) for item in value):
            return f"[{', '.join(text_of(item, made) for item in value):.200}]"
    return f"{value!r:.60}"


def _text_of_new(entry: Mapping[str, Any]) -> str:
    called = next((str(entry[kind]) for kind in files.KINDS if kind in entry), "")
    if called == codec.name_of(formulas.formula):
        return str(entry["set"]["text"])
    return f"a new {called.rpartition(':')[2] or 'part'}"


def difference_text(was: Any, now: Any) -> str | None:
    """Return how a place differs from what `outside` returned; None if it does not."""
    if repr(was) == repr(now):
        return None
    return f"it was {text_of(was)} when the difference was taken, but is {text_of(now)}"


def keys_of(path: str) -> list[fiddle.Key]:
    """Return the keys of a path; none for the root."""
    return parse_path(path) if path else []


def held(holder: Any, key: fiddle.Key) -> Any:
    """Return what a node holds under a key; `fdl.NO_VALUE` where there is nothing."""
    try:
        return (fiddle.raw_arguments(holder) if isinstance(holder, fdl.Buildable) else holder)[key]
    except (LookupError, TypeError):
        return fdl.NO_VALUE


def follow(root: Any, path: str, *, is_there: bool = False) -> ParameterRef:
    """Return the place at a path, which may hold nothing unless `is_there`.

    Raises:
      ConfigError: there is no such place.
    """
    ref = ParameterRef.to_root(root)
    for key in keys_of(path):
        ref = ParameterRef(held(ref.container, ref.key), key, ref)
        if not IS_NODE[type(ref.container)]:
            raise ConfigError("there is no such path in this graph.")
    if is_there and held(ref.container, ref.key) is fdl.NO_VALUE:
        raise ConfigError("there is no such path in this graph.")
    return ref


def checked_place(
    root: Any, path: str, change: Mapping[str, Any], find: codec.Find
) -> ParameterRef:
    """Look up a place, and check that it holds what it did when the patch was made.

    Raises:
      ConfigError: there is no such place, or it holds something else.
    """
    ref = follow(root, path)
    value = held(ref.container, ref.key)
    if "call" in change and not _calls(value, change["call"][0], find):
        called = str(change["call"][0]).rpartition(":")[2]
        now = f"is {text_of(value)}"
        raise ConfigError(f"it was a {called} when the difference was taken, but {now}.")
    was = change.get("old", fdl.NO_VALUE)
    if change.keys() & {"old", "new"} and (wrong := difference_text(was, outside(value))):
        raise ConfigError(f"{wrong}.")
    return ref


def _calls(value: Any, name: str, find: codec.Find) -> bool:
    """Return whether a node calls what has a name, or had it."""
    called = fdl.get_callable(value) if isinstance(value, fdl.Buildable) else None
    with contextlib.suppress(ConfigError):
        return called is not None and (codec.name_of(called) == name or called is find(name))
    return False


_REMEDY = "apply this difference before that change, or take it again"


class Unmet(ConfigError):
    """A graph is not as a patch expects it."""


def expected(comparison: Comparison, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the difference of two graphs expects of the old one, by path.

    Args:
      comparison: of the two graphs, as they are written.
      changed: the places that the difference changes, by path.
    """
    old, new = comparison.old, comparison.new
    kept = {id(node) for node, _ in comparison.pairs()}
    there = parts(old.root)
    values = [parts(node.value) for node in there if formulas.is_formula(node.value)]
    kept |= {id(node.value) for inside in values for node in inside}  # values are not removed
    lists = {place: items for path in changed for place, items, _ in _lists_on(old.root, path)}
    rests_on: dict[str, Any] = {place: outside(items) for place, items in lists.items()}
    removed = [node.value for node in there if id(node.value) not in kept]
    copied = [comparison.original(node.value) for node in parts(new.root)]
    for part in [*removed, *filter(None, copied)]:
        rests_on[old.path(part)] = outside(part) | {"set": _given(part)}
    numbers = numbers_in(old.root), numbers_in(new.root)
    for was, now in comparison.pairs():
        for name, count in _repeats(now).items():
            items, counted = (join(old.path(was), step_to(key)) for key in (name, count))
            repeated = held(now, name)
            num_items = 0 if repeated is fdl.NO_VALUE else len(repeated)
            if num_items < 2 or counted in changed or not (items in rests_on or items in changed):
                continue
            before, after = numbers[0](was, count), numbers[1](now, count)
            if isinstance(before, int) and isinstance(after, int) and num_items >= after:
                rests_on[counted] = before
    return rests_on


def unmet(root: Any, changed: Iterable[str], expects: Mapping[str, Any]) -> Iterator[Unmet]:
    """Yield the values in a graph that differ from what the patch of some changes expects."""
    number_in = numbers_in(root)
    for path, was in expects.items():
        if isinstance(was, dict):
            yield from _changed_since(path, was["set"], _value_at(root, path))
        elif not isinstance(was, list):
            try:
                ref = follow(root, path)
            except ConfigError as error:
                yield Unmet(f"{path}: {error}", place=path)
                continue
            if wrong := difference_text(was, number_in(ref.container, ref.key)):
                lists = [name for name, key in _repeats(ref.container).items() if key == ref.key]
                yield Unmet(
                    f"{path}: {wrong}, and each entry of {' and '.join(lists)} was for one of "
                    "them: take the difference again from a config that agrees in this.",
                    place=path,
                )
    outline = cache(lambda place: outside(_value_at(root, place)))
    others: dict[str, Unmet | None] = {}
    for path in changed if expects else ():
        for place, items, index in _lists_on(root, path):
            was = expects.get(place)
            if isinstance(was, list) and index < len(items) and not others.get(place):
                others[place] = _other_item(follow(root, place), was, outline(place), index)
    yield from filter(None, others.values())


def _given(part: fdl.Buildable) -> dict[str, Any]:
    return {str(key): outside(value) for key, value in fiddle.set_arguments(part).items()}


def _changed_since(path: str, given: Mapping[str, Any], part: Any) -> Iterator[Unmet]:
    """Yield where a node that is to be removed, or was copied, has other arguments than it had."""
    if not isinstance(part, fdl.Buildable):
        return  # which is reported where it is held
    for name, (was, now) in both(given, _given(part), fdl.NO_VALUE):
        if wrong := difference_text(was, now):
            place = join(path, step_to(int(name) if name.isdecimal() else name))
            yield Unmet(f"{place}: {wrong}: {_REMEDY}.", place=place)


def _other_item(ref: ParameterRef, was: list[Any], now: list[Any], index: int) -> Unmet | None:
    """Return an error if the item of a list is another one than it was, or may be."""
    if len(was) != len(now):
        return Unmet(
            f"{ref.path}: it had {num_entries(was)} when the difference was taken, but has "
            f"{num_entries(now)}, so that [{index}] may be another: {_REMEDY}.",
            place=ref.path,
        )
    if len(now) > 1 and (wrong := difference_text(was[index], now[index])):
        path = f"{ref.path}[{index}]"
        return Unmet(f"{path}: {wrong}: {_REMEDY}.", place=path)
    return None


def _value_at(root: Any, path: str) -> Any:
    return reduce(held, keys_of(path), root)


def _repeats(holder: Any) -> Mapping[str, str]:
    return fiddle.repeats_of(holder) if isinstance(holder, fdl.Buildable) else {}


def _lists_on(root: Any, path: str) -> Iterator[tuple[str, Any, int]]:
    """Yield the lists and tuples through which a path leads, each with its path and the index."""
    place, value = "", root
    for key in keys_of(path):
        if isinstance(value, list | tuple) and isinstance(key, int):
            yield place, value, key
        place, value = join(place, step_from(value, key)), held(value, key)
