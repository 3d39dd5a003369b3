"""Where a value comes from: its assignments, and what it inherits."""

import functools
import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.assignments import (
    Assignment,
    Memory,
    Remembered,
    Source,
    assignments_of,
    attributed_to,
    left_open_by,
)
from fidgpt.graph.binding import Inherited, bind, resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import Key, all_arguments, default_of, parameter_of, set_arguments
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.hints import computed, is_quantity
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, find_parameter
from fidgpt.graph.walk import is_node, join, parts, step_to, title


@dataclass(frozen=True, slots=True)
class Input:
    """One of the values that a computed value is computed from.

    Attributes:
      path: the argument of the computation.
      value: what it is.
      heard_from: the place that says it, where it is heard.
    """

    path: str
    value: Any
    heard_from: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a parameter, or an item of a list or dict, came to its value.

    Attributes:
      path: the place.
      value: the value now, wherever it comes from; `fdl.NO_VALUE` where there is none.
      sayings: what was said in this very place, newest first; the first one stands, unless it
        took the value away.
      through: the tags by which the value is heard from another place; empty where it is not.
      left_open: who left the place open, where it is heard.
      source: the story of the place that says the value, where it is heard.
      holder: the story of the whole list or dict, where the place is an item of one.
      result: what a computed value comes to, where it can be known without its surroundings.
      computed_from: what it is computed from.
      default_of: the constructor whose default stands, with the place in which it is written.
      doc: the first words on the parameter, or on the quantity.
    """

    path: str
    value: Any
    sayings: list[Assignment] = field(default_factory=list)
    through: tuple[str, ...] = ()
    left_open: Assignment | None = None
    source: "Provenance | None" = None
    holder: "Provenance | None" = None
    result: Any = fdl.NO_VALUE
    computed_from: list[Input] = field(default_factory=list)
    default_of: str | None = None
    doc: str = ""


def provenance_of(root: Any, path: str) -> Provenance:
    """Why the parameter or item at a path has its value.

    Raises:
      ConfigError: there is no such place; the nearest names are suggested.
      ConfigErrors: the graph cannot be bound.
    """
    return _Teller(root).tell(find_parameter(root, path))


def sayings_at(place: ParameterRef) -> list[Assignment]:
    """What was said in a very place, newest first; of an item, the part that holds it knows."""
    return assignments_of(*place.owner) if place.owner else []


class _Teller:
    """Knows what is heard in a graph."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._heard = {(id(one.part), one.key): one for one in resolve(root)}

    def tell(self, place: ParameterRef) -> Provenance:
        part, key, said = place.container, place.key, place.value
        if not isinstance(part, fdl.Buildable):
            return self._of_item(place)
        told = Provenance(place.path, said, assignments_of(part, key), doc=_doc(part, key))
        if heard := self._heard.get((id(part), key)):
            return replace(
                told,
                value=heard.said.value,
                through=_tag_names(part, key),
                left_open=left_open_by(part, key),
                source=self._of_source(heard),
            )
        if said is fdl.NO_VALUE and (default := default_of(part, key)) is not fdl.NO_VALUE:
            return replace(told, value=default, default_of=_definition(part))
        if is_quantity(said):
            sources = list(self._sources(said, place.path))
            return replace(told, result=self._result(place), computed_from=sources)
        return told

    def _of_item(self, place: ParameterRef) -> Provenance:
        """An item's own sayings are kept by the part that holds the list or dict."""
        owner = place
        while not isinstance(owner.container, fdl.Buildable) and owner.above is not None:
            owner = owner.above
        if not isinstance(owner.container, fdl.Buildable):  # the root itself is a list
            return Provenance(place.path, place.value)
        return Provenance(place.path, place.value, sayings_at(place), holder=self.tell(owner))

    def _of_source(self, heard: Inherited) -> Provenance:
        said = heard.said
        path = join(said.node.path, step_to(said.key))
        return self.tell(find_parameter(self._root, path))

    def _sources(self, part: fdl.Buildable, path: str) -> Iterator[Input]:
        if is_formula(part):
            yield from self._named_in_formula(path)
            return
        known = set_arguments(part)
        for key, value in all_arguments(part).items():
            heard = self._heard.get((id(part), key))
            place = join(path, step_to(key))
            if heard:
                yield Input(place, heard.said.value, heard.said.path)
            elif key in known or value is not fdl.NO_VALUE:
                yield Input(place, value)

    def _named_in_formula(self, path: str) -> Iterator[Input]:
        """The values that a formula names, which are known once the graph is bound."""
        for name, value in set_arguments(find_parameter(self._bound, path).value)["values"].items():
            if isinstance(value, TaggedValueCls):
                value = set_arguments(value).get("value", fdl.NO_VALUE)
            yield Input(name, value if computed(value) is fdl.NO_VALUE else computed(value))

    def _result(self, place: ParameterRef) -> Any:
        """What a computed value comes to; nothing where it cannot be computed by itself."""
        return computed(find_parameter(self._bound, place.path).value)

    @functools.cached_property
    def _bound(self) -> Any:
        return bind(self._root)


