"""Where a value comes from: what set it, and what it is inherited or computed from."""

import contextlib
import functools
import inspect
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle import history
from fiddle.tagging import TaggedValueCls

from fidgpt import errors
from fidgpt.graph import binding, fiddle, formulas, hints, outlines, paths
from fidgpt.graph.walk import join, parts, places, step_from, step_to, title


class Source(NamedTuple):
    """What set a value: a directive, a fiddler, or anything with a name.

    Attributes:
      text: a directive as it was typed, the name of a fiddler, or any other description.
      kind: `directive` or `fiddler`; "" for others.
      number: its position among sources of its kind, counted from 1; 0 for others.
      run: the previous run, or file, that it belongs to; None for this command.
      where: the line of the file that a directive stands in; "" for others.
      meant: the directive with the values of environment variables; "" if it names none.
    """

    text: str
    kind: str = ""
    number: int = 0
    run: str | None = None
    where: str = ""
    meant: str = ""

    def __str__(self) -> str:
        own = f"{self.kind} {self.number}: {self.text}" if self.kind else self.text
        own = f"{own}, here {self.meant}" if self.meant else own
        return f"{self.run}: {own}" if self.run else own


_FIDGPT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files that assign on behalf of their caller, whose line is the one to record.
_MACHINERY = (
    os.path.dirname(os.path.abspath(fdl.__file__)) + os.sep,
    os.path.join(_FIDGPT, "graph") + os.sep,
    os.path.join(_FIDGPT, "cli") + os.sep,
    os.path.join(_FIDGPT, "compose") + os.sep,
    os.path.join(_FIDGPT, "runs") + os.sep,
    contextlib.__file__,  # which calls what a context manager decorates
)
_current: ContextVar[tuple[Source | None, FrameType | None]] = ContextVar(
    "source", default=(None, None)
)


@dataclass(frozen=True)
class AttributedLocation(history.Location):
    """A line of code and, if there is one, the source on whose behalf it ran."""

    by: Source | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One recorded change of a parameter.

    Attributes:
      value: the value; `fdl.NO_VALUE` where it was removed, or only a tag was added.
      by: the source, such as a directive; None where code alone set it.
      where: the line of code, such as `configs/small.py:70 in base`; "" if unknown.
    """

    value: Any
    by: Source | None
    where: str

    @property
    def set_by(self) -> str:
        """The source and the line of code, as one phrase for a terminal."""
        words = [_printable(str(word)) for word in (self.by, self.where) if word]
        return f"{words[0]} ({words[1]})" if len(words) == 2 else "".join(words) or "unknown code"


def _printable(text: str) -> str:
    """A text on one line, without control characters."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


@contextlib.contextmanager
def attributed_to(source: Source | str) -> Iterator[None]:
    """Record a source with every assignment made inside, beside the line of code."""
    by = Source(source) if isinstance(source, str) else source
    frame = inspect.currentframe()
    entered = frame.f_back.f_back if frame and frame.f_back else None  # past contextlib
    token = _current.set((by, entered))
    del frame
    try:
        yield
    finally:
        _current.reset(token)


def assignments_of(part: fdl.Buildable, key: fiddle.Key, steps: str = "") -> list[Assignment]:
    """Return the assignments to an argument, newest first.

    Args:
      part: the node.
      key: the argument.
      steps: the path from there to an item of a list or dict, such as `[0]`.
    """
    # Fiddle's history adds a key that is looked up with [].
    entries = fiddle.argument_history(part).get(f"{key}{steps}" if steps else key, [])
    return [_assignment(entry) for entry in reversed(entries) if not _is_of_tags(entry)]


def unset_by(part: fdl.Buildable, key: fiddle.Key) -> Assignment | None:
    """Return what last gave an argument a tag, so that it inherits its value."""
    entries = fiddle.argument_history(part).get(key, [])
    return next((_assignment(entry) for entry in reversed(entries) if _is_of_tags(entry)), None)


def sources_of(values: Iterable[fdl.Buildable]) -> list[Source]:
    """Return the sources of all assignments and tags of some nodes, each once."""
    locations = (
        entry.location
        for part in values
        for entries in fiddle.argument_history(part).values()
        for entry in entries
    )
    sources = (loc.by for loc in locations if isinstance(loc, AttributedLocation) and loc.by)
    return list(dict.fromkeys(sources))


def keep_assignments(
    new: fdl.Buildable, old: fdl.Buildable, key: fiddle.Key, *, known_as: fiddle.Key | None = None
) -> None:
    """Copy the history of an argument to a node that replaces another.

    Args:
      new: the new node.
      old: the node that `new` replaces.
      key: the argument of `old`.
      known_as: its name in `new`; None for the same.
    """
    entries = list(fiddle.argument_history(old).get(key, []))
    fiddle.argument_history(new)[key if known_as is None else known_as] = entries


def _is_of_tags(entry: history.HistoryEntry) -> bool:
    return entry.kind is history.ChangeKind.UPDATE_TAGS


