"""Application of changes to a graph."""

from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue

from fidgpt.graph.cloning import clone
from fidgpt.graph.difference.changes import Changes
from fidgpt.graph.difference.patches import Patch, outdated, outside, patch_of, read_patch
from fidgpt.graph.errors import ConfigError, at, raise_all
from fidgpt.graph.fiddle import Key, argument_tags, assign, parameter_of, raw_arguments
from fidgpt.graph.paths import parse_path
from fidgpt.graph.storage.codec import decode, find_name, find_tag, inner, is_tag
from fidgpt.graph.storage.reading import key_of
from fidgpt.graph.storage.writing import KINDS, TAGGED
from fidgpt.graph.walk import nodes, title

_Holder = tuple[Any, Key]  # what holds a place, and the key of the place
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


def apply(root: Any, changes: Changes | Patch) -> Any:
    """A graph in which what differs between two others is changed; `root` stays as it is.

    `apply(left, diff(left, right))` is written as `right` is, sharing and tags included.

    Raises:
      ConfigErrors: places are missing, or hold something else than they did when the difference
        was taken.
      ConfigError: a value of the difference has no form in a file.
    """
    patch = patch_of(changes.old, changes.new) if isinstance(changes, Changes) else changes
    return _Applying(root, patch, ()).result()


def dump_patch(changes: Changes | tuple[Any, Any]) -> str:
    """What differs between two graphs, as the text of a file.

    Args:
      changes: what `diff` found, or the old and the new graph.

    Raises:
      ConfigError: a value has no form in a file.
    """
    if isinstance(changes, tuple):
        return patch_of(*changes).text()
    return patch_of(changes.old, changes.new).text()


def apply_patch(
    root: Any, text: str, *, source: str = "the patch", allowed: tuple[str, ...] = ()
) -> Any:
    """Return a graph changed by a patch.

    Args:
      root: the graph, which stays as it is.
      text: what `dump_patch` wrote.
      source: how to call the patch in messages.
      allowed: packages of the user's own whose callables the patch may name.

    Raises:
      ConfigErrors: as `apply` does.
      ConfigError: the text is no patch, or names what it may not.
    """
    patch = read_patch(text, source=source)
    try:
        return _Applying(root, patch, allowed).result()
    except ConfigError:
        raise
    except _DAMAGED as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


