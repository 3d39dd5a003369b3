"""The JSON schema of a graph, by which editors complete and check a file of overrides."""

import functools
import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.directives import DIRECTIVES
from fidgpt.graph import Resolved, fiddle, hints, title, values
from fidgpt.graph.docs import doc_of
from fidgpt.graph.fitting import builds, fitting

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"  # which the server of editors reads
# What stands for a number in quotes or without: arithmetic, formulas, variables and calls.
_ARITHMETIC = {"type": "string", "pattern": r"^(?![-+]?[0-9.]+$)[-+0-9_.eE*/% ()]+$|[{(]"}
_ANY_TEXT = {"type": ["string", "number", "boolean"]}
_NAMES = {"type": ["string", "array", "object"]}
_PATHS = r"[.\[\]*@:]|[+-]$"  # keys that are paths, selectors, or change a present value


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
        choices = values.choices_of(hint)
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