def _assignment(entry: history.HistoryEntry) -> Assignment:
    is_value = not _is_of_tags(entry) and entry.new_value is not history.DELETED
    location = entry.location
    where = location.filename
    if location.line_number:
        where = f"{where.removeprefix(os.getcwd() + os.sep)}:{location.line_number}"
        if location.function_name not in (None, "<module>"):
            where += f" in {location.function_name}"
    by = location.by if isinstance(location, AttributedLocation) else None
    where = ", ".join(filter(None, (by.where if by else "", where)))
    return Assignment(entry.new_value if is_value else fdl.NO_VALUE, by, where)


def _location() -> history.Location:
    """Return the nearest line of code outside the machinery, up to the one that set the source."""
    by, entered = _current.get()
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if not _is_machinery(code.co_filename):
            return _cached_location(code.co_filename, frame.f_lineno, code.co_name, by)
        if frame is entered:
            break
        frame = frame.f_back
    return _cached_location("", 0, None, by)


@functools.cache
def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)


_cached_location = functools.lru_cache(maxsize=8192)(AttributedLocation)

# Fiddle calls this for every assignment from now on. It stays entered until the process ends; a
# nested `history.custom_location` takes precedence.
_installed = history.custom_location(_location)
_installed.__enter__()


def places_of(resolved: "binding.Resolved", path: str) -> list[str]:
    """Return all paths of the parameter or item at a path, the nearest to that one first.

    There are several inside a shared part.

    Raises:
      ConfigError: there is no such parameter.
    """
    ref = paths.find_parameter(resolved.root, path)
    node = resolved.node_of.get(id(ref.container))
    if node is None or hints.is_quantity(ref.container):
        return [ref.path]
    step = step_from(ref.container, ref.key)
    return list(dict.fromkeys([ref.path, *places(node, step)]))


def assignments_at(ref: paths.ParameterRef) -> list[Assignment]:
    """Return the assignments to a parameter or item itself, newest first."""
    return assignments_of(*ref.owner) if ref.owner else []


def _value_of(
    resolved: binding.Resolved, ref: paths.ParameterRef
) -> tuple[Any, paths.ParameterRef | None]:
    """Return the value of a parameter, and the parameter that it is inherited from, if it is."""
    source = resolved.inherited_by(ref.container).get(ref.key)
    if source is not None:
        return source.value, paths.find_parameter(resolved.root, source.path)
    is_unset = ref.value is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable)
    return fiddle.default_of(ref.container, ref.key) if is_unset else ref.value, None


def definition(part: fdl.Buildable) -> str:
    """Return the name of what a node calls, and where it is written."""
    function = inspect.unwrap(fdl.get_callable(part))
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # built in, or typed into a shell
        return title(part)
    return f"{title(part)} ({(file or '').removeprefix(os.getcwd() + os.sep)}:{line})"


def _doc(ref: paths.ParameterRef) -> str:
    """Return the constructor's documentation of a parameter, else its tag's; "" of an item."""
    from fidgpt.graph.docs import doc_of  # late: it imports a parser of docstrings

    part, key = ref.container, ref.key
    if not isinstance(part, fdl.Buildable):
        return ""
    parameter = fiddle.parameter_of(part, key)
    name = parameter.name if parameter else str(key)
    if text := doc_of(fdl.get_callable(part)).parameters.get(name):
        return f"{name} of {title(part)}: {' '.join(text.split())}"
    for tag in sorted(fdl.get_tags(part, key), key=str):
        return f"{tag.__name__}: {(inspect.getdoc(tag) or '').splitlines()[0]}"
    return ""


_MOST = 5  # assignments and inputs in a text


def why_text(root: Any, path: str) -> str:
    """Return in a few lines how the parameter or item at a path got its value.

    Raises:
      ConfigError: there is no such parameter; the nearest names are suggested.
      ConfigErrors: the graph cannot be bound.
    """
    resolved = binding.Resolved.of(root)
    ref = paths.find_parameter(resolved.root, path)
    others = [place for place in places_of(resolved, ref.path) if place != ref.path]
    lines = [f"shared with {errors.listed(others, most=3)}"] if others else []
    lines += _chain(resolved, ref)
    _, source = _value_of(resolved, ref)
    lines += filter(None, [_doc(ref) or (_doc(source) if source else "")])
    head = f"{ref.path} = {_value_text(resolved, source or ref)}"
    return "\n".join([head, *(f"  {line}" for line in lines)]) + "\n"


def _chain(resolved: binding.Resolved, ref: paths.ParameterRef) -> Iterator[str]:
    """Yield what set a value, now and before, and what it is inherited or computed from."""
    part, assignments = ref.container, assignments_at(ref)
    value, source = _value_of(resolved, ref)
    is_default = source is None and value is not ref.value
    if source is not None:
        tags = sorted(tag.__name__ for tag in fdl.get_tags(part, ref.key))
        yield f"inherited from {source.path} through {' and '.join(tags)}"
        if (left := unset_by(part, ref.key)) is not None:
            yield f"  left unset by {left.set_by}"
        yield f"{source.path} = {_value_text(resolved, source)}"
        yield from (f"  {line}" for line in _chain(resolved, source))
    elif is_default:
        yield f"default of {definition(part)}"
    is_overridden = source is not None or is_default
    for number, assignment in enumerate(assignments[:_MOST]):
        if assignment.value is fdl.NO_VALUE:
            yield f"removed by {assignment.set_by}"
        else:
            verb = "previously set by" if is_overridden or number else "set by"
            yield f"{short_text(assignment.value)}  {verb} {assignment.set_by}"
    if not isinstance(part, fdl.Buildable) and (holder := _holder(ref)):
        yield f"in {holder.path}:"
        yield from (f"  {line}" for line in _chain(resolved, holder))
    elif not assignments and not is_overridden:
        yield "unset" if value is fdl.NO_VALUE else "set by unknown code"
    if source is None and _is_computed(ref):
        yield from itertools.islice(_inputs(resolved, ref), _MOST)


