"""Patches: changes that are saved and read."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.difference.comparison import Comparison
from fidgpt.graph.edits import is_same
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import nonempty_tags, set_arguments
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.storage.bound import BoundGraph, value_key
from fidgpt.graph.storage.codec import encode, encode_dict, name_of
from fidgpt.graph.storage.files import read_json, to_json
from fidgpt.graph.storage.writing import FORMAT as CONFIG_FORMAT
from fidgpt.graph.storage.writing import KINDS, TAGGED
from fidgpt.graph.walk import IS_PART, join, step_to, title


def pair(old: Any, new: Any) -> Comparison:
    """Compare two graphs as they are written, without binding them.

    Raises:
      ConfigError: a node of one contains itself.
    """
    return Comparison(BoundGraph(old, bound=False), BoundGraph(new, bound=False))


def step_between(holder: Any, key: Any) -> str:
    """Return the step from a node to what it holds under a key."""
    return step_to(key) if IS_PART[type(holder)] else f"[{key!r}]"


def outdated(
    made: Mapping[str, Any], entries: Mapping[str, Any], reach: Callable[[str], Any]
) -> Iterator[str]:
    """Where the parts that new ones were made like have changed since.

    Args:
      made: the new parts by their names.
      entries: the entry of each in a patch.
      reach: what the graph holds at a path, before it is changed.
    """
    reported: set[str] = set()
    copies = {name: entry["like"] for name, entry in entries.items() if "like" in entry}
    inner = {id(made[name]) for name in copies}
    for name, like in copies.items():
        now = reach(like["part"])
        for key, is_now, was in _differences(now, made[name], like["but"], inner):
            place = join(like["part"], key)
            if place not in reported:
                reported.add(place)
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
    """Return the patch after which `old` is written as `new` is; unset quantities stay unset.

    Raises:
      ConfigError: a value has no form in a file.
    """
    return make_patch(pair(old, new))


def make_patch(comparison: Comparison) -> Patch:
    """Return the patch for two graphs whose parts are paired by `pair`.

    Raises:
      ConfigError: as `patch_of` does.
    """
    return _Maker(comparison).patch()


class _Maker:
    """Collects all places in which two graphs differ."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._changes: Changes = {}
        self._parts: Changes = {}
        self._known: dict[str, Any] = {}
        self._new: list[Any] = []
        self._same: dict[tuple[int, int], bool] = {}

    def patch(self) -> Patch:
        old, new = self._comparison.old.root, self._comparison.new.root
        if not self._is_same(old, new):
            self._put("", old, new)
        for one, other in self._comparison.pairs():
            self._compare(one, other)
        while self._new:
            part = self._new.pop()
            path = self._comparison.new.path(part)
            with at(path or "the root"):
                self._parts[path] = self._entry(part)
        return Patch(self._changes, dict(sorted(self._parts.items())), self._known)

    def _is_same(self, old: Any, new: Any, *, copies: bool = False) -> bool:
        """Return whether two places hold the same: paired parts, or equal values.

        Args:
          old: what the place of the old graph holds.
          new: what that of the new one holds.
          copies: whether a new part is the same as the old one that it is a copy of.
        """
        if IS_PART[type(old)] or IS_PART[type(new)]:
            original = self._comparison.original(new) if copies else None
            return IS_PART[type(old)] and (original or self._kept(new)) is old
        if not isinstance(new, list | tuple | dict) or type(old) is not type(new):
            return value_key(old) == value_key(new)
        ids = id(old), id(new)
        if copies or ids not in self._same:
            olds, news = (
                one if isinstance(one, dict) else dict(enumerate(one)) for one in (old, new)
            )
            self._same[ids] = olds.keys() == news.keys() and all(
                self._is_same(olds[key], news[key], copies=copies) for key in news
            )
        return self._same[ids]

    def _kept(self, new: Any) -> Any:
        """Return the old part that becomes a new one by changes; None where there is none."""
        old = self._comparison.predecessor(new)
        return old if type(old) is type(new) else None

    def _compare(self, old: Any, new: Any) -> None:
        """Compare two parts that are paired."""
        path = self._comparison.old.path(old)
        calls = [fdl.get_callable(part) for part in (old, new)]
        if calls[0] is not calls[1] and calls[0] != calls[1]:
            self._at(path)["call"] = [self._name(call) for call in calls]
        olds, news = set_arguments(old), set_arguments(new)
        for key in {**olds, **news}:
            place = join(path, step_to(key))
            values = olds.get(key, fdl.NO_VALUE), news.get(key, fdl.NO_VALUE)
            with at(place):
                self._place(place, *values)
        tags = nonempty_tags(old), nonempty_tags(new)
        for key in {**tags[0], **tags[1]}:
            before, now = (one.get(key, frozenset()) for one in tags)
            if before != now:
                place = join(path, step_to(key))
                self._at(place)["tags"] = [sorted(map(self._name, one)) for one in (before, now)]

    def _place(self, path: str, old: Any, new: Any) -> None:
        """What to change in a place; in the items alone where the rest of a list stays."""
        if self._is_same(old, new):
            return
        node = self._comparison.old.node_of.get(id(old))
        is_open = type(old) is type(new) and node is not None and len(node.parents) == 1
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
        tags = nonempty_tags(part).items()
        entry = {
            kind: None if kind == TAGGED else self._name(fdl.get_callable(part)),
            "set": {str(key): self._value(value) for key, value in set_arguments(part).items()},
            "tags": {str(key): sorted(map(self._name, own)) for key, own in tags},
        }
        if (old := self._comparison.original(part)) is not None:
            olds, news = set_arguments(old), set_arguments(part)
            values = {key: (olds.get(key), news.get(key)) for key in {**olds, **news}}
            but = [
                str(key)
                for key, pair in values.items()
                if not (key in olds and key in news and self._is_same(*pair, copies=True))
            ]
            entry["like"] = {"part": self._comparison.old.path(old), "but": but}
        return entry

    def _value(self, value: Any) -> Any:
        if isinstance(value, fdl.Buildable):
            old = self._kept(value)
            if old is not None:
                return {"keep": self._comparison.old.path(old)}
            path = self._comparison.new.path(value)
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
            raise ConfigError(f"{source} is damaged: it must have `changes` and `parts` by path.")
    return Patch(changes or {}, parts or {}, {})


def _named_in(value: Any) -> Iterator[tuple[str, Any]]:
    """The classes and functions that the form of a value in a file names."""
    thing = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    try:
        yield name_of(thing), thing
    except ConfigError:
        return
