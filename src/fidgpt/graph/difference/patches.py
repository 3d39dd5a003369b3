"""Patches: what differs between two graphs as data, saved, read, applied and merged."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import bound, codec, fiddle, files, paths, walk
from fidgpt.graph.difference import comparison, places
from fidgpt.graph.difference.changes import Changes

FORMAT = "fidgpt.patch"
Entries = Mapping[str, Mapping[str, Any]]
# By path, then by what is changed there: an extra key for comparison, and the text.
_Contents = dict[str, dict[str, tuple[str, str]]]


@dataclass(frozen=True)
class Patch:
    """What makes an old graph a new one.

    Attributes:
      changes: by the path of a place in the old graph, what it held and holds: `old` and `new`
        value, `call` and `tags`.
      parts: the new nodes by their path in the new graph.
      expects: what else the old graph holds, by path, as far as the changes rest on it.
    """

    changes: Entries
    parts: Entries
    expects: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the patch as the text of a file."""
        return files.to_json({"format": FORMAT, "version": files.VERSION, **vars(self)})


def patch_of(old: Any, new: Any) -> Patch:
    """Return the patch after which `old` is written as `new` is; unset quantities stay unset.

    Raises:
      ConfigError: a value has no form in a file.
    """
    return _Maker(old, new).patch()


def dump_patch(changes: Changes | tuple[Any, Any]) -> str:
    """Return what differs between two graphs, as the text of a file.

    Args:
      changes: what `diff` found, or the old and the new graph.

    Raises:
      ConfigError: a value has no form in a file.
    """
    old, new = changes if isinstance(changes, tuple) else (changes.old, changes.new)
    return patch_of(old, new).text()


class _Maker:
    """Collects all places in which two graphs differ."""

    def __init__(self, old: Any, new: Any) -> None:
        graphs = [bound.BoundGraph(root, bound=False) for root in (old, new)]  # as written
        self.comparison = comparison.Comparison(*graphs)
        self._changes: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._new: list[Any] = []

    def patch(self) -> Patch:
        self._place("", self.comparison.old.root, self.comparison.new.root)
        for node, other in self.comparison.pairs():
            self._compare(node, other)
        while self._new:
            part = self._new.pop()
            path = self.comparison.new.path(part)
            with errors.at(path or "the root"):
                self._parts[path] = self._entry(part)
        expects = places.expected(self.comparison, self._changes)
        return Patch(self._changes, dict(sorted(self._parts.items())), expects)

    def _kept(self, new: Any) -> Any:
        """Return the old node that becomes a new one by changes; None where there is none."""
        old = self.comparison.predecessor(new)
        return old if fiddle.kind_of(old) is fiddle.kind_of(new) else None

    def _is_alike(self, old: Any, new: Any) -> bool:
        """Return whether a value stays: an equal one, or a node that becomes the new one."""
        if walk.IS_PART[type(old)] or walk.IS_PART[type(new)]:
            return walk.IS_PART[type(old)] and self._kept(new) is old
        if fiddle.kind_of(old) is not fiddle.kind_of(new) or not walk.IS_NODE[type(new)]:
            return codec.is_same(old, new)
        items = list(places.both(dict(walk.children(old)), dict(walk.children(new)), fdl.NO_VALUE))
        return len(old) == len(new) and all(self._is_alike(*pair) for _, pair in items)

    def _compare(self, old: Any, new: Any) -> None:
        """Compare two nodes that are paired."""
        path = self.comparison.old.path(old)
        calls = [fdl.get_callable(part) for part in (old, new)]
        if calls[0] is not calls[1] and calls[0] != calls[1]:
            self._at(path)["call"] = [codec.name_of(call) for call in calls]
        for key, values in places.both(
            fiddle.set_arguments(old), fiddle.set_arguments(new), fdl.NO_VALUE
        ):
            with errors.at(place := walk.join(path, walk.step_to(key))):
                self._place(place, *values)
        for key, tags in places.both(
            fiddle.nonempty_tags(old), fiddle.nonempty_tags(new), frozenset[Any]()
        ):
            if tags[0] != tags[1]:
                names = [sorted(map(codec.name_of, side)) for side in tags]
                self._at(walk.join(path, walk.step_to(key)))["tags"] = names

    def _place(self, path: str, old: Any, new: Any) -> None:
        """Record the change of a place; of its items alone where the rest of a list stays."""
        if self._is_alike(old, new):
            return
        node = self.comparison.old.node_of.get(id(old))
        is_alike = fiddle.kind_of(old) is fiddle.kind_of(new)
        is_open = is_alike and node is not None and len(node.parents) == 1
        if is_open and isinstance(old, dict) and all(isinstance(key, str) for key in old | new):
            items = list(places.both(old, new, fdl.NO_VALUE))
        elif is_open and isinstance(old, list) and len(old) == len(new):
            items = list(enumerate(zip(old, new, strict=True)))
        else:
            change = self._at(path)
            change |= {} if old is fdl.NO_VALUE else {"old": places.outside(old)}
            change |= {} if new is fdl.NO_VALUE else {"new": codec.encode(new, self._refer)}
            return
        for key, values in items:
            self._place(f"{path}[{key!r}]", *values)

    def _at(self, path: str) -> dict[str, Any]:
        return self._changes.setdefault(path, {})

    def _entry(self, part: Any) -> dict[str, Any]:
        """Return the entry of a new node."""
        known, tags = fiddle.set_arguments(part), fiddle.nonempty_tags(part).items()
        return files.head_of(part) | {
            "set": {str(key): codec.encode(value, self._refer) for key, value in known.items()},
            "tags": {str(key): sorted(map(codec.name_of, own)) for key, own in tags},
        }

    def _refer(self, part: fdl.Buildable) -> dict[str, str]:
        if (old := self._kept(part)) is not None:
            return {"keep": self.comparison.old.path(old)}
        path = self.comparison.new.path(part)
        if path not in self._parts:
            self._parts[path] = {}
            self._new.append(part)
        return {"part": path}


