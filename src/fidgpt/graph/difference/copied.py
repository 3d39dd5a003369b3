"""New items of a list that were made like one that it had, as `unroll` makes them.

A patch remembers which part each of them was made like, and in what it is different. Where that
part is another by the time the patch is applied, the new one would be like what is no more.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.pairing import Pairing
from fidgpt.graph.edits.alike import is_same
from fidgpt.graph.structure.arguments import Key, given
from fidgpt.graph.structure.walk import join, step_to, title
from fidgpt.graph.views.outline import leaf_text

Originals = dict[int, Any]  # the old part that a new one was made like, by the identity of the new


def originals(old: list[Any], new: list[Any], pairing: Pairing) -> Originals:
    """What the new items of a list, and the parts in them, were made like."""
    found: Originals = {}
    for i, item in enumerate(new):
        likely: Any = old[i % len(old)] if old else None
        todo = [(likely, item)] if _is_new_like(likely, item, pairing) else []
        while todo:
            first, second = todo.pop()
            found[id(second)] = first
            kept = given(first)
            pairs = [pair for key, one in given(second).items() for pair in _within(kept, key, one)]
            todo += [pair for pair in pairs if _is_new_like(*pair, pairing)]
    return found


def own_keys(old: Any, new: Any, pairing: Pairing, found: Originals) -> list[str]:
    """The arguments in which a new part is different from the one that it was made like."""
    olds, news = given(old), given(new)
    keys = {**olds, **news}
    alike = {
        key for key in olds.keys() & news.keys() if _is_copy(olds[key], news[key], pairing, found)
    }
    return [str(key) for key in keys if key not in alike]


def outdated(
    made: Mapping[str, Any], entries: Mapping[str, Any], reach: Callable[[str], Any]
) -> Iterator[str]:
    """Where the parts that new ones were made like have changed since.

    Args:
      made: the new parts by their names.
      entries: what a patch says of each.
      reach: what the graph holds at a path, before it is changed.
    """
    told: set[str] = set()
    copies = {name: entry["like"] for name, entry in entries.items() if "like" in entry}
    inner = {id(made[name]) for name in copies}
    for name, like in copies.items():
        now = reach(like["part"])
        for key, is_now, was in _differences(now, made[name], like["but"], inner):
            place = join(like["part"], key)
            if place not in told:
                told.add(place)
                yield (
                    f"{place} is {is_now} by now, and {join(name, key)}, which the difference made "
                    f"like it, is {was}: apply this difference before that change."
                )


def _differences(
    now: Any, part: Any, but: list[str], inner: set[int]
) -> Iterator[tuple[str, str, str]]:
    """The arguments, as steps, in which two parts differ that were alike, with both values."""
    if not isinstance(now, fdl.Buildable):
        yield "", _short(now), _short(part)
        return
    if fdl.get_callable(now) is not fdl.get_callable(part):
        yield "", title(now), title(part)
        return
    nows, news = given(now), given(part)
    for key in {**nows, **news}:
        values = nows.get(key, fdl.NO_VALUE), news.get(key, fdl.NO_VALUE)
        if str(key) not in but and not _is_alike(*values, inner):
            yield step_to(key), _short(values[0]), _short(values[1])


def _is_alike(now: Any, new: Any, inner: set[int]) -> bool:
    """Whether two arguments are alike; parts that were made like others are asked by themselves."""
    if isinstance(now, list | tuple) and type(now) is type(new):
        return len(now) == len(new) and all(
            _is_alike(*pair, inner) for pair in zip(now, new, strict=True)
        )
    if isinstance(now, dict) and isinstance(new, dict):
        return now.keys() == new.keys() and all(_is_alike(now[k], new[k], inner) for k in now)
    is_asked = id(new) in inner and isinstance(now, fdl.Buildable)
    return is_asked or is_same(now, new)


def _is_new_like(old: Any, new: Any, pairing: Pairing) -> bool:
    """Whether a part is new, and calls the same as an old one."""
    are_parts = isinstance(old, fdl.Buildable) and isinstance(new, fdl.Buildable)
    if not are_parts or type(old) is not type(new) or pairing.predecessor(new) is not None:
        return False
    return fdl.get_callable(old) is fdl.get_callable(new)


def _within(kept: Mapping[Key, Any], key: Key, new: Any) -> list[tuple[Any, Any]]:
    """Two arguments; of two lists of one length or two dicts of the same keys, the items."""
    old = kept.get(key, fdl.NO_VALUE)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        return list(zip(old, new, strict=True))
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return [(old[name], new[name]) for name in new]
    return [(old, new)]


def _is_copy(old: Any, new: Any, pairing: Pairing, found: Originals) -> bool:
    if isinstance(new, fdl.Buildable) and id(new) in found:
        return found[id(new)] is old
    if isinstance(new, list | tuple) and type(old) is type(new):
        return len(old) == len(new) and all(
            _is_copy(*pair, pairing, found) for pair in zip(old, new, strict=True)
        )
    if isinstance(new, dict) and isinstance(old, dict):
        return old.keys() == new.keys() and all(
            _is_copy(old[key], new[key], pairing, found) for key in new
        )
    return pairing.is_same(old, new)


def _short(value: Any) -> str:
    if value is fdl.NO_VALUE:
        return "not set"
    return f"a {title(value)}" if isinstance(value, fdl.Buildable) else f"{leaf_text(value):.60}"
