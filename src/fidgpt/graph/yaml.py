"""Reading and writing YAML as plain data."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import yaml

from fidgpt.errors import ConfigError
from fidgpt.graph.expressions import read_float

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser if installed
_TAG = "tag:yaml.org,2002:"
_DATA = ("null", "bool", "int", "float", "str", "seq", "map")
_OMEGACONF_FLOAT = re.compile(
    r"""(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+
    |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_CORE = {
    "null": r"~|null|",
    "bool": r"true|false",
    "int": r"[-+]?[0-9]{1,4000}",
    "float": r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
    "merge": "<<",
}
_MAX_BLOCKS = 40  # levels in block style; further in, indentation would outgrow the content


class Foreign(NamedTuple):
    """A value that only another system can read, such as `!include a.yaml`."""

    tag: str
    value: str


def read_yaml(
    text: str, *, schema: Literal["core", "omegaconf"] = "core", foreign: tuple[str, ...] = ()
) -> Any:
    """Return the mapping, list or value of a YAML document.

    Args:
      text: contents of the file.
      schema: "core" is YAML 1.2: `no` is a text, 1e-3 a number, keys are texts, and there are no
        aliases. With "omegaconf" numbers and booleans are read as OmegaConf reads them, and an
        alias gives the object of its anchor, not a copy.
      foreign: tags that give a `Foreign`; any other is an error.

    Raises:
      ConfigError: the text is not YAML, or more than plain data; the line is named.
    """
    return _read(text, schema, foreign)[1]


def read_nodes(text: str) -> yaml.Node:
    """Return the root node of a YAML 1.2 document, whose nodes know the line they begin in.

    Raises:
      YAMLError: the text is not YAML, or more than plain data.
      ConfigError: it is empty.
    """
    return _read(text, "core", ())[0]


class YAMLError(ConfigError):
    """A mistake at some place of a YAML text.

    Attributes:
      line: where it is, counted from 0.
      column: where in the line, counted from 0.
      problem: the message without the line.
    """

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"line {line + 1}: {problem}")
        self.problem, self.line, self.column = problem, line, column


def _read(text: str, schema: str, foreign: tuple[str, ...]) -> tuple[yaml.Node, Any]:
    """Return the root node of a document, and what it stands for."""
    try:
        loader = (_CoreLoader if schema == "core" else _OmegaConfLoader)(text)
        loader.foreign = foreign
        node = loader.get_single_node()
        if node is None:
            raise ConfigError("it is empty.")
        return node, loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        context = f"{error.context}, " if error.context else ""
        problem, mark = f"{context}{error.problem}.", error.problem_mark
        if mark is None:
            raise ConfigError(problem) from None
        raise YAMLError(problem, mark.line, mark.column) from None
    except (yaml.YAMLError, UnicodeError) as error:  # a lone surrogate is a UnicodeError
        raise ConfigError(f"it is not YAML: {' '.join(str(error).split()):.200}.") from None
    except RecursionError:
        raise ConfigError("it is nested too deeply.") from None


class _Loader(_BASE):
    """PyYAML's safe loader, restricted to what JSON can hold."""

    foreign: tuple[str, ...] = ()
    has_aliases = True
    max_depth = 10_000  # libyaml takes time quadratic in the depth, and the stack of the process

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[yaml.Node] = set()
        self._depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Count levels; the parser calls this before each node."""
        self._depth += 1
        if self._depth > self.max_depth:
            raise _error(current_node, f"nesting deeper than {self.max_depth:,} levels")

    def ascend_resolver(self) -> None:
        """Undo `descend_resolver`."""
        self._depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node; the same object for every alias of it."""
        if not self.has_aliases and node in self.constructed_objects:
            raise _error(node, "an alias of this value has no meaning in a config file")
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # an int of thousands of digits
            raise _error(node, str(error).removesuffix(".")) from None

    def flatten_mapping(self, node: Any) -> None:
        """Refuse a key that occurs twice, before `<<` adds the keys of other mappings."""
        if node not in self._checked:
            self._checked.add(node)
            known: set[Any] = set()
            for key_node, _ in node.value:
                if key_node.tag == f"{_TAG}merge" and self.has_aliases:
                    continue
                key = self.checked_key(key_node)
                if key in known:
                    raise _error(key_node, f"the key {key!r:.60} occurs twice: remove one of them")
                known.add(key)
        super().flatten_mapping(node)

    def checked_key(self, node: Any) -> Any:
        """Return a key, which is a text or number."""
        if not isinstance(node, yaml.ScalarNode):
            raise _error(node, "a key must be a string or number, not a list or mapping")
        return self.construct_object(node)

    def construct_other(self, node: Any) -> Any:
        """Return a `Foreign`."""
        if node.tag not in self.foreign or not isinstance(node, yaml.ScalarNode):
            raise _error(node, f"the tag {node.tag!r:.60} is refused: a config is plain data")
        return Foreign(node.tag, node.value)