class _Applying:
    """Looks up all places in a copy of a graph, then changes them."""

    def __init__(self, root: Any, patch: Patch, allowed: tuple[str, ...]) -> None:
        self._root = clone(root)
        self._patch = patch
        self._allowed = allowed
        self._made: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._called: dict[str, Any] = {}

    def result(self) -> Any:
        """The changed copy."""
        places = self._places()
        self._keep([change["new"] for change in self._patch.changes.values() if "new" in change])
        for entry in self._patch.parts.values():
            self._keep([*entry.get("set", {}).values()])
        for path, entry in self._patch.parts.items():
            with at(path[:80] or "the root"):
                self._made[path] = self._start(entry)
        for path, entry in self._patch.parts.items():
            with at(path[:80] or "the root"):
                self._fill(self._made[path], entry)
        raise_all([*outdated(self._made, self._patch.parts, self._at)])
        if "" in self._patch.changes and "new" in self._patch.changes[""]:
            self._root = self._value(self._patch.changes[""]["new"])
        for step in (self._take_away, self._call, self._put):
            for path, change in self._patch.changes.items():
                with at(path[:80] or "the root"):
                    step(path, places.get(path), change)
        nodes(self._root)  # refuses a part that contains itself now
        return self._root

    def _places(self) -> dict[str, _Holder]:
        """The holder and the key of each place that is to be changed."""
        places: dict[str, _Holder] = {}
        messages: list[str] = []
        for path, change in self._patch.changes.items():
            try:
                if path:
                    *way, last = parse_path(path)
                    holder = _reach(self._root, way)
                    places[path] = holder, last
                self._check(path, change)
            except ConfigError as error:
                messages.append(f"{path[:80] or 'the root'}: {error}")
        raise_all(messages)
        return places

    def _check(self, path: str, change: dict[str, Any]) -> None:
        """That the place holds what it did when the patch was made."""
        value = _reach(self._root, parse_path(path) if path else [], is_set=False)
        if "call" in change:
            if not isinstance(value, fdl.Buildable):
                raise ConfigError(f"there is no part any more that calls {change['call'][0]}.")
            self._called[path] = value
        if "old" not in change and "new" not in change:
            return
        now = fdl.NO_VALUE if value is fdl.NO_VALUE else outside(value)
        was = change.get("old", fdl.NO_VALUE)
        if repr(now) != repr(was):
            texts = [_short(one) for one in (was, now)]
            raise ConfigError(
                f"it was {texts[0]} when the difference was taken, and is {texts[1]}."
            )

    def _keep(self, values: list[Any]) -> None:
        """Looks up the parts that stay, before any of them is in another place."""
        todo = list(values)
        while todo:
            value = todo.pop()
            path = value.get("keep") if isinstance(value, dict) and len(value) == 1 else None
            if not isinstance(path, str):
                todo += inner(value)
                continue
            with at(path[:80] or "the root"):
                self._kept[path] = _reach(self._root, parse_path(path) if path else [])

    def _take_away(self, path: str, place: _Holder | None, change: dict[str, Any]) -> None:
        if place is None:
            return
        holder, key = place
        if "tags" in change:
            for name in change["tags"][0]:
                if find_tag(name, self._find) in argument_tags(holder).get(key, ()):
                    fdl.remove_tag(holder, key, find_tag(name, self._find))
        if "old" in change and "new" not in change:
            if not isinstance(holder, fdl.Buildable):
                del holder[key]
            elif isinstance(key, str):
                delattr(holder, key)
            else:
                del raw_arguments(holder)[key]

    def _call(self, path: str, place: _Holder | None, change: dict[str, Any]) -> None:
        if "call" not in change:
            return
        name = change["call"][1]
        try:
            fdl.update_callable(self._called[path], self._find(name))
        except TypeError:
            raise ConfigError(f"{name} does not take all arguments that are set there.") from None

    def _put(self, path: str, place: _Holder | None, change: dict[str, Any]) -> None:
        if place is None:
            return
        holder, key = place
        if "new" in change:
            value = self._value(change["new"])
            if not isinstance(holder, fdl.Buildable):
                holder[key] = value
            elif parameter_of(holder, key) is None:
                raise ConfigError(f"{title(holder)} has no parameter {key!r}.")
            else:
                assign(holder, key, value)
        for name in change["tags"][1] if "tags" in change else ():
            fdl.add_tag(holder, key, find_tag(name, self._find))

    def _start(self, entry: dict[str, Any]) -> Any:
        kinds = [kind for kind in (*KINDS, TAGGED) if kind in entry]
        if len(kinds) != 1:
            raise ConfigError("it does not say what it calls just once.")
        if kinds == [TAGGED]:
            return TaggedValue(tags=[find_tag(name, self._find) for name in entry["tags"]["value"]])
        called = self._find(entry[kinds[0]])
        if not callable(called) or is_tag(called):
            raise ConfigError(f"{entry[kinds[0]]!r:.80} is no constructor.")
        return KINDS[kinds[0]](called)

    def _fill(self, part: Any, entry: dict[str, Any]) -> None:
        for name, tags in entry.get("tags", {}).items():
            for tag in tags:
                fdl.add_tag(part, key_of(part, name), find_tag(tag, self._find))
        for name, value in entry.get("set", {}).items():
            assign(part, key_of(part, name), self._value(value))

    def _value(self, written: Any) -> Any:
        refer = {"keep": self._kept.__getitem__, "part": self._made.__getitem__}
        return decode(written, self._find, refer)

    def _at(self, path: str) -> Any:
        return _reach(self._root, parse_path(path) if path else [], is_set=False)

    def _find(self, name: str) -> Any:
        known = self._patch.known
        return known[name] if name in known else find_name(name, allowed=self._allowed)


def _reach(value: Any, keys: list[Key], *, is_set: bool = True) -> Any:
    """What lies at the end of some keys; `fdl.NO_VALUE` if only the last leads nowhere.

    Raises:
      ConfigError: there is nothing on the way, or at the end though something must be `is_set`.
    """
    for i, key in enumerate(keys):
        if isinstance(value, fdl.Buildable):
            found = raw_arguments(value).get(key, fdl.NO_VALUE)
        elif isinstance(value, dict):
            found = value.get(key, fdl.NO_VALUE)
        elif isinstance(value, list | tuple) and isinstance(key, int):
            found = value[key] if 0 <= key < len(value) else fdl.NO_VALUE
        else:
            raise ConfigError("there is no such place in this graph.")
        if found is fdl.NO_VALUE and (is_set or i + 1 < len(keys)):
            raise ConfigError("there is no such place in this graph.")
        value = found
    return value


def _short(value: Any) -> str:
    if value is fdl.NO_VALUE:
        return "not set"
    return f"a {value['a']}" if isinstance(value, dict) and [*value] == ["a"] else f"{value!r:.60}"