def _tag_names(part: fdl.Buildable, key: Key) -> tuple[str, ...]:
    return tuple(sorted(tag.__name__ for tag in fdl.get_tags(part, key)))


def _definition(part: fdl.Buildable) -> str:
    """The name of what a part calls, and where that is written."""
    function = inspect.unwrap(fdl.get_callable(part))
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # built in, or typed into a shell
        return title(part)
    return f"{title(part)} ({(file or '').removeprefix(os.getcwd() + os.sep)}:{line})"


def _doc(part: fdl.Buildable, key: Key) -> str:
    """What the constructor's documentation says of a parameter, else what its tag says."""
    from fidgpt.graph.docs import doc_of

    parameter = parameter_of(part, key)
    found = doc_of(fdl.get_callable(part)).parameters
    name = parameter.name if parameter else str(key)
    if found.get(name):
        return f"{name} of {title(part)}: {' '.join(found[name].split())}"
    for tag in sorted(fdl.get_tags(part, key), key=str):
        return f"{tag.__name__}: {(inspect.getdoc(tag) or '').splitlines()[0]}"
    return ""


_MOST = 5  # sayings and sources in a text


def why_text(root: Any, path: str) -> str:
    """The story of a path in a few lines.

    Raises:
      ConfigError, ConfigErrors: as `provenance_of` does.
    """
    told = provenance_of(root, path)
    lines = [f"{told.path} = {_value_text(told)}", *(f"  {line}" for line in _chain(told))]
    doc = told.doc or (told.source.doc if told.source else "")
    return "\n".join([*lines, *([f"  {doc}"] if doc else [])]) + "\n"


def _chain(told: Provenance) -> Iterator[str]:
    if told.source is not None:
        yield f"heard through {' and '.join(told.through)} from {told.source.path}"
        if told.left_open is not None:
            yield f"  left open by {told.left_open.who}"
        yield f"{told.source.path} = {_value_text(told.source)}"
        yield from (f"  {line}" for line in _chain(told.source))
        yield from _sayings(told, is_over=True)
    elif told.default_of is not None:
        yield f"the default of {told.default_of}"
        yield from _sayings(told, is_over=True)
    elif told.holder is not None:
        yield from _sayings(told, is_over=False)
        yield f"in {told.holder.path}:"
        yield from (f"  {line}" for line in _chain(told.holder))
    else:
        yield from _sayings(told, is_over=False)
    for source in told.computed_from[:_MOST]:
        heard = f"  <- {source.heard_from}" if source.heard_from else ""
        yield f"computed from {source.path} = {short_text(source.value)}{heard}"


def _sayings(told: Provenance, *, is_over: bool) -> Iterator[str]:
    """What was said, newest first; all of it has lost where the place hears, or its default stands.

    A value taken away that was never there tells nothing.
    """
    for number, saying in enumerate(told.sayings[:_MOST]):
        if saying.value is fdl.NO_VALUE:
            yield f"taken away by {saying.who}"
        else:
            verb = "before, said by" if is_over or number else "said by"
            yield f"{short_text(saying.value)}  {verb} {saying.who}"
    if not told.sayings and not is_over and told.holder is None:
        yield "nobody recorded who said it"
    if len(told.sayings) > _MOST:
        yield f"and {len(told.sayings) - _MOST} times before"


def _value_text(told: Provenance) -> str:
    source = told
    while source.source is not None:
        source = source.source
    text = short_text(source.value)
    return text if source.result is fdl.NO_VALUE else f"{text} = {source.result!r:.60}"