def _holder(ref: paths.ParameterRef) -> paths.ParameterRef | None:
    """Return the argument of a part that an item is in."""
    holder = ref.above
    while holder and not isinstance(holder.container, fdl.Buildable):
        holder = holder.above
    return holder


def _is_computed(ref: paths.ParameterRef) -> bool:
    return isinstance(ref.container, fdl.Buildable) and hints.is_quantity(ref.value)


def _inputs(resolved: binding.Resolved, ref: paths.ParameterRef) -> Iterator[str]:
    """Yield what a value is computed from; of a formula, the names in it and their values."""
    bound = resolved.copies[id(ref.value)]
    if formulas.is_formula(bound):
        for name, value in fiddle.set_arguments(bound)["values"].items():
            if isinstance(value, TaggedValueCls):
                value = fiddle.set_arguments(value).get("value", fdl.NO_VALUE)
            result = hints.computed(value)
            result = value if result is fdl.NO_VALUE else result
            yield f"computed from {name} = {short_text(result)}"
        return
    for own in (paths.ParameterRef(ref.value, key, ref) for key in fiddle.all_arguments(bound)):
        value, source = _value_of(resolved, own)
        if value is not fdl.NO_VALUE:
            origin = f"  <- {source.path}" if source else ""
            yield f"computed from {own.path} = {short_text(value)}{origin}"


def _value_text(resolved: binding.Resolved, ref: paths.ParameterRef) -> str:
    """Return a value that is not inherited, and its result if it is computed."""
    value, _ = _value_of(resolved, ref)
    result = hints.computed(resolved.copies[id(value)]) if _is_computed(ref) else fdl.NO_VALUE
    text = short_text(value)
    return text if result is fdl.NO_VALUE else f"{text} = {result!r:.60}"


def short_text(value: Any) -> str:
    """Return a value in a few words, and a node by its name."""
    if value is fdl.NO_VALUE:
        return "unset"
    if isinstance(value, fdl.Buildable):
        return fiddle.set_arguments(value)["text"] if formulas.is_formula(value) else title(value)
    text = outlines.leaf_text(value)
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
        for key in list(fiddle.argument_history(node.value)):
            assignments = assignments_of(node.value, key)
            if assignments and key != fiddle.CALLABLE:
                name, bracket, steps = str(key).partition("[")
                own = join(path, step_to(int(name) if name.isdigit() else name)) + bracket + steps
                texts = [_as_json(assignment) for assignment in reversed(assignments)]
                lines.append(": ".join(json.dumps(x, ensure_ascii=False) for x in (own, texts)))
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
        for key in {**fiddle.all_arguments(node.value), **fiddle.argument_history(node.value)}
    }
    try:
        restored = {
            path: [_from_json(record, source) for record in texts]
            for path, texts in json.loads(text).items()
        }
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise errors.ConfigError(f"the provenance is damaged: {error}.") from None
    for path, assignments in restored.items():
        ends = [len(path), *(at for at, letter in enumerate(path) if letter == "[")]
        for end in (end for end in ends if path[:end] in owners):
            part, key = owners[path[:end]]
            own = f"{key}{path[end:]}" if path[end:] else key
            fiddle.argument_history(part)[own] = [
                history.HistoryEntry(
                    sequence_id=number,
                    param_name=str(own),
                    kind=history.ChangeKind.NEW_VALUE,
                    new_value=history.DELETED if a.value is fdl.NO_VALUE else a.value,
                    location=AttributedLocation(a.where, 0, None, a.by),
                )
                for number, a in enumerate(assignments)
            ]
            if end == len(path):
                break


def _as_json(assignment: Assignment) -> dict[str, Any]:
    value = None if assignment.value is fdl.NO_VALUE else short_text(assignment.value)
    fields = assignment.by._replace(where="")._asdict() if assignment.by else {}
    by = {name: field for name, field in fields.items() if field}
    words = {"value": value, "by": by, "where": assignment.where}
    return {name: word for name, word in words.items() if name == "value" or word}


def _from_json(written: dict[str, Any], source: str) -> Assignment:
    value = fdl.NO_VALUE if written["value"] is None else RecordedText(written["value"])
    by = Source(**written["by"]) if written.get("by") else None
    # A resumed run has its own assignments, and assignments of previous runs, which name their run.
    if by and by.run is None and source:
        by = by._replace(run=source)
    return Assignment(value, by, written.get("where") or "")