def apply(root: Any, changes: Changes | Patch) -> Any:
    """Return a graph in which what differs between two others is changed; `root` stays as it is.

    `apply(left, diff(left, right))` is written as `right` is, sharing and tags included.

    Raises:
      ConfigErrors: places are missing, or hold something else than they did when the difference
        was taken, or items of lists stand for others now.
      ConfigError: a value of the difference has no form in a file.
    """
    patch = patch_of(changes.old, changes.new) if isinstance(changes, Changes) else changes
    return apply_all(root, [patch])


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
      ConfigError: the text is not a patch, or names what it may not.
    """
    document = files.read_document(text, source, FORMAT)
    patch = Patch(*(document.get(name, {}) for name in ("changes", "parts", "expects")))
    with files.damage_of(source):
        return apply_all(root, [patch], functools.partial(codec.find_name, allowed=allowed))


def _find(name: str) -> Any:
    """Return what a patch names that was made in this process."""
    return codec.find_name(name, allowed=(name.partition(".")[0].partition(":")[0],))


def apply_all(root: Any, patches: Iterable[Patch], find: codec.Find = _find) -> Any:
    """Return a graph changed by patches that were all made for it as it is.

    All places are looked up first, then changed.

    Raises:
      ConfigErrors: places are missing, or hold something else than they did.
      ConfigError: a new value does not fit where it belongs, or is not one.
    """
    root = walk.clone(root)
    planned: list[tuple[str, paths.ParameterRef, Mapping[str, Any], Any]] = []
    messages: list[Any] = []

    def keep(path: str) -> Any:
        return places.follow(root, path, is_there=True).value

    for patch in patches:
        made: dict[str, Any] = {}
        refer = {"keep": keep, "part": made.__getitem__}
        for path, entry in patch.parts.items():
            with _at(path):
                made[path] = files.new_part(entry, find)
        for path, change in patch.changes.items():
            try:
                with _at(path):
                    ref = places.checked_place(root, path, change, find)
            except errors.ConfigError as error:
                messages.append(error)
            else:
                new = codec.decode(change["new"], find, refer) if "new" in change else fdl.NO_VALUE
                planned.append((path, ref, change, new))
        errors.raise_all([*messages, *places.unmet(root, patch.changes, patch.expects)])
        for path, entry in patch.parts.items():
            with _at(path):
                files.add_tags(made[path], entry.get("tags", {}), find)
                for name, value in entry.get("set", {}).items():
                    key = files.key_of(made[path], name)
                    fiddle.assign(made[path], key, codec.decode(value, find, refer))
    called = [places.held(ref.container, ref.key) for _, ref, _, _ in planned]
    for path, ref, change, _ in planned:
        with _at(path):
            _remove(ref, change, find)
    for (path, _, change, _), part in zip(planned, called, strict=True):
        if "call" in change:
            name = change["call"][1]
            try:
                with _at(path):
                    fdl.update_callable(part, find(name))
            except TypeError:
                message = f"{path or 'the root'}: {name} does not take all arguments set there."
                raise errors.ConfigError(message) from None
    for path, ref, change, new in planned:
        with _at(path):
            if not path and "new" in change:
                root = new
            else:
                _put(ref, change, new, find)
    walk.nodes(root)  # refuses a node that contains itself now
    return root


def _at(path: str) -> contextlib.AbstractContextManager[None]:
    return errors.at(path[:80] or "the root")


def _remove(ref: paths.ParameterRef, change: Mapping[str, Any], find: codec.Find) -> None:
    for name in change.get("tags", [()])[0]:
        if (tag := codec.find_tag(name, find)) in fdl.get_tags(ref.container, ref.key):
            fdl.remove_tag(ref.container, ref.key, tag)
    is_gone = "old" in change and "new" not in change
    if is_gone and places.held(ref.container, ref.key) is not fdl.NO_VALUE:  # two patches may agree
        ref.write(fdl.NO_VALUE)


def _put(ref: paths.ParameterRef, change: Mapping[str, Any], new: Any, find: codec.Find) -> None:
    holder = ref.container
    if new is not fdl.NO_VALUE:
        if isinstance(holder, fdl.Buildable) and fiddle.parameter_of(holder, ref.key) is None:
            raise errors.ConfigError(f"{walk.title(holder)} has no parameter {ref.key!r}.")
        ref.write(new)
    for name in change.get("tags", [(), ()])[1]:
        fdl.add_tag(holder, ref.key, codec.find_tag(name, find))  # pyright: ignore


def merge(base: Any, ours: Any, theirs: Any) -> Any:
    """Return a graph with what two people changed in one.

    Raises:
      ConfigErrors: both changed a place in two ways, or one cannot take what the other
        changed; each with its path.
      ConfigError: a value has no form in a file.
    """
    patches = [patch_of(base, ours), patch_of(base, theirs)]
    contents = [_contents(patch) for patch in patches]
    conflicts = [*_same_place(*contents)]
    alike = contents[0].keys() & contents[1].keys()
    sides = (patches[0], "ours", theirs, "theirs"), (patches[1], "theirs", ours, "ours")
    for patch, name, graph, other in sides:
        rest = {path: change for path, change in patch.changes.items() if path not in alike}
        try:
            apply_all(graph, [replace(patch, changes=rest)])
        except errors.ConfigError as error:
            why = f"So {other} cannot take what {name} changed."
            conflicts += [f"{mistake} {why}" for mistake in error.mistakes]
            break  # the other way round, the same would be wrong
    errors.raise_all(conflicts)
    return apply_all(base, patches)


def _contents(patch: Patch) -> _Contents:
    """Return the changes of a patch, with the new nodes that they name."""

    def decoded(value: Any) -> Any:
        return codec.decode(value, _find, {"keep": lambda path: ("keep", path), "part": new_node})

    def new_node(path: str) -> Any:
        entry = patch.parts[path]
        return {**entry, "set": {key: decoded(value) for key, value in entry["set"].items()}}

    contents: _Contents = {}
    for path, change in patch.changes.items():
        own = contents[path] = {}
        if "old" in change or "new" in change:
            new = change.get("new", fdl.NO_VALUE)
            own["value"] = repr(decoded(new)), places.text_of(new, patch.parts)
        if "call" in change:
            own["call"] = ("", f"a call of {change['call'][1]}")
        if "tags" in change:
            own["tags"] = ("", f"tagged {' and '.join(change['tags'][1]) or 'with nothing'}")
    return contents


def _same_place(ours: _Contents, theirs: _Contents) -> Iterator[str]:
    """Yield the places that both changed in two ways."""
    for path, change in ours.items():
        other = theirs.get(path, {})
        for aspect in change:
            if aspect in other and change[aspect] != other[aspect]:
                texts = change[aspect][1], other[aspect][1]
                yield f"{path or 'the root'}: ours is {texts[0]}, and theirs is {texts[1]}."
