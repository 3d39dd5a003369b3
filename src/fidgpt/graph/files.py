"""Config files: the nodes of a graph by their first paths; read and migrated."""

import contextlib
import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import fiddle as fdl
from fiddle import history
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.collection import gc_paused
from fidgpt.errors import ConfigError, at, suggest
from fidgpt.graph import codec, fiddle, walk
from fidgpt.graph.binding import Resolved
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.expressions import read_float

FORMAT = "fidgpt.config"
VERSION = 1
TAGGED = "TaggedValue"  # a tagged item of a list; it calls nothing
KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_SECTIONS = ("set", "tags", "inherited", "defaults")
_ENTRY = {*KINDS, TAGGED, *_SECTIONS}


@gc_paused()
def dump(root: fdl.Buildable | Resolved, *, form: Literal["json", "yaml"] = "json") -> str:
    """Return a graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    if form == "json":
        return to_json(write(root))
    from fidgpt.graph.yaml import write_yaml  # late: most files are JSON

    return write_yaml(write(root))


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """Return the graph that a file holds, JSON or YAML.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is not such a file, or names what it may not, or what does not exist.
    """
    return load_with_changes(text, source=source, allowed=allowed)[0]


@gc_paused()
def load_with_changes(
    text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    """Return the graph that a file holds, and what has changed since the file was written.

    There is a line for each parameter that was renamed or removed, as its constructor declares, and
    for each default that is another one today; the file's default is kept.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: as `load` does.
    """
    document = read_document(text, source, FORMAT)
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it has no root component.")
    with damage_of(source), at(source):
        reading = _Reading(written, allowed)
        return reading.root(), [*reading.changes]


@contextlib.contextmanager
def damage_of(source: str) -> Iterator[None]:
    """Turn the errors of reading something else than was written into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def read_document(text: str, source: str, form: str) -> dict[str, Any]:
    """Return the document of a file of a format, whose version is checked.

    Raises:
      ConfigError: the text is not such a document.
    """
    what = form.removeprefix("fidgpt.")
    with at(f"{source} is not a fidgpt {what}"):
        document = _data_of(text)
    stated = document.get("format") if isinstance(document, dict) else None
    if stated != form:
        raise ConfigError(f"{source} is not a fidgpt {what}: its format is {stated!r:.40}.")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise ConfigError(f"{source} has version {version!r:.40}, and this fidgpt reads {VERSION}.")
    return document


def _data_of(text: str) -> Any:
    """Return the data of a text, which is JSON if it begins with a brace or bracket, or YAML."""
    if text.lstrip()[:1] not in ("{", "["):
        from fidgpt.graph.yaml import read_yaml  # late: most files are JSON

        return read_yaml(text)
    try:
        return read_json(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"it is not JSON: {error}.") from None


