"""What can be set in a config, for programs: the index of completion, and a schema for editors.

`python -m fidgpt.compose.index_build FILE DIRECTIVE [PACKAGE ...]` builds an index and writes it to
the file, unless that is "", and to standard output.
"""

import contextlib
import functools
import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.directives import DIRECTIVES, split_directive
from fidgpt.compose.index import INSTALLED, PACKAGE, Index, base_of, checksum
from fidgpt.errors import run_command
from fidgpt.files import atomic_path
from fidgpt.graph import Resolved, expressions, fiddle, hints, outlines, parts, title
from fidgpt.graph.docs import description, doc_of, first_sentence
from fidgpt.graph.paths import ParameterRef, find_parameter
from fidgpt.graph.reading import builds, fitting
from fidgpt.graph.selectors import tags_of
from fidgpt.graph.walk import children, holders, join, step_to

Entry = dict[str, Any]
_LONGEST_VALUE = 120
_MOST_FILES = 64
# The JSON schema of a graph, by which editors complete and check a file of overrides.
Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"  # which the server of editors reads
# What stands for a number in quotes or without: arithmetic, formulas, variables and calls.
_ARITHMETIC = {"type": "string", "pattern": r"^(?![-+]?[0-9.]+$)[-+0-9_.eE*/% ()]+$|[{(]"}
_ANY_TEXT = {"type": ["string", "number", "boolean"]}
_NAMES = {"type": ["string", "array", "object"]}
_PATHS = r"[.\[\]*@:]|[+-]$"  # keys that are paths, selectors, or change a present value


def build_index(directives: Sequence[str], allowed: Sequence[str] = ()) -> Index:
    """Return the index of the config that directives make.

    Raises:
      ConfigError: a directive is wrong.
    """
    catalogue = own_catalogue(tuple(allowed))
    root = compose(directives, catalogue).config
    kind, rest = split_directive(base_of(directives))
    function = catalogue.find(kind, expressions.parse_call(rest).name) if kind == "config" else None
    held, used = [node.value for node in parts(root)], tags_of(root) - {*catalogue.tags.values()}
    tags = {**catalogue.tags, **{f"{tag.__module__}.{tag.__name__}": tag for tag in used}}
    components = {name: part for name, part in catalogue.parts.items() if builds(part)}
    named = [function, *catalogue.configs.values(), *catalogue.fiddlers.values(), *tags.values()]
    roots = _roots([*named, *map(fdl.get_callable, held)], rest if kind == "config_file" else "")
    return {
        "roots": roots,
        "checksum": checksum(roots),
        "configs": {name: _call_entry(config) for name, config in catalogue.configs.items()},
        "fiddlers": {name: _call_entry(fiddler, 1) for name, fiddler in catalogue.fiddlers.items()},
        "tags": {name: {"doc": first_sentence(tag.description)} for name, tag in tags.items()},
        "parts": {
            name: {"module": ".".join(part.__module__.split(".")[:2]), "doc": doc_of(part).summary}
            for name, part in components.items()
        },
        "doc": description(function),
        "parameters": list(parameters_of(root, tags)),
    }


def fitting_at(path: str, directives: Sequence[str], allowed: Sequence[str] = ()) -> list[str]:
    """Return the names of the components that fit at a path of the config of some directives.

    Raises:
      ConfigError: a directive is wrong, or there is no such path.
    """
    catalogue = own_catalogue(tuple(allowed))
    root = compose(directives, catalogue).config
    return fitting(find_parameter(root, path).hint, dict(catalogue.parts))