def short_text(value: Any) -> str:
    """A value in a few words: a part by its name, a list of parts by theirs."""
    if value is fdl.NO_VALUE:
        return "not set"
    if isinstance(value, fdl.Buildable):
        return set_arguments(value)["text"] if is_formula(value) else title(value)
    if isinstance(value, dict) and any(map(is_node, value.values())):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, list | tuple) and any(isinstance(one, fdl.Buildable) for one in value):
        return f"[{', '.join(map(short_text, value))}]"
    text = leaf_text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


__all__ = [
    "Assignment",
    "Provenance",
    "Source",
    "attributed_to",
    "dump_provenance",
    "provenance_of",
    "restore_provenance",
    "why_text",
]


def dump_provenance(root: Any) -> str:
    """What was said in a graph, as the text of a file: a line for each path."""
    lines = [
        f"{json.dumps(path, ensure_ascii=False)}: {json.dumps(said, ensure_ascii=False)}"
        for path, said in _every_saying(root)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def restore_provenance(root: Any, text: str, *, source: str = "") -> None:
    """Gives the parameters of a loaded graph the history that they had when it was saved.

    Of what was said only the text is known; a path that the graph has no more is passed over.

    Args:
      root: the graph.
      text: what `dump_provenance` wrote.
      source: what to put before each directive, as another run's directives are not this one's.

    Raises:
      ConfigError: the text is no such file.
    """
    told = _read(text)
    with Memory() as memory:
        for path, key, part in (*_arguments(root), *_items(root, told)):
            if path in told:
                memory.recall(part, key, [_as_saying(one, source) for one in told[path]])


def _arguments(root: Any) -> Iterator[tuple[str, Key, fdl.Buildable]]:
    """The path of each argument that can have a history."""
    for node in parts(root):
        path, known = node.path, list(node.value.__argument_history__)
        for key in dict.fromkeys([*known, *node.value.__signature_info__.parameters]):
            yield join(path, _step(key)), key, node.value


def _items(root: Any, told: dict[str, Any]) -> Iterator[tuple[str, Key, fdl.Buildable]]:
    """The paths into lists and dicts, each with the name of its history in the part above it."""
    owners = {
        join(node.path, step_to(key)): (node.value, key)
        for node in parts(root)
        for key in node.value.__arguments__
    }
    for path in told.keys() - owners.keys():
        for end in (at for at, letter in enumerate(path) if letter == "["):
            if path[:end] in owners:
                part, key = owners[path[:end]]
                yield path, f"{key}{path[end:]}", part


def _every_saying(root: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for node in parts(root):
        path = node.path
        for key in list(node.value.__argument_history__):
            said = assignments_of(node.value, key)
            if said and key != "__fn_or_cls__":
                yield join(path, _step(key)), [_as_json(one) for one in reversed(said)]


def _step(key: Key) -> str:
    """The step to an argument; to an item of one, whose history has both in its name."""
    owner, bracket, item = str(key).partition("[")
    return step_to(int(owner) if owner.isdigit() else owner) + bracket + item


def _as_json(saying: Assignment) -> dict[str, Any]:
    value = None if saying.value is fdl.NO_VALUE else short_text(saying.value)
    words = {"value": value, "by": saying.by and str(saying.by), "where": saying.where}
    return {name: word for name, word in words.items() if name == "value" or word}


def _as_saying(written: dict[str, Any], source: str) -> Assignment:
    value = fdl.NO_VALUE if written["value"] is None else Remembered(written["value"])
    by = Source.read(written["by"]) if written.get("by") else None
    # A run that went on has sayings of its own, and those of its beginning, which name it already.
    if by and by.run is None and source:
        by = by._replace(run=source)
    return Assignment(value, by, written.get("where") or "")


def _read(text: str) -> dict[str, list[dict[str, Any]]]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the provenance is not JSON: {error}.") from None
    if not isinstance(told, dict) or not all(_is_told(said) for said in told.values()):
        raise ConfigError("the provenance is damaged: a path has a list of {value, by, where}.")
    return told


def _is_told(said: Any) -> bool:
    return isinstance(said, list) and all(
        isinstance(one, dict)
        and "value" in one
        and all(word is None or isinstance(word, str) for word in one.values())
        for one in said
    )