def to_json(document: dict[str, Any]) -> str:
    """Return a document as JSON."""
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def read_json(text: str) -> Any:
    """Return the data of a JSON text.

    Raises:
      ConfigError: an object has a key twice, or a number is NaN, infinite, too large or too small.
      ValueError, RecursionError: it is not JSON.
    """
    return json.loads(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=read_float
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it has {twice!r:.60} twice in one mapping: remove one of them.")
    return entries


def _refuse_constant(word: str) -> Any:
    raise ConfigError(f'{word} is not a JSON number: write {{"float": "{float(word)}"}}.')


def head_of(part: fdl.Buildable) -> dict[str, Any]:
    """Return the beginning of the entry of a node: its kind and what it calls.

    Raises:
      ConfigError: there is no form for it in a file.
    """
    if isinstance(part, TaggedValueCls):
        return {TAGGED: None}
    if (kind := type(part).__name__) not in KINDS:
        raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
    return {kind: codec.name_of(fdl.get_callable(part))}


def new_part(entry: Mapping[str, Any], find: codec.Find) -> fdl.Buildable:
    """Return a node for an entry, without its arguments.

    Raises:
      ConfigError: the entry names no constructor that it may name.
    """
    kinds = [kind for kind in (*KINDS, TAGGED) if kind in entry]
    unknown = [name for name in entry if name not in _ENTRY]
    if len(kinds) != 1 or unknown:
        what = f"it has {unknown[0]!r:.40}" if unknown else "it must name one callable"
        known = f"{', '.join(KINDS)}, with {', '.join(_SECTIONS)}"
        raise ConfigError(f"{what}, and a component is one of {known}.")
    if kinds == [TAGGED]:
        return TaggedValue(tags=[codec.find_tag(name, find) for name in entry["tags"]["value"]])
    name = entry[kinds[0]]
    called = find(name)
    if not callable(called) or codec.is_tag(called):
        raise ConfigError(f"{name!r:.80} is not a constructor.")
    return KINDS[kinds[0]](called)


def key_of(part: fdl.Buildable, name: str) -> fiddle.Key:
    """Return the name or number of an argument for its name in a file.

    Raises:
      ConfigError: there is no such parameter.
    """
    if name in (fiddle.named_defaults(part) or ()):
        return name
    names: dict[str, fiddle.Key] = {str(key): key for key in fiddle.all_arguments(part)}
    if name in names:
        return names[name]
    key: fiddle.Key = int(name) if re.fullmatch("[0-9]{1,9}", name) else name
    if fiddle.parameter_of(part, key) is None:
        raise ConfigError(f"there is no parameter {name!r:.80}. {suggest(name, names)}")
    return key


def add_tags(part: fdl.Buildable, written: Mapping[str, list[str]], find: codec.Find) -> None:
    """Add the tags of an entry to a node.

    Raises:
      ConfigError: there is no such parameter, or no such tag.
    """
    for name, tags in written.items():
        for tag in tags:
            fdl.add_tag(part, key_of(part, name), codec.find_tag(tag, find))


def _defaults_of(part: fdl.Buildable) -> dict[str, Any]:
    """Return the defaults of what a node calls, as JSON."""
    return {
        str(key): codec.encode_default(value)
        for key in fiddle.all_arguments(part)
        if (value := fiddle.default_of(part, key)) is not fdl.NO_VALUE
    }


def write(root: fdl.Buildable | Resolved) -> dict[str, Any]:
    """Return a graph as a document.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    resolved = Resolved.of(root)
    fingerprint = BoundGraph(resolved).fingerprint()
    nodes, _ = walk.walk(resolved.root, walk.held_nodes)  # in reading order
    paths = {key: node.path for key, node in nodes.items() if walk.IS_PART[type(node.value)]}
    entries: dict[str, Any] = {}
    for key, path in paths.items():
        with at(path or "the root", place=path):
            entries[path] = _entry(nodes[key].value, resolved, paths)
    return {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "parts": entries}


def _entry(part: Any, resolved: Resolved, paths: Mapping[int, str]) -> dict[str, Any]:
    """Return the entry of a node, given the paths of all nodes by their identities."""

    def refer(inner: Any) -> dict[str, str]:
        return {"part": paths[id(inner)]}

    inherited, known = resolved.inherited_by(part), fiddle.set_arguments(part)
    tags = {str(key): carried for key, carried in fiddle.nonempty_tags(part).items()}
    sections = {
        "set": {str(key): codec.encode(value, refer) for key, value in known.items()},
        "tags": {key: sorted(map(codec.name_of, tags[key])) for key in sorted(tags)},
        # For the reader; loading does not need it.
        "inherited": {
            str(key): codec.encode(binding.value, refer) for key, binding in inherited.items()
        },
        "defaults": {
            key: default
            for key, default in _defaults_of(part).items()
            if key not in map(str, (*known, *inherited))
        },
    }
    return head_of(part) | {name: section for name, section in sections.items() if section}


class _Reading:
    """Makes a graph from the nodes of a document.

    Attributes:
      changes: what has changed since it was written, for a person to read.
    """

    def __init__(self, written: dict[str, Any], allowed: tuple[str, ...]) -> None:
        self.changes: dict[str, None] = {}
        self._written = written
        self._find = functools.cache(functools.partial(codec.find_name, allowed=allowed))
        self._parts: dict[str, fdl.Buildable] = {}

    def root(self) -> Any:
        """Return the graph.

        Raises:
          ConfigError: the document is damaged, or names what it may not.
        """
        with _one_location():
            for path, entry in self._written.items():
                with at(path[:80] or "the root", place=path):
                    self._parts[path] = new_part(entry, self._find)
            for path, entry in self._written.items():
                with at(path[:80] or "the root", place=path):
                    self._fill(self._parts[path], path, entry)
        root = self._parts[""]
        held = {id(node.value) for node in walk.parts(root)}  # refuses a node that contains itself
        if lost := [path for path, part in self._parts.items() if id(part) not in held]:
            raise ConfigError(f"no component holds {lost[0]:.80}: delete it, or refer to it.")
        return root

    def _fill(self, part: fdl.Buildable, path: str, entry: Mapping[str, Any]) -> None:
        """Set the arguments of a node and their tags."""
        called, names = fdl.get_callable(part), fiddle.named_defaults(part)
        self._note_renamed(entry, called)

        def section(name: str, *, is_value: bool = True) -> Mapping[str, Any]:
            content = entry.get(name, {})
            if names is None:  # it takes any argument
                return content
            content, changes = codec.migrated(called, names, content, is_value=is_value)
            self._note(path, *changes)
            return content

        add_tags(part, section("tags", is_value=False), self._find)
        for name, value in section("set").items():
            self._set(part, key_of(part, name), value)
        self._keep_defaults(part, path, section("defaults"))

    def _held(self, path: str) -> fdl.Buildable:
        """Return the node that a reference stands for."""
        if path not in self._parts:
            raise ConfigError(f"there is no component {path!r:.80}.")
        return self._parts[path]

    def _note(self, path: str, *changes: str) -> None:
        self.changes |= {f"{path or 'the root'}: {change}": None for change in changes}

    def _note_renamed(self, entry: Mapping[str, Any], called: Any) -> None:
        name = next((entry[kind] for kind in KINDS if kind in entry), ":")
        was, now = name.partition(":")[2], getattr(called, "__qualname__", "")
        if was and was.rpartition(".")[2] != now.rpartition(".")[2]:
            self.changes[f"{was} was renamed to {now}"] = None

    def _set(self, part: fdl.Buildable, key: fiddle.Key, written: Any) -> None:
        value = codec.decode(written, self._find, {"part": self._held})
        if not isinstance(key, str):
            fiddle.assign(part, key, None)  # checks that those before it are there
        fiddle.raw_arguments(part)[key] = value  # in the order of the file
        fiddle.record_value(part, key, value)

    def _keep_defaults(self, part: fdl.Buildable, path: str, written: Mapping[str, Any]) -> None:
        """Set what was left at a default that is another one today."""
        today = _defaults_of(part)
        for name, value in written.items():
            if name in today and repr(today[name]) == repr(value):
                continue
            if name not in fiddle.parameters_of(part):
                self._note(path, f"{name} is removed; its default was {value!r:.60}")
                continue
            if isinstance(value, dict) and "default" in value:
                raise ConfigError(
                    f"{name} was left at its default, of type {value['default']}, which a file "
                    "cannot hold and which has changed since."
                )
            self._set(part, key_of(part, name), value)
            change = f"is now {today[name]!r:.60}" if name in today else "is removed"
            self._note(path, f"the default of {name} {change}; kept at {value!r:.60}")


def _one_location() -> contextlib.AbstractContextManager[Any]:
    """Record this line as the location of all assignments; inspecting the stack is slow."""
    made = fiddle.argument_history(fdl.Config(dict)).get(fiddle.CALLABLE)
    if not made:  # history is switched off
        return contextlib.nullcontext()
    return history.custom_location(lambda: made[0].location)