def parameters_of(root: fdl.Buildable, tags: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield an entry for each parameter and item of a graph.

    An entry has its path, type and value as texts, and what applies of `doc`, `tags` by name,
    `inherited_from` with the path of the value, `unset`, `node` with the name of what it calls or
    of its type, and `same_as` with the first path of a shared node, where its own entries are.

    Raises:
      ConfigErrors: a tag has two values.
    """
    resolved = Resolved(root, is_whole=False)
    paths = {id(node.value): node.path for node in resolved.nodes}
    shown = holders(resolved.nodes)
    left = [(ParameterRef.to_root(root), "")]
    while left:
        (above, top), below = left.pop(), []
        holder: Any = above.value
        is_call = isinstance(holder, fdl.Buildable)
        held: Any = fiddle.all_arguments(holder) if is_call else holder
        for key in range(len(held)) if isinstance(held, list | tuple) else held:
            ref, source = ParameterRef(holder, key, above), resolved.inherited_by(holder).get(key)
            value = source.value if source else held[key]
            path = join(top, step_to(key) if is_call else f"[{key!r}]")
            entry: Entry = {"path": path, "type": hints.name_of(ref.hint)}
            entry["value"] = _text(value, shown)
            if source:
                entry["inherited_from"] = source.path
            elif is_call and key not in fiddle.set_arguments(holder):
                entry["unset"] = True
            elif id(value) in shown:
                entry["node"] = title(value)
                if paths[id(value)] == path:
                    below.append((ref, path))
                else:
                    entry["same_as"] = paths[id(value)]
            yield entry | (_described(holder, key, tags) if is_call else {})
        left += reversed(below)


def _described(holder: fdl.Buildable, key: Any, tags: Mapping[str, Any]) -> Entry:
    own = fiddle.argument_tags(holder).get(key, ())
    names = [name for name, tag in tags.items() if tag in own]
    doc = doc_of(fdl.get_callable(holder)).parameters.get(str(key), "")
    doc = doc or (first_sentence(tags[names[0]].description) if names else "")
    return ({"tags": names} if names else {}) | ({"doc": doc} if doc else {})


def _text(value: Any, shown: set[int]) -> str:
    if isinstance(value, fdl.Buildable):
        return title(value)
    if id(value) in shown:
        text = f"[{', '.join(_text(child, shown) for _, child in children(value))}]"
    else:
        text = "" if value is fdl.NO_VALUE else outlines.leaf_text(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _call_entry(function: Callable[..., Any], skip: int = 0) -> Entry:
    """The arguments of a function, past those that it is given, and its summary."""
    arguments = [
        arg.name + ("=..." if arg.default is arg.empty else f"={arg.default!r}")
        for arg in list(inspect.signature(function).parameters.values())[skip:]
        if arg.kind not in fiddle.VARIADIC
    ]
    text = f"({', '.join(arguments)})" if arguments else ""
    module = sys.modules.get(function.__module__)
    group = first_sentence((module and module.__doc__) or function.__module__)
    return {"arguments": text, "doc": doc_of(function).summary, "group": group}


def _roots(named: Sequence[Any], file: str) -> list[str]:
    """The files and folders whose changes make an index stale.

    They are fidgpt's own folders, the folders of installed packages and of the packages under
    development that define something of the index, and the file with the config.
    """
    tops = {(getattr(item, "__module__", None) or "").partition(".")[0] for item in named}
    roots = {str(PACKAGE), *(folder for folder in sys.path if folder.endswith(INSTALLED))}
    roots |= {str(Path(file).absolute())} if file else set()
    for top in tops - {"fidgpt"} - sys.stdlib_module_names:
        module = sys.modules.get(top)
        place = next(iter(getattr(module, "__path__", [])), getattr(module, "__file__", None))
        if place and set(INSTALLED).isdisjoint(Path(place).parts):
            roots.add(place)
    return sorted(roots)


def write(path: Path, index: Index) -> None:
    """Write an index, if its directory can be written, and remove old ones that are too many."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as draft:
            draft.write_text(json.dumps(index), encoding="utf-8")
        names = f"index-{'[0-9a-f]' * 8}.json"  # and no others of the user's
        files = sorted(path.parent.glob(names), key=lambda file: file.stat().st_mtime)
        for old in files[:-_MOST_FILES]:
            old.unlink()


def schema_text(resolved: Resolved, catalogue: Catalogue) -> str:
    """Return the schema of the files of overrides that suit a graph, as JSON.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return json.dumps(_Schema(catalogue).whole(resolved.bound), indent=1, ensure_ascii=False) + "\n"


class _Schema:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._definitions: dict[str, Schema] = {}
        self._names: dict[int, str] = {}
        self._fitting = functools.cache(lambda hint: fitting(hint, self._components))

    @functools.cached_property
    def _components(self) -> Mapping[str, Any]:
        return {name: part for name, part in self._catalogue.parts.items() if builds(part)}

    def whole(self, root: fdl.Config) -> Schema:
        own = self._part(root)
        own["properties"] = self._directives() | own["properties"]
        head = {"$schema": DIALECT, "title": f"Overrides of {title(root)} for --config=yaml:FILE"}
        return head | own | {"definitions": self._definitions}

    def _directives(self) -> Schema:
        """Return the keys at the top that are no parameters."""
        listed: dict[str, Any] = {"description": "The axes of sweep.py."}
        schemas: Schema = {
            "include": {
                "type": ["string", "array"],
                "description": "Files that are applied before.",
            },
            "sweep": _NAMES | listed,
        }
        for kind, one in DIRECTIVES.items():
            if one.role != "file":
                schemas[kind] = _NAMES | {"description": f"{one.help}: {kind}:{one.syntax}"}
        names_of = {"config": self._catalogue.configs, "fiddler": self._catalogue.fiddlers}
        for kind, names in names_of.items():
            named = {"anyOf": [{"enum": sorted(names)}, {"type": ["string", "object"]}]}
            lists = {"type": "array", "items": named}
            schemas[kind] |= {"anyOf": [*named["anyOf"], lists]}
        tags = {
            name: {"description": tag.description} for name, tag in self._catalogue.tags.items()
        }
        schemas["tag"] |= {"properties": tags}
        return schemas

    def _part(self, part: fdl.Buildable) -> Schema:
        """Return the schema of the parameters of a component."""
        function = fdl.get_callable(part)
        docs, arguments = doc_of(function), fiddle.all_arguments(part)
        properties: Schema = {}
        for key, value in arguments.items():
            if isinstance(key, str):
                hint = hints.hint_of(part, key)
                properties[key] = self._value(value, hint)
                if text := docs.parameters.get(key):
                    properties[key]["description"] = " ".join(text.split())
        is_open = any(arg.kind in fiddle.VARIADIC for arg in fiddle.parameters_of(part).values())
        return _object(properties, is_open=is_open)

    def _value(self, value: Any, hint: Any) -> Schema:
        """Return the schema of what may be set where a value is."""
        if isinstance(value, TaggedValueCls):
            value = fiddle.set_arguments(value).get("value", fdl.NO_VALUE)
        allowed = [*self._allowed(hint)]
        if isinstance(value, fdl.Buildable):
            allowed.insert(0, {"$ref": f"#/definitions/{self._reference(value, hint)}"})
        elif isinstance(value, list | tuple) and _has_parts(value):
            items = [self._value(item, hints.element_hint(hint, i)) for i, item in enumerate(value)]
            allowed = [{"type": "array", "items": items}, *allowed]
        elif isinstance(value, dict) and _has_parts(value):
            inside = {
                key: self._value(v, hints.element_hint(hint, key)) for key, v in value.items()
            }
            others = (schema for schema in allowed if schema.get("type") != "object")
            allowed = [_object(inside), *others]
        schema: Schema = {"anyOf": allowed} if allowed and {} not in allowed else {}
        if type(value) in (int, float, str, bool) and value == value:
            schema["default"] = value
        return schema

    def _reference(self, part: fdl.Buildable, hint: Any) -> str:
        """Return the name of the schema of a component, which is written once."""
        if id(part) not in self._names:
            name = self._names[id(part)] = f"{title(part)}-{len(self._names)}"
            self._definitions[name] = {}
            schema = self._part(part)
            schema["properties"]["use"] = _one_of(self._fitting(hint))
            schema["description"] = doc_of(fdl.get_callable(part)).summary
            self._definitions[name] = schema
        return self._names[id(part)]

    def _allowed(self, hint: Any) -> Iterator[Schema]:
        """Yield a schema for each kind of value that fits an annotation."""
        choices = expressions.choices_of(hint)
        if choices:
            yield {"enum": sorted(map(str, choices))}
            yield {"type": "string", "pattern": r"[.{]"}
        for member in hints.members_of(hint):
            origin, args = typing.get_origin(member) or member, typing.get_args(member)
            if member is type(None):
                yield {"type": "null"}
                yield {"const": "None"}
            elif hints.is_unknown(member) or origin is object:
                yield {}
            elif member is bool:
                yield {"type": "boolean"}
                yield {"enum": ["True", "False"]}
            elif member is int:
                yield {"type": "integer"}
                yield _ARITHMETIC
            elif member in (float, complex):
                yield {"type": "number"}
                yield _ARITHMETIC
                yield {"enum": ["inf", "-inf"]}
            elif origin is typing.Literal or (inspect.isclass(member) and issubclass(member, Enum)):
                continue  # among the choices
            elif inspect.isclass(origin) and issubclass(origin, Mapping):
                yield {"type": "object"}
                yield {"type": "string"}
            elif args and hints.can_be_typed(member):
                inside = [*self._allowed(hints.element_hint(member, 0))]
                yield {"type": "array", "items": {"anyOf": inside}}
                yield {"type": "string"}
            elif hints.can_be_typed(member):
                yield _ANY_TEXT
            else:
                yield _one_of(self._fitting(hint))
                yield {"type": "object", "required": ["use"]}
                if args:
                    yield {"type": "array", "items": {"not": {"type": "object"}}}


def _object(properties: Schema, *, is_open: bool = False) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": {_PATHS: {}},
        "additionalProperties": is_open,
    }


def _one_of(names: list[str]) -> Schema:
    """Return the schema of the name of a component, or of a call of it."""
    return {"anyOf": [{"enum": names}, {"type": "string"}]} if names else {"type": "string"}


def _has_parts(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, fdl.Buildable) for item in items)


def main(arguments: list[str]) -> int:
    """Build an index, write it and print it; return the exit status."""
    path, directive, *allowed = arguments
    index = build_index([directive], allowed)
    if path:
        write(Path(path), index)
    print(json.dumps(index))
    return 0


if __name__ == "__main__":
    run_command(main)
