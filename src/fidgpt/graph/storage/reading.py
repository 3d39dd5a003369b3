"""From the document that a file holds to the graph: written once, made as often as held."""

import contextlib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl
from fiddle import history
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph.errors import ConfigError, at, suggest
from fidgpt.graph.fiddle import (
    CALLABLE,
    Key,
    all_arguments,
    argument_history,
    assign,
    copy_part,
    default_of,
    named_defaults,
    parameter_of,
    parameters_of,
    raw_arguments,
    record_value,
)
from fidgpt.graph.storage.codec import (
    Migration,
    decode,
    encode_default,
    find_name,
    find_tag,
    is_tag,
)
from fidgpt.graph.storage.plan import plan
from fidgpt.graph.storage.writing import KINDS, TAGGED

_SECTIONS = ("set", "tags", "heard", "defaults")
_MADE_ANEW = ("part", "shared", "tuple", "dict", "items", "object")  # of what each copy has its own
_Owned = dict[str, dict[str, Any]]  # by the path of an owner around a place, its shared parts


@dataclass(slots=True)
class _Model:
    """A part of the file, of which as many are made as are held.

    Attributes:
      part: the part, with the arguments that all copies have in common.
      is_owner: whether shared parts are one in each copy.
      own: the arguments that each copy has for itself, as they are written.
    """

    part: fdl.Buildable
    is_owner: bool
    own: dict[Key, Any] = field(default_factory=dict)


