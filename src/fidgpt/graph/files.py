"""Config files: nodes by path, of which equal ones are written once; read and migrated."""

import contextlib
import functools
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import fiddle as fdl
from fiddle import history
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.collection import gc_paused
from fidgpt.graph import codec, fiddle, walk
from fidgpt.graph.binding import Resolved
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.errors import ConfigError, at, suggest
from fidgpt.graph.expressions import read_float
from fidgpt.graph.identity import value_key

FORMAT = "fidgpt.config"
VERSION = 1
TAGGED = "TaggedValue"  # a tagged item of a list; it calls nothing
KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_SECTIONS = ("set", "tags", "inherited", "defaults")
_ENTRY = {*KINDS, TAGGED, *_SECTIONS, "one_in", "like"}
_PER_COPY = frozenset(
    {"part", "shared", "tuple", "dict", "items", "object"}
)  # each copy has its own
_MOST_COPIED = 5_000_000  # the sizes of all copies beyond the first
_NONE: frozenset[int] = frozenset()
# A number for all that must be equal, and the owners of what is shared with nodes outside.
_Copy = tuple[int, frozenset[int]]
_Owned = dict[str, dict[str, Any]]  # by the path of each enclosing owner, its shared nodes
_MOST = 96  # characters of a list or dict that stays on one line
MAX_DEPTH = 200  # as of YAML
_SECTION_DEPTH = 3  # of the sections of a node in a document
_to_json = json.JSONEncoder(ensure_ascii=False).encode


