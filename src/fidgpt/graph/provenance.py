"""Where a value comes from: what set it, and what it is inherited or computed from."""

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
    Source,
    assignments_of,
    attributed_to,
    restore_assignments,
    unset_by,
)
from fidgpt.graph.binding import Resolved
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import (
    CALLABLE,
    Key,
    all_arguments,
    argument_history,
    default_of,
    parameter_of,
    set_arguments,
)
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.hints import computed, is_quantity
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, find_parameter
from fidgpt.graph.walk import is_node, join, parts, step_to, title

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


@dataclass(frozen=True, slots=True)
class Input:
    """One of the values from which another is computed.

    Attributes:
      path: the argument of the computation.
      value: its value.
      inherited_from: the parameter that sets it, if it is inherited.
    """

    path: str
    value: Any
    inherited_from: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a parameter, or an item of a list or dict, got its value.

    Attributes:
      path: the parameter.
      value: its value, set or not; `fdl.NO_VALUE` if there is none.
      assignments: those to this very parameter, newest first; the first one applies, unless it
        removed the value.
      tags: the tags by which the value is inherited; empty if it is not.
      unset_by: what left the parameter unset, if it inherits.
      source: the provenance of the parameter that sets the inherited value.
      container: the provenance of the whole list or dict, for an item of one.
      result: the result of a computed value, if it is known without building a module.
      inputs: what it is computed from.
      default_of: the constructor whose default applies, and where it is written.
      doc: the documentation of the parameter, or of its tag.
    """

    path: str
    value: Any
    assignments: list[Assignment] = field(default_factory=list)
    tags: tuple[str, ...] = ()
    unset_by: Assignment | None = None
    source: "Provenance | None" = None
    container: "Provenance | None" = None
    result: Any = fdl.NO_VALUE
    inputs: list[Input] = field(default_factory=list)
    default_of: str | None = None
    doc: str = ""


def provenance_of(root: Any, path: str) -> Provenance:
    """Return how the parameter or item at a path got its value.

    Raises:
      ConfigError: there is no such parameter; the nearest names are suggested.
      ConfigErrors: the graph cannot be bound.
    """
    resolved = Resolved.of(root)
    return _Explainer(resolved).explain(find_parameter(resolved.root, path))


def assignments_at(ref: ParameterRef) -> list[Assignment]:
    """Return the assignments to a parameter or item itself, newest first."""
    return assignments_of(*ref.owner) if ref.owner else []


class _Explainer:
    """Explains the parameters of one graph."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._inherited = {(id(one.part), one.key): one for one in resolved.inherited}

    def explain(self, ref: ParameterRef) -> Provenance:
        part, key, value = ref.container, ref.key, ref.value
        found = Provenance(ref.path, value, assignments_at(ref))
        if not isinstance(part, fdl.Buildable):
            while not isinstance(ref.container, fdl.Buildable) and ref.above is not None:
                ref = ref.above
            return replace(found, container=self.explain(ref)) if ref.above else found
        found = replace(found, doc=_doc(part, key))
        if inherited := self._inherited.get((id(part), key)):
            source = inherited.binding
            return replace(
                found,
                value=source.value,
                tags=tuple(sorted(tag.__name__ for tag in fdl.get_tags(part, key))),
                unset_by=unset_by(part, key),
                source=self.explain(find_parameter(self._resolved.root, source.path)),
            )
        if value is fdl.NO_VALUE and (default := default_of(part, key)) is not fdl.NO_VALUE:
            return replace(found, value=default, default_of=_definition(part))
        if is_quantity(value):
            bound = find_parameter(self._resolved.bound, ref.path).value
            return replace(found, result=computed(bound), inputs=list(self._inputs(ref, bound)))
        return found

    def _inputs(self, ref: ParameterRef, bound: fdl.Buildable) -> Iterator[Input]:
        if is_formula(bound):
            for name, value in set_arguments(bound)["values"].items():
                if isinstance(value, TaggedValueCls):
                    value = set_arguments(value).get("value", fdl.NO_VALUE)
                result = computed(value)
                yield Input(name, value if result is fdl.NO_VALUE else result)
            return
        for key, value in all_arguments(bound).items():
            if value is not fdl.NO_VALUE:
                inherited = self._inherited.get((id(ref.value), key))
                source = inherited.binding.path if inherited else None
                yield Input(join(ref.path, step_to(key)), value, source)


def _definition(part: fdl.Buildable) -> str:
    """Return the name of what a node calls, and where it is written."""
    function = inspect.unwrap(fdl.get_callable(part))
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # built in, or typed into a shell
        return title(part)
    return f"{title(part)} ({(file or '').removeprefix(os.getcwd() + os.sep)}:{line})"


def _doc(part: fdl.Buildable, key: Key) -> str:
    """Return the constructor's documentation of a parameter, else its tag's."""
    from fidgpt.graph.docs import doc_of  # late: it imports a parser of docstrings

    parameter = parameter_of(part, key)
    name = parameter.name if parameter else str(key)
    if text := doc_of(fdl.get_callable(part)).parameters.get(name):
        return f"{name} of {title(part)}: {' '.join(text.split())}"
    for tag in sorted(fdl.get_tags(part, key), key=str):
        return f"{tag.__name__}: {(inspect.getdoc(tag) or '').splitlines()[0]}"
    return ""


_MOST = 5  # assignments and inputs in a text