class Reading:
    """Makes a graph from the parts of a document.

    Attributes:
      changes: what has changed since it was written, for a person to read.
    """

    def __init__(self, written: dict[str, Any], allowed: tuple[str, ...]) -> None:
        self.changes: list[str] = []
        self._written = written
        self._allowed = allowed
        self._found: dict[str, Any] = {}
        self._defaults: dict[str, dict[str, Any]] = {}
        self._blank: dict[tuple[Any, str], fdl.Buildable] = {}
        self._times: Mapping[str, int] = {}
        self._models: dict[str, _Model] = {}
        self._todo: list[tuple[Any, _Model, _Owned, str]] = []

    def root(self) -> Any:
        """The graph.

        Raises:
          ConfigError: the document is damaged, or names what it may not.
        """
        self._times, owners = plan(self._written)
        with _one_location():
            for path, entry in self._written.items():
                with at(path[:80] or "the root", place=path):
                    self._models[path] = self._model(path, entry, path in owners)
            return self._make()

    def _make(self) -> Any:
        """One part after the other, without recursion, so that depth is no limit."""
        root = self._copy("", {})
        while self._todo:
            part, model, owned, path = self._todo.pop()
            refer = {
                "part": functools.partial(self._copy, owned=owned),
                "shared": functools.partial(self._shared, owned=owned),
            }
            with at(path[:80] or "the root", place=path):
                for key, written in model.own.items():
                    value = raw_arguments(part)[key] = decode(written, self._find, refer)
                    if isinstance(value, TaggedValueCls):
                        raise ConfigError(f"{key}: a {TAGGED} stands in lists only.")
                    record_value(part, key, value)
        return root

    def _copy(self, path: str, owned: _Owned) -> Any:
        model = self._models[path]
        part = model.part
        if self._times[path] > 1:
            part = copy_part(part, raw_arguments(part).copy())
        if model.own:
            self._todo.append((part, model, owned | {path: {}} if model.is_owner else owned, path))
        return part

    def _shared(self, path: str, owned: _Owned) -> Any:
        owner = self._written[path]["one_in"]
        if owner not in owned:
            raise ConfigError(f"{path:.80} is one in {owner:.80}, and is held outside of it.")
        made = owned[owner]
        if path not in made:
            made[path] = self._copy(path, owned)
        return made[path]

    def _find(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = find_name(name, allowed=self._allowed)
        return self._found[name]

    def _model(self, path: str, entry: dict[str, Any], is_owner: bool) -> _Model:
        part, called = self._start(entry)
        model = _Model(part, is_owner)
        named = named_defaults(part)
        migration = Migration(fdl.get_callable(part), _names_of(named), path=path)
        for name, tags in migration.section(entry.get("tags", {})).items():
            for tag in tags:
                fdl.add_tag(part, key_of(part, name), find_tag(tag, self._find))
        for name, value in migration.section(entry.get("set", {}), is_value=True).items():
            self._set(model, name if named and name in named else key_of(part, name), value)
        defaults = migration.section(entry.get("defaults", {}), is_value=True)
        self.changes += migration.changes
        self._keep_defaults(model, path, called, defaults)
        return model

    def _start(self, entry: dict[str, Any]) -> tuple[fdl.Buildable, str]:
        """A part without its arguments, and the name of what it calls."""
        kinds = [kind for kind in (*KINDS, TAGGED) if kind in entry]
        unknown = [name for name in entry if name not in (*KINDS, TAGGED, *_SECTIONS, "one_in")]
        if len(kinds) != 1 or unknown:
            what = (
                f"it has {unknown[0]!r:.40}"
                if unknown
                else "it does not name exactly one thing that it calls"
            )
            known = f"{', '.join(KINDS)}, with {', '.join(_SECTIONS)}"
            raise ConfigError(f"{what}, and a part is one of {known}.")
        if kinds == [TAGGED]:
            tags = [find_tag(name, self._find) for name in entry["tags"]["value"]]
            return TaggedValue(tags=tags), TAGGED
        name = entry[kinds[0]]
        called = self._find(name)
        if not callable(called) or is_tag(called):
            raise ConfigError(f"{name!r:.80} is no constructor.")
        self._note_renamed(name, called)
        return self._fresh(KINDS[kinds[0]], called, name), name

    def _note_renamed(self, name: str, called: Any) -> None:
        was, now = name.partition(":")[2], getattr(called, "__qualname__", "")
        change = f"{was} is called {now} now"
        if was.rpartition(".")[2] != now.rpartition(".")[2] and change not in self.changes:
            self.changes.append(change)

    def _fresh(self, kind: Any, called: Any, name: str) -> fdl.Buildable:
        """A part without arguments; Fiddle looks at a signature and its annotations for long."""
        if (kind, name) not in self._blank:
            self._blank[kind, name] = kind(called)
        return copy_part(self._blank[kind, name], {})

    def _set(self, model: _Model, key: Key, written: Any) -> None:
        is_own = isinstance(written, list)
        if isinstance(written, dict):
            is_own = next(iter(written), None) in _MADE_ANEW
            if not is_own:
                written = decode(written, self._find)
        value = None if is_own else written
        if is_own:
            model.own[key] = written
        if isinstance(key, str):
            raw_arguments(model.part)[key] = value
        else:
            assign(model.part, key, value)  # which knows what may stand without a name
        if not is_own:
            record_value(model.part, key, value)

    def _keep_defaults(
        self, model: _Model, path: str, called: str, written: Mapping[str, Any]
    ) -> None:
        """Sets what was left at a default that is another one today."""
        part = model.part
        if called not in self._defaults:
            known = {str(key): default_of(part, key) for key in all_arguments(part)}
            self._defaults[called] = {
                name: encode_default(value)
                for name, value in known.items()
                if value is not fdl.NO_VALUE
            }
        today = self._defaults[called]
        for name, value in written.items():
            if (name in today and _same(today[name], value)) or name in model.own:
                continue
            place = path or "the root"
            if name not in parameters_of(part):
                self.changes.append(f"{place}: {name} is gone, and was {value!r:.60} by default")
                continue
            if isinstance(value, dict) and "default" in value:
                raise ConfigError(
                    f"{name} was left at its default, of type {value['default']}, which a file "
                    "cannot hold and which has changed since."
                )
            self._set(model, key_of(part, name), value)
            change = f"is {today[name]!r:.60} now" if name in today else "is gone"
            self.changes.append(f"{place}: the default of {name} {change}, and stays {value!r:.60}")


def _one_location() -> contextlib.AbstractContextManager[Any]:
    """Record this line as the location of all assignments; inspecting the stack is slow."""
    made = argument_history(fdl.Config(dict)).get(CALLABLE)
    if not made:  # history is switched off
        return contextlib.nullcontext()
    return history.custom_location(lambda: made[0].location)


def _names_of(named: Mapping[Key, Any] | None) -> set[str] | None:
    return None if named is None else {*map(str, named)}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike; 1 and True are not."""
    return type(one) is type(other) and one == other and repr(one) == repr(other)


def key_of(part: fdl.Buildable, name: str) -> Key:
    """The name or number of an argument, from its name in a file."""
    names: dict[str, Key] = {str(key): key for key in all_arguments(part)}
    if name in names:
        return names[name]
    key: Key = int(name) if re.fullmatch("[0-9]{1,9}", name) else name
    if parameter_of(part, key) is None:
        raise ConfigError(f"there is no parameter {name!r:.80}. {suggest(name, names)}")
    return key
