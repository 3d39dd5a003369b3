"""What a patch expects of the graph that it changes, beside what the changed places held.

A patch names items of lists by their positions, which mean the same only where the lists do, and
removes nodes with all that they hold. What that rests on is recorded when the patch is made, by
path, and compared before it is applied:

- of a list through which a change leads: its items, a node as what it calls;
- of a node that is removed, or that is copied to an added item of a list: what it calls, and its
  arguments;
- of a list that repeats until there are as many items as an argument gives, as blocks do over the
  depth, and that has one for each of them: that number.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from typing import Any

import fiddle as fdl

from fidgpt.errors import ConfigError
from fidgpt.graph import fiddle, formulas
from fidgpt.graph.binding import numbers_in
from fidgpt.graph.difference import places
from fidgpt.graph.difference.comparison import Comparison
from fidgpt.graph.paths import ParameterRef, num_entries
from fidgpt.graph.walk import join, parts, step_from, step_to

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
    rests_on: dict[str, Any] = {place: places.outside(items) for place, items in lists.items()}
    removed = [node.value for node in there if id(node.value) not in kept]
    copied = [comparison.original(node.value) for node in parts(new.root)]
    for part in [*removed, *filter(None, copied)]:
        rests_on[old.path(part)] = places.outside(part) | {"set": _given(part)}
    numbers = numbers_in(old.root), numbers_in(new.root)
    for was, now in comparison.pairs():
        for name, count in _repeats(now).items():
            items, counted = (join(old.path(was), step_to(key)) for key in (name, count))
            repeated = places.held(now, name)
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
                ref = places.follow(root, path)
            except ConfigError as error:
                yield Unmet(f"{path}: {error}", place=path)
                continue
            if wrong := places.difference_text(was, number_in(ref.container, ref.key)):
                lists = [name for name, key in _repeats(ref.container).items() if key == ref.key]
                yield Unmet(
                    f"{path}: {wrong}, and each entry of {' and '.join(lists)} was for one of "
                    "them: take the difference again from a config that agrees in this.",
                    place=path,
                )
    outline = cache(lambda place: places.outside(_value_at(root, place)))
    others: dict[str, Unmet | None] = {}
    for path in changed if expects else ():
        for place, items, index in _lists_on(root, path):
            was = expects.get(place)
            if isinstance(was, list) and index < len(items) and not others.get(place):
                others[place] = _other_item(places.follow(root, place), was, outline(place), index)
    yield from filter(None, others.values())


def _given(part: fdl.Buildable) -> dict[str, Any]:
    return {str(key): places.outside(value) for key, value in fiddle.set_arguments(part).items()}


def _changed_since(path: str, given: Mapping[str, Any], part: Any) -> Iterator[Unmet]:
    """Yield where a node that is to be removed, or was copied, has other arguments than it had."""
    if not isinstance(part, fdl.Buildable):
        return  # which is reported where it is held
    for name, (was, now) in places.both(given, _given(part), fdl.NO_VALUE):
        if wrong := places.difference_text(was, now):
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
    if len(now) > 1 and (wrong := places.difference_text(was[index], now[index])):
        path = f"{ref.path}[{index}]"
        return Unmet(f"{path}: {wrong}: {_REMEDY}.", place=path)
    return None


def _value_at(root: Any, path: str) -> Any:
    return reduce(places.held, places.keys_of(path), root)


def _repeats(holder: Any) -> Mapping[str, str]:
    return fiddle.repeats_of(holder) if isinstance(holder, fdl.Buildable) else {}


def _lists_on(root: Any, path: str) -> Iterator[tuple[str, Any, int]]:
    """Yield the lists and tuples through which a path leads, each with its path and the index."""
    place, value = "", root
    for key in places.keys_of(path):
        if isinstance(value, list | tuple) and isinstance(key, int):
            yield place, value, key
        place, value = join(place, step_from(value, key)), places.held(value, key)