@gc_paused()
def dump(root: fdl.Buildable | Resolved, *, form: Literal["json", "yaml"] = "json") -> str:
    """Return a graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    document = write(root)
    text = to_json(document) if form == "json" else to_yaml(document)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


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
    for each default that is another one today; that of the file is kept.

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
    try:
        document = _data_of(text.removeprefix("\ufeff"))  # a mark of some editors
    except ConfigError as error:
        is_ours = re.search(rf"\bformat[\"']?: *[\"']?{re.escape(form)}", text)
        where = source if is_ours else f"{source} is not a fidgpt {what}"
        raise ConfigError(f"{where}: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != form:
        others = {
            FORMAT: "it is a whole config",
            "fidgpt.patch": "it is a patch, which changes one",
        }
        why = others.get(str(found), f"its format is not {form!r}")
        raise ConfigError(f"{source} is not a fidgpt {what}: {why}.")
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
        return _flat_enough(read_json(text))
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("it is not JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}.") from None


def _flat_enough(data: Any) -> Any:
    """Return data that code can walk by recursion.

    Raises:
      ConfigError: it is nested too deeply.
    """
    level, depth = [data], 0
    while level := [
        item
        for one in level
        if isinstance(one, dict | list)
        for item in (one.values() if isinstance(one, dict) else one)
    ]:
        if (depth := depth + 1) > MAX_DEPTH:
            raise ConfigError(f"nesting deeper than {MAX_DEPTH} levels.")
    return data


def to_json(document: dict[str, Any]) -> str:
    """Return a document as JSON."""
    return _json(document, 0) + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    from fidgpt.graph.yaml import write_yaml  # late: most files are JSON

    if found := re.search("[\ud800-\udfff]", _to_json(document)):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return write_yaml(document, is_flow=_is_short)


def _json(value: Any, depth: int) -> str:
    if _is_short(value, depth):
        return _to_json(value)
    if isinstance(value, dict):
        items = [f"{_to_json(key)}: {_json(item, depth + 1)}" for key, item in value.items()]
    else:
        items = [_json(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    end = "\n" + " " * depth
    return f"{opening}{end} {f',{end} '.join(items)}{end}{closing}"


def _is_short(value: Any, depth: int) -> bool:
    """Return whether a value takes one line: a leaf, or a list or dict of few leaves.

    The sections of a node never do, so that a second argument adds a line and changes none.
    """
    if not isinstance(value, dict | list) or not value:
        return True
    if depth <= _SECTION_DEPTH:
        return False
    if isinstance(value, dict):
        ((key, item), *others) = value.items()
        return key != "dict" and not others and _is_short(item, depth)
    return not any(isinstance(one, dict | list) for one in value) and len(str(value)) <= _MOST


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
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it has {twice!r:.60} twice in one mapping: remove one of them.")
    return found


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
    bound = BoundGraph(resolved)
    identity = bound.fingerprint()
    graph = BoundGraph(bound.root, bound=False) if resolved.adds_nodes else bound
    written = _Writer(bound, graph).parts()
    return {"format": FORMAT, "version": VERSION, "fingerprint": identity, "parts": written}


class _Writer:
    """Writes the nodes of a graph; of several equal ones, only the first."""

    def __init__(self, bound: BoundGraph, graph: BoundGraph) -> None:
        self._bound = bound
        self._graph = graph
        self._copies = self._find_copies()
        self._paths: dict[_Copy, str] = {}
        self._found: list[Any] = []  # nodes held by the entry that is being written

    def parts(self) -> dict[str, Any]:
        """Return the nodes by their first path, each before those that it holds."""
        written: dict[str, Any] = {}
        self._refer(self._bound.root)
        todo = self._found
        while todo:
            part, self._found = todo.pop(), []
            path = self._paths[self._copies[id(part)]]
            with at(path or "the root", place=path):
                written[path] = self._entry(part)
            todo += reversed(self._found)
        return written

    def _find_copies(self) -> dict[int, _Copy]:
        """Return a key for each node; nodes with the same key are written once.

        Such nodes are equal, and so are the arguments that are set and inherited in all that they
        hold. What they share with the nodes around them belongs to the same owners.
        """
        graph = self._graph
        numbers: dict[Hashable, int] = {}
        number_of: dict[int, int] = {}
        outside_of: dict[int, frozenset[int]] = {}
        copies: dict[int, _Copy] = {}
        for node in graph.nodes:
            me, held = id(node.value), [id(one) for _, one in graph.held(node.value)]
            note = self._note(node.value) if walk.IS_PART[type(node.value)] else None
            key = graph.digest[me], tuple(number_of[one] for one in held), note
            number_of[me] = numbers.setdefault(key, len(numbers))
            outside = frozenset().union(*(outside_of.get(one, _NONE) for one in held)) - {me}
            own = {graph.owner_of[me]} if me in graph.shared else _NONE
            outside_of[me] = outside | own
            copies[me] = number_of[me], outside_of[me]
        return copies

    def _note(self, part: Any) -> Hashable:
        """Return what else must be equal in nodes that are written once: what is set, inherited."""
        inherited = [
            (key, walk.title(one.value) if walk.IS_PART[type(one.value)] else value_key(one.value))
            for key, one in self._bound.inherited_by(part).items()
        ]
        return frozenset(fiddle.raw_arguments(part)), frozenset(inherited)

    def _entry(self, part: Any) -> dict[str, Any]:
        entry = head_of(part)
        if id(part) in self._graph.shared:
            entry["one_in"] = self._paths[self._copies[self._graph.owner_of[id(part)]]]
        inherited, known = self._bound.inherited_by(part), fiddle.set_arguments(part)
        tags = {str(key): own for key, own in fiddle.nonempty_tags(part).items()}
        without = {str(key) for key in (*known, *inherited)}
        sections = {
            "set": {str(key): codec.encode(one, self._refer) for key, one in known.items()},
            "tags": {key: sorted(map(codec.name_of, tags[key])) for key in sorted(tags)},
            "inherited": {
                str(key): codec.encode(one.value, self._show) for key, one in inherited.items()
            },
            "defaults": {k: one for k, one in _defaults_of(part).items() if k not in without},
        }
        return entry | {name: section for name, section in sections.items() if section}

    def _refer(self, part: Any) -> dict[str, str]:
        """Return the reference to a node, by the path under which it or an equal is written."""
        copy = self._copies[id(part)]
        if copy not in self._paths:
            self._paths[copy] = self._graph.path(part)
            self._found.append(part)
        return {"shared" if id(part) in self._graph.shared else "part": self._paths[copy]}

    def _show(self, part: Any) -> dict[str, str]:
        """Return the path of an inherited node; it is for the reader, not for loading."""
        return {"part": self._graph.path(part)}


@dataclass(slots=True)
class _Template:
    """A node of the file, of which as many copies are made as are held.

    Attributes:
      part: the node, with the arguments that all copies have in common.
      size: about what it takes, in characters.
      own: the arguments that each copy has for itself, as they are written.
      is_used: whether a copy was made.
    """

    part: fdl.Buildable
    size: int
    own: dict[fiddle.Key, Any] = field(default_factory=dict)
    is_used: bool = False


class _Reading:
    """Makes a graph from the nodes of a document.

    Attributes:
      changes: what has changed since it was written, for a person to read.
    """

    def __init__(self, written: dict[str, Any], allowed: tuple[str, ...]) -> None:
        self.changes: dict[str, None] = {}
        self._written = written
        self._find = functools.cache(functools.partial(codec.find_name, allowed=allowed))
        self._templates: dict[str, _Template] = {}
        self._owners: set[str | None] = set()
        self._todo: list[tuple[Any, str, _Owned]] = []
        self._num_copied = 0

    def root(self) -> Any:
        """Return the graph.

        Raises:
          ConfigError: the document is damaged, or names what it may not.
        """
        with _one_location():
            self._owners = {entry.get("one_in") for entry in self._written.values()}
            for path, entry in self._written.items():
                with at(path[:80] or "the root", place=path):
                    self._templates[path] = self._template(path, entry)
            root = self._copy("", {})
            while self._todo:  # without recursion, so that depth is no limit
                part, path, owned = self._todo.pop()
                with at(path[:80] or "the root", place=path):
                    self._fill(part, path, owned)
        if lost := [path for path, template in self._templates.items() if not template.is_used]:
            raise ConfigError(f"no component holds {lost[0]:.80}: delete it, or refer to it.")
        walk.nodes(root)  # refuses a shared node that contains itself
        return root

    def _fill(self, part: Any, path: str, owned: _Owned) -> None:
        """Set the arguments that a copy has for itself; `owned` is what is shared around it."""
        refer = {
            word: functools.partial(self._held, word, owned=owned) for word in ("part", "shared")
        }
        for key, written in self._templates[path].own.items():
            value = fiddle.raw_arguments(part)[key] = codec.decode(written, self._find, refer)
            if isinstance(value, TaggedValueCls):
                raise ConfigError(f"{key}: a {TAGGED} may only be in lists.")
            fiddle.record_value(part, key, value)

    def _held(self, word: str, path: str, owned: _Owned) -> Any:
        """Return the node that a reference stands for."""
        if path not in self._written:
            raise ConfigError(f"there is no component {path!r:.80}.")
        owner = self._written[path].get("one_in")
        if (owner is None) is (word == "shared"):
            is_one = f"is one in {owner!r:.80}: write shared" if owner is not None else ""
            raise ConfigError(f"{path:.80} {is_one or 'is not shared'}.")
        if owner is None:
            return self._copy(path, owned)
        if owner not in owned:
            raise ConfigError(f"{path:.80} is one in {owner:.80}, but is referenced outside of it.")
        made = owned[owner]
        if path not in made:
            made[path] = self._copy(path, owned)
        return made[path]

    def _copy(self, path: str, owned: _Owned) -> Any:
        template = self._templates[path]
        self._num_copied += template.size * template.is_used
        if self._num_copied > _MOST_COPIED:
            raise ConfigError(
                "it expands to more than any run has: a component contains itself, or repeated "
                "references multiply."
            )
        template.is_used = True
        part = fiddle.copy_part(template.part, dict(fiddle.raw_arguments(template.part)))
        if template.own:
            owned = owned | {path: {}} if path in self._owners else owned
            self._todo.append((part, path, owned))
        return part

    def _template(self, path: str, entry: Mapping[str, Any]) -> _Template:
        part = new_part(entry, self._find)
        template = _Template(part, 100 + len(str(entry)))
        called, names = fdl.get_callable(part), fiddle.named_defaults(part)
        self._note_renamed(entry, called)

        def section(name: str, *, is_value: bool = True) -> Mapping[str, Any]:
            found = entry.get(name, {})
            if names is None:  # it takes any argument
                return found
            found, changes = codec.migrated(called, names, found, is_value=is_value)
            self._note(path, *changes)
            return found

        add_tags(part, section("tags", is_value=False), self._find)
        for name, value in section("set").items():
            self._set(template, key_of(part, name), value)
        self._keep_defaults(template, path, section("defaults"))
        return template

    def _note(self, path: str, *changes: str) -> None:
        self.changes |= {f"{path or 'the root'}: {change}": None for change in changes}

    def _note_renamed(self, entry: Mapping[str, Any], called: Any) -> None:
        name = next((entry[kind] for kind in KINDS if kind in entry), ":")
        module, _, was = name.partition(":")
        home, now = getattr(called, "__module__", module), getattr(called, "__qualname__", "")
        if was and was.rpartition(".")[2] != now.rpartition(".")[2]:
            self.changes[f"{was} was renamed to {now}"] = None
        elif was and home != module and module.partition(".")[0] not in ("fidgpt", "torch"):
            self.changes[f"{module}:{was} moved to {home}"] = None

    def _set(self, template: _Template, key: fiddle.Key, written: Any) -> None:
        arguments = fiddle.raw_arguments(template.part)
        if not isinstance(key, str):
            fiddle.assign(template.part, key, None)  # checks that those before it are there
        arguments[key] = None  # in the order of the file
        if isinstance(written, list) or (
            isinstance(written, dict) and not _PER_COPY.isdisjoint(written)
        ):
            template.own[key] = written
        else:
            arguments[key] = codec.decode(written, self._find)
            fiddle.record_value(template.part, key, arguments[key])

    def _keep_defaults(self, template: _Template, path: str, written: Mapping[str, Any]) -> None:
        """Set what was left at a default that is another one today."""
        part = template.part
        today = _defaults_of(part)
        for name, value in written.items():
            if (name in today and repr(today[name]) == repr(value)) or name in template.own:
                continue
            if name not in fiddle.parameters_of(part):
                self._note(path, f"{name} is removed; its default was {value!r:.60}")
                continue
            if isinstance(value, dict) and "default" in value:
                raise ConfigError(
                    f"{name} was left at its default, of type {value['default']}, which a file "
                    "cannot hold and which has changed since."
                )
            self._set(template, key_of(part, name), value)
            change = f"is now {today[name]!r:.60}" if name in today else "is removed"
            self._note(path, f"the default of {name} {change}; kept at {value!r:.60}")


def _one_location() -> contextlib.AbstractContextManager[Any]:
    """Record this line as the location of all assignments; inspecting the stack is slow."""
    made = fiddle.argument_history(fdl.Config(dict)).get(fiddle.CALLABLE)
    if not made:  # history is switched off
        return contextlib.nullcontext()
    return history.custom_location(lambda: made[0].location)
