"""YAML of other systems."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from fidgpt.graph import ConfigError

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML = "tag:yaml.org,2002:"
_DEEPEST = 10_000  # levels; libyaml takes time quadratic in them
_MOST_MERGED = 100_000  # entries; a file of a few lines can ask for any number of them
_FLOAT = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+
    |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)


class _Loader(_BASE):
    """PyYAML's safe loader, to which 1e-3 is a number, and 2001-01-01 a text like any other."""


_Loader.yaml_implicit_resolvers = {
    letter: [one for one in known if one[0] not in (f"{_YAML}float", f"{_YAML}timestamp")]
    for letter, known in _BASE.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_YAML}float", _FLOAT, list("-+0123456789."))
_RESOLVER: Any = _Loader("")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value that only the system which wrote the file can read, such as `!include a.yaml`."""

    tag: str
    value: str


class _Merge:
    """Stands for the key `<<`."""


@dataclass(slots=True)
class _Open:
    """A list or mapping of which the end is not read yet."""

    container: Any
    key: Any = None
    has_key: bool = False
    merged: list[Any] = field(default_factory=list)


def read_yaml(text: str, *, source: str = "the YAML file", foreign: tuple[str, ...] = ()) -> Any:
    """The mapping, list or value that a YAML text holds.

    An alias gives the object of its anchor, not a copy. Numbers, booleans and null are read as
    OmegaConf reads them.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      foreign: tags that give a `Foreign`; any other is refused.

    Raises:
      ConfigError: the text is no YAML, or holds more than plain data; the line is named.
    """
    try:
        return _Reader(text, source, foreign).read()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line} is not YAML: {error.problem}.") from None
    except (yaml.YAMLError, UnicodeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{source} is not YAML: {reason:.200}.") from None


def is_read_as_text(word: str) -> bool:
    """Whether a word without quotes is a text in a YAML file, not a number, boolean or null."""
    return _RESOLVER.resolve(yaml.ScalarNode, word, (True, False)) == f"{_YAML}str"


class _Reader:
    """Puts values together from the events of a parser, with a stack of what is open."""

    def __init__(self, text: str, source: str, foreign: tuple[str, ...]) -> None:
        self.loader: Any = _Loader(text)
        self.source = source
        self.foreign = foreign
        self.anchors: dict[str, Any] = {}
        self.open: list[_Open] = []
        self.opened: set[int] = set()
        self.merged = 0
        self.root: list[Any] = []
        self.line = 1

    def read(self) -> Any:
        for event in self._events():
            self.line = event.start_mark.line + 1
            match event:
                case yaml.AliasEvent():
                    self._add(self._anchored(event.anchor))
                case yaml.ScalarEvent():
                    value = self._scalar(event)
                    self._remember(event.anchor, value)
                    self._add(value)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._begin(event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._end()
                case yaml.DocumentStartEvent() if self.root:
                    raise self._wrong("a second document begins: a config is one document.")
        if not self.root:
            raise ConfigError(f"{self.source} is empty.")
        return self.root[0]

    def _events(self) -> Iterator[Any]:
        try:
            while self.loader.check_event():
                yield self.loader.get_event()
        finally:
            self.loader.dispose()

    def _wrong(self, message: str) -> ConfigError:
        return ConfigError(f"{self.source}, line {self.line}: {message}")

    def _anchored(self, name: str) -> Any:
        if name not in self.anchors:
            raise self._wrong(f"*{name:.40} is used before there is an anchor &{name:.40}.")
        value = self.anchors[name]
        if id(value) in self.opened:
            raise self._wrong(f"*{name:.40} stands inside of what it names.")
        return value

    def _remember(self, anchor: str | None, value: Any) -> None:
        if anchor is not None:
            self.anchors[anchor] = value

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag in (None, "!"):
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in self.foreign:
            return Foreign(tag, event.value)
        kind = tag.removeprefix(_YAML)
        if kind == "merge" and self.open and not self.open[-1].has_key:
            return _Merge
        if kind in ("str", "value", "merge"):
            return event.value
        if not tag.startswith(_YAML) or kind not in ("null", "bool", "int", "float"):
            raise self._refused(tag)
        try:
            return getattr(self.loader, f"construct_yaml_{kind}")(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError):
            raise self._wrong(f"{event.value!r:.60} is no {kind}.") from None

    def _refused(self, tag: str) -> ConfigError:
        return self._wrong(f"the tag {tag!r:.60} is refused: a config is plain data.")

    def _begin(self, event: Any) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_YAML}{'map' if is_mapping else 'seq'}"):
            raise self._refused(event.tag)
        if len(self.open) >= _DEEPEST:
            raise self._wrong(f"more than {_DEEPEST:,} lists and mappings lie in each other.")
        container: Any = {} if is_mapping else []
        self._remember(event.anchor, container)
        self._add(container)
        self.open.append(_Open(container))
        self.opened.add(id(container))

    def _add(self, value: Any) -> None:
        """Puts a value where the parser stands: a key, the value of a key, an item, or the root."""
        if not self.open:
            self.root.append(value)
            return
        top = self.open[-1]
        if isinstance(top.container, list):
            top.container.append(value)
        elif not top.has_key:
            self._check_key(top, value)
            top.key, top.has_key = value, True
        else:
            top.has_key = False
            if top.key is _Merge:
                top.merged.append(value)
            else:
                top.container[top.key] = value

    def _check_key(self, top: _Open, key: Any) -> None:
        if isinstance(key, list | dict | Foreign):
            raise self._wrong("a key is a text or a number, not a list or mapping.")
        if key in top.container:
            raise self._wrong(f"{key!r:.60} is said twice in one mapping: delete one of them.")

    def _end(self) -> None:
        top = self.open.pop()
        self.opened.discard(id(top.container))
        for value in top.merged:
            for mapping in value if isinstance(value, list) else [value]:
                self._merge(top.container, mapping)

    def _merge(self, container: dict[Any, Any], mapping: Any) -> None:
        """Adds the entries of a mapping that stood at `<<`, where there are none of their names."""
        if not isinstance(mapping, dict):
            raise self._wrong("<< takes a mapping, or a list of mappings.")
        self.merged += len(mapping)
        if self.merged > _MOST_MERGED:
            raise self._wrong(f"<< repeats more than {_MOST_MERGED:,} entries.")
        for key, value in mapping.items():
            container.setdefault(key, value)


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_BLOCKS = 40  # levels in block style; further in, indentation would outgrow what it indents


def write_yaml(root: Any, *, anchors: Mapping[int, str]) -> str:
    """A YAML text for a tree of mappings, lists and plain values.

    Args:
      root: what to write; it holds no loops.
      anchors: names for containers, by their `id`, that are written once and referred to.
    """
    lines: list[str] = []
    written: set[int] = set()
    todo = [_Row("", "", "", root, 0)]
    while todo:
        row = todo.pop()
        value = row.value
        if row.level >= _BLOCKS or id(value) in written or not _needs_lines(value):
            lines.append(row.begin + "".join(_flow(value, anchors, written)))
            continue
        anchor = _anchor(value, anchors, written)
        inner = [*_inside(row, value)]
        if row.head.endswith("- ") and not anchor:  # the first entry goes on its line
            inner[0] = inner[0]._replace(dashes=f"{row.dashes}- ")
        elif row.level or anchor:
            lines.append(f"{row.begin}{anchor}".rstrip())
        todo += reversed(inner)
    return "\n".join(lines) + "\n"


class _Row(NamedTuple):
    """An entry to write: `dashes` of lists that begin on its line take the end of its indent."""

    indent: str
    dashes: str
    head: str
    value: Any
    level: int

    @property
    def begin(self) -> str:
        return f"{self.indent.removesuffix(' ' * len(self.dashes))}{self.dashes}{self.head}"


def _needs_lines(value: Any) -> bool:
    """Whether a value is too much for one line: a mapping, or a list that holds another."""
    if isinstance(value, list):
        return any(isinstance(item, dict | list) for item in value)
    return isinstance(value, dict) and bool(value)


def _inside(row: _Row, value: Any) -> Iterator[_Row]:
    """The entries of a container, one level further in."""
    indent = f"{row.indent}  " if row.level else ""
    for head, item in _rows(value):
        yield _Row(indent, "", head, item, row.level + 1)


def _rows(value: Any) -> Iterator[tuple[str, Any]]:
    """What begins the line of each entry, and the entry."""
    if isinstance(value, dict):
        return ((f"{scalar_text(key)}: ", item) for key, item in value.items())
    return (("- ", item) for item in value)


def _anchor(value: Any, anchors: Mapping[int, str], written: set[int]) -> str:
    if id(value) not in anchors:
        return ""
    written.add(id(value))
    return f"&{anchors[id(value)]} "


def _flow(root: Any, anchors: Mapping[int, str], written: set[int]) -> Iterator[str]:
    """The pieces of a value on one line."""
    todo: list[tuple[str, Any]] = [("value", root)]
    while todo:
        kind, value = todo.pop()
        if kind == "text":
            yield value
        elif not isinstance(value, dict | list):
            yield scalar_text(value)
        elif id(value) in written:
            yield f"*{anchors[id(value)]}"
        else:
            yield _anchor(value, anchors, written)
            todo += reversed(_flow_pieces(value))


def _flow_pieces(value: Any) -> list[tuple[str, Any]]:
    is_mapping = isinstance(value, dict)
    pieces: list[tuple[str, Any]] = [("text", "{" if is_mapping else "[")]
    for number, entry in enumerate(value):
        key = f"{scalar_text(entry)}: " if is_mapping else ""
        pieces.append(("text", f"{', ' if number else ''}{key}"))
        pieces.append(("value", value[entry] if is_mapping else entry))
    return [*pieces, ("text", "}" if is_mapping else "]")]


def scalar_text(value: Any) -> str:
    """None, a boolean, a number or a text as YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if _BARE.fullmatch(value) and is_read_as_text(value):
        return value
    return _quoted(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    mantissa, exponent, power = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{exponent}{power}"


def _quoted(text: str) -> str:
    """In double quotes, with a sign for whatever YAML would read as something else."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(one if _is_printable(one) else f"\\U{ord(one):08X}" for one in plain)


def _is_printable(one: str) -> bool:
    return one.isprintable() and not "\ud800" <= one <= "\udfff"