def why_text(root: Any, path: str) -> str:
    """Return the provenance of a path in a few lines.

    Raises:
      ConfigError, ConfigErrors: as `provenance_of` does.
    """
    found = provenance_of(root, path)
    lines = [f"{found.path} = {_value_text(found)}", *(f"  {line}" for line in _chain(found))]
    doc = found.doc or (found.source.doc if found.source else "")
    return "\n".join([*lines, *([f"  {doc}"] if doc else [])]) + "\n"


def _chain(found: Provenance) -> Iterator[str]:
    is_overridden = found.source is not None or found.default_of is not None
    if found.source is not None:
        yield f"inherited from {found.source.path} through {' and '.join(found.tags)}"
        if found.unset_by is not None:
            yield f"  left unset by {found.unset_by.set_by}"
        yield f"{found.source.path} = {_value_text(found.source)}"
        yield from (f"  {line}" for line in _chain(found.source))
    elif found.default_of is not None:
        yield f"default of {found.default_of}"
    for number, one in enumerate(found.assignments[:_MOST]):
        if one.value is fdl.NO_VALUE:
            yield f"removed by {one.set_by}"
        else:
            verb = "previously set by" if is_overridden or number else "set by"
            yield f"{short_text(one.value)}  {verb} {one.set_by}"
    if len(found.assignments) > _MOST:
        yield f"and {len(found.assignments) - _MOST} earlier assignments"
    if found.container is not None:
        yield f"in {found.container.path}:"
        yield from (f"  {line}" for line in _chain(found.container))
    elif not found.assignments and not is_overridden:
        yield "unset" if found.value is fdl.NO_VALUE else "set by unknown code"
    for one in found.inputs[:_MOST]:
        source = f"  <- {one.inherited_from}" if one.inherited_from else ""
        yield f"computed from {one.path} = {short_text(one.value)}{source}"


def _value_text(found: Provenance) -> str:
    while found.source is not None:
        found = found.source
    text = short_text(found.value)
    return text if found.result is fdl.NO_VALUE else f"{text} = {found.result!r:.60}"


def short_text(value: Any) -> str:
    """Return a value in a few words: a node by its name, a list of nodes by theirs."""
    if value is fdl.NO_VALUE:
        return "unset"
    if isinstance(value, fdl.Buildable):
        return set_arguments(value)["text"] if is_formula(value) else title(value)
    if isinstance(value, dict) and any(map(is_node, value.values())):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, list | tuple) and any(isinstance(one, fdl.Buildable) for one in value):
        return f"[{', '.join(map(short_text, value))}]"
    text = leaf_text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


class RecordedText(str):
    """The text of a value that was set before the graph was saved; the value itself is gone."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def dump_provenance(root: Any) -> str:
    """Return the assignments of a graph as the text of a file: a line for each path."""
    lines: list[str] = []
    for node in parts(root):
        path = node.path
        for key in list(argument_history(node.value)):
            assignments = assignments_of(node.value, key)
            if assignments and key != CALLABLE:
                name, bracket, steps = str(key).partition("[")
                own = join(path, step_to(int(name) if name.isdigit() else name)) + bracket + steps
                texts = [_as_json(one) for one in reversed(assignments)]
                lines.append(": ".join(json.dumps(one, ensure_ascii=False) for one in (own, texts)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def restore_provenance(root: Any, text: str, *, source: str = "") -> None:
    """Give the parameters of a loaded graph the history that they had when it was saved.

    Of old values only the text is known; paths that the graph no longer has are ignored.

    Args:
      root: the graph.
      text: what `dump_provenance` wrote.
      source: the run to name with each source, as its directives are not this command's.

    Raises:
      ConfigError: the text is not such a file.
    """
    owners = {
        join(node.path, step_to(key)): (node.value, key)
        for node in parts(root)
        for key in {**all_arguments(node.value), **argument_history(node.value)}
    }
    for path, texts in _read(text).items():
        restored = [_from_json(one, source) for one in texts]
        if path in owners:
            restore_assignments(*owners[path], restored)
            continue
        for end in (at for at, letter in enumerate(path) if letter == "["):
            if path[:end] in owners:
                part, key = owners[path[:end]]
                restore_assignments(part, f"{key}{path[end:]}", restored)


def _as_json(assignment: Assignment) -> dict[str, Any]:
    value = None if assignment.value is fdl.NO_VALUE else short_text(assignment.value)
    by = assignment.by and str(assignment.by)
    words = {"value": value, "by": by, "where": assignment.where}
    return {name: word for name, word in words.items() if name == "value" or word}


def _from_json(written: dict[str, Any], source: str) -> Assignment:
    value = fdl.NO_VALUE if written["value"] is None else RecordedText(written["value"])
    by = Source.read(written["by"]) if written.get("by") else None
    # A resumed run has assignments of its own, and those of previous runs, which name theirs.
    if by and by.run is None and source:
        by = by._replace(run=source)
    return Assignment(value, by, written.get("where") or "")


def _read(text: str) -> dict[str, list[dict[str, Any]]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the provenance is not JSON: {error}.") from None
    if not isinstance(found, dict) or not all(map(_is_history, found.values())):
        raise ConfigError("the provenance is damaged: a path has a list of {value, by, where}.")
    return found


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and "value" in one
        and all(word is None or isinstance(word, str) for word in one.values())
        for one in value
    )