_Loader.yaml_constructors = {
    f"{_TAG}{kind}": _BASE.yaml_constructors[_TAG + kind] for kind in _DATA
}
_Loader.add_constructor(None, _Loader.construct_other)


class _OmegaConfLoader(_Loader):
    """YAML 1.1, in which 1e-3 is a number, and 2001-01-01 a text."""

    yaml_implicit_resolvers: ClassVar = {
        letter: [pair for pair in known if pair[0].removeprefix(_TAG) in (*_DATA[:3], "merge")]
        for letter, known in _BASE.yaml_implicit_resolvers.items()
    }


_OmegaConfLoader.add_implicit_resolver(f"{_TAG}float", _OMEGACONF_FLOAT, list("-+0123456789."))


class _CoreLoader(_Loader):
    """YAML 1.2."""

    has_aliases = False
    max_depth = 200
    yaml_implicit_resolvers: ClassVar = {
        None: [(f"{_TAG}{kind}", re.compile(rf"(?:{form})\Z")) for kind, form in _CORE.items()]
    }

    def checked_key(self, node: Any) -> Any:
        """Return a key as it is written: 1 is the text "1", as in JSON."""
        if isinstance(node, yaml.MappingNode):
            raise _error(
                node,
                "a key must be a string, and not a mapping, as doubled braces make: a formula has "
                'quotes and single braces, such as "{num_steps}"',
            )
        if not isinstance(node, yaml.ScalarNode) or node.tag == f"{_TAG}merge":
            raise _error(node, "a key must be a string; << has no meaning in a config file")
        node.tag = f"{_TAG}str"
        return node.value


_CoreLoader.add_constructor(f"{_TAG}int", lambda _, node: int(node.value))
_CoreLoader.add_constructor(f"{_TAG}float", lambda _, node: read_float(node.value))


def _error(node: Any, problem: str) -> yaml.MarkedYAMLError:
    mark = None if node is None else node.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _is_inline(value: Any, depth: int) -> bool:
    """Whether to write a container on one line: all but mappings and lists of containers."""
    is_list = isinstance(value, list)
    is_short = not any(isinstance(item, dict | list) for item in value) if is_list else not value
    return is_short or depth >= _MAX_BLOCKS


def write_yaml(root: Any) -> str:
    """Return a YAML text for a tree of mappings, lists and plain values, which holds no loops."""
    events = [yaml.StreamStartEvent(), yaml.DocumentStartEvent()]
    events += [*_events(root), yaml.DocumentEndEvent(), yaml.StreamEndEvent()]
    return yaml.emit(events, Dumper=yaml.SafeDumper, allow_unicode=True, width=2**31 - 1)


def _events(root: Any) -> Iterator[yaml.Event]:
    todo: list[tuple[Any, int]] = [(root, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, yaml.Event):
            yield value
        elif isinstance(value, dict | list):
            if isinstance(value, dict):
                start, end = yaml.MappingStartEvent, yaml.MappingEndEvent()
                items = [item for pair in value.items() for item in pair]
            else:
                start, end, items = yaml.SequenceStartEvent, yaml.SequenceEndEvent(), value
            yield start(None, None, True, flow_style=_is_inline(value, depth))
            todo += [(end, 0), *((item, depth + 1) for item in reversed(items))]
        else:
            yield _scalar(value)


_RESOLVER: Any = _OmegaConfLoader("")
_REPRESENTER: Any = yaml.representer.SafeRepresenter()


def _scalar(value: Any) -> yaml.ScalarEvent:
    node = _REPRESENTER.represent_data(value)
    is_plain = _RESOLVER.resolve(yaml.ScalarNode, node.value, (True, False)) == node.tag
    style = None if is_plain and node.value.isprintable() else '"'
    return yaml.ScalarEvent(None, None, (is_plain, True), node.value, style=style)
