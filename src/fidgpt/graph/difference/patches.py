"""Patches: changes that are saved and read."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.difference.align import Pairing
from fidgpt.graph.edits import is_same
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import Key, set_arguments
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.storage.codec import encode, encode_dict, name_of
from fidgpt.graph.storage.files import read_json, to_json
from fidgpt.graph.storage.order import step_between
from fidgpt.graph.storage.writing import FORMAT as CONFIG_FORMAT
from fidgpt.graph.storage.writing import KINDS, TAGGED
from fidgpt.graph.walk import join, step_to, title

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
            kept = set_arguments(first)
            pairs = [
                pair
                for key, one in set_arguments(second).items()
                for pair in _within(kept, key, one)
            ]
            todo += [pair for pair in pairs if _is_new_like(*pair, pairing)]
    return found


def own_keys(old: Any, new: Any, pairing: Pairing, found: Originals) -> list[str]:
    """The arguments in which a new part is different from the one that it was made like."""
    olds, news = set_arguments(old), set_arguments(new)
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
    nows, news = set_arguments(now), set_arguments(part)
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


FORMAT = "fidgpt.patch"
VERSION = 1
Changes = dict[str, dict[str, Any]]  # by the path of a place


class Patch:
    """What makes an old graph a new one.

    Attributes:
      changes: by the path of the place in the old graph.
      parts: the new parts by their path in the new graph.
      known: the callables by their names.
    """

    def __init__(self, changes: Changes, parts: Changes, known: dict[str, Any]) -> None:
        self.changes = changes
        self.parts = parts
        self.known = known

    def text(self) -> str:
        """The patch as the text of a file."""
        return to_json(
            {
                "format": FORMAT,
                "version": VERSION,
                "changes": self.changes,
                "parts": self.parts,
            }
        )


def patch_of(old: Any, new: Any) -> Patch:
    """What to change so that `old` is written as `new` is; quantities that are open stay open.

    Raises:
      ConfigError: a value has no form in a file.
    """
    return make_patch(Pairing(old, new))


def make_patch(pairing: Pairing) -> Patch:
    """The patch for two graphs whose parts are paired.

    Raises:
      ConfigError: as `patch_of` does.
    """
    return _Making(pairing).patch()


class _Making:
    """Writes down all places in which two graphs differ."""

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._changes: Changes = {}
        self._parts: Changes = {}
        self._known: dict[str, Any] = {}
        self._new: list[Any] = []
        self._originals: Originals = {}

    def patch(self) -> Patch:
        old, new = self._pairing.old.root, self._pairing.new.root
        if not self._pairing.is_same(old, new):
            self._put("", old, new)
        for one, other in self._pairing.pairs:
            self._compare(one, other)
        while self._new:
            part = self._new.pop()
            path = self._pairing.new.path(part)
            with at(path or "the root"):
                self._parts[path] = self._entry(part)
        return Patch(self._changes, dict(sorted(self._parts.items())), self._known)

    def _compare(self, old: Any, new: Any) -> None:
        """Two parts, one of which goes on as the other."""
        path = self._pairing.old.path(old)
        calls = [fdl.get_callable(part) for part in (old, new)]
        if calls[0] is not calls[1] and calls[0] != calls[1]:
            self._at(path)["call"] = [self._name(call) for call in calls]
        olds, news = set_arguments(old), set_arguments(new)
        for key in {**olds, **news}:
            place = join(path, step_between(old, key))
            values = olds.get(key, fdl.NO_VALUE), news.get(key, fdl.NO_VALUE)
            with at(place):
                self._place(place, *values)
        tags = [{key: own for key, own in p.__argument_tags__.items() if own} for p in (old, new)]
        for key in {**tags[0], **tags[1]}:
            before, now = tags[0].get(key, set()), tags[1].get(key, set())
            if before != now:
                place = join(path, step_between(old, key))
                self._at(place)["tags"] = [sorted(map(self._name, one)) for one in (before, now)]

    def _place(self, path: str, old: Any, new: Any) -> None:
        """What to change in a place; in the items alone where the rest of a list stays."""
        if self._pairing.is_same(old, new):
            return
        is_open = type(old) is type(new) and self._pairing.old.is_held_once(old)
        if is_open and isinstance(old, dict) and all(isinstance(key, str) for key in old | new):
            for key in old | new:
                values = old.get(key, fdl.NO_VALUE), new.get(key, fdl.NO_VALUE)
                self._place(f"{path}[{key!r}]", *values)
        elif is_open and isinstance(old, list) and len(old) == len(new):
            for i, values in enumerate(zip(old, new, strict=True)):
                self._place(f"{path}[{i}]", *values)
        else:
            self._put(path, old, new)

    def _put(self, path: str, old: Any, new: Any) -> None:
        change = self._at(path)
        if isinstance(old, list) and isinstance(new, list):
            self._originals |= originals(old, new, self._pairing)
        if old is not fdl.NO_VALUE:
            change["old"] = outside(old)
        if new is not fdl.NO_VALUE:
            change["new"] = self._value(new)

    def _at(self, path: str) -> dict[str, Any]:
        return self._changes.setdefault(path, {})

    def _entry(self, part: Any) -> dict[str, Any]:
        """A new part."""
        kind = TAGGED if isinstance(part, TaggedValueCls) else type(part).__name__
        if kind not in (*KINDS, TAGGED):
            raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
        tags = {key: own for key, own in part.__argument_tags__.items() if own}
        entry = {
            kind: None if kind == TAGGED else self._name(fdl.get_callable(part)),
            "set": {str(key): self._value(value) for key, value in set_arguments(part).items()},
            "tags": {str(key): sorted(map(self._name, own)) for key, own in tags.items()},
        }
        if (old := self._originals.get(id(part))) is not None:
            but = own_keys(old, part, self._pairing, self._originals)
            entry["like"] = {"part": self._pairing.old.path(old), "but": but}
        return entry

    def _value(self, value: Any) -> Any:
        if isinstance(value, fdl.Buildable):
            old = self._pairing.predecessor(value)
            if old is not None:
                return {"keep": self._pairing.old.path(old)}
            path = self._pairing.new.path(value)
            if path not in self._parts:
                self._parts[path] = {}
                self._new.append(value)
            return {"part": path}
        if type(value) is list:
            return [self._value(item) for item in value]
        if type(value) is tuple:
            return {"tuple": [self._value(item) for item in value]}
        if type(value) is dict:
            return encode_dict(value, lambda key: self._value(value[key]))
        for name, thing in _named_in(value):
            self._known[name] = thing
        return encode(value, {})

    def _name(self, thing: Any) -> str:
        name = name_of(thing)
        self._known[name] = thing
        return name


def outside(value: Any) -> Any:
    """What a place held, as far as it is compared: of a part, what it calls."""
    if isinstance(value, fdl.Buildable):
        return {"a": getattr(fdl.get_callable(value), "__qualname__", "?")}
    if isinstance(value, list | tuple):
        return [outside(item) for item in value]
    if isinstance(value, dict):
        return encode_dict(value, lambda key: outside(value[key]))
    try:
        return encode(value, {})
    except ConfigError:
        return {"a": type(value).__name__}


def read_patch(text: str, *, source: str = "the patch") -> Patch:
    """The patch that a text holds.

    Raises:
      ConfigError: it holds none.
    """
    text = text.removeprefix("\ufeff")  # the mark that some editors put before UTF-8 text
    if not text.strip():
        raise ConfigError(f"{source} is empty: it holds no patch.")
    try:
        with at(source):
            document = read_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        is_config = isinstance(document, dict) and document.get("format") == CONFIG_FORMAT
        why = "it is a whole config" if is_config else f"it does not say format {FORMAT!r}"
        raise ConfigError(f"{source} is not a fidgpt patch: {why}.")
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{source} has version {document.get('version')!r:.40}, and this fidgpt reads "
            f"{VERSION}."
        )
    changes, parts = document.get("changes"), document.get("parts")
    for one in (changes, parts):
        if not isinstance(one, dict) or not all(isinstance(item, dict) for item in one.values()):
            raise ConfigError(f"{source} is damaged: it says `changes` and `parts` by path.")
    return Patch(changes or {}, parts or {}, {})


def _named_in(value: Any) -> Iterator[tuple[str, Any]]:
    """The classes and functions that the form of a value in a file names."""
    thing = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    try:
        yield name_of(thing), thing
    except ConfigError:
        return
