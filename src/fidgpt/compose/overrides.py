"""Overrides from a YAML file: the directives, and the axes of a sweep, that stand in it.

    include: common.yaml
    config: debug
    fiddler: [use_gqa(num_kv_heads=2)]
    num_steps: 200
    model:
      hidden_dim: 64
      blocks[0].mlp: {use: GELU, bias: true}
    sweep:
      optimizer.lr: [1e-3, 3e-3]

The tree of values becomes `set:` directives; a key that is a kind of directive gives directives of
that kind.
"""

import ast
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from fidgpt.compose.messages import Written, directive_error
from fidgpt.compose.sources import is_url, read_text
from fidgpt.errors import raise_all
from fidgpt.graph import ConfigError, expressions, paths
from fidgpt.graph.yaml import YAMLError, read_nodes

SWEEPS = ("zip", "repeat", "ablate")  # the flags of a sweep that its section may hold as they are
_NULL, _BOOL, _TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "str"))
_SIGNED = re.compile(r"(.*[\w\])'\"])\s*([*+-])")  # a key whose value changes the one that is there
_REFERENCE = re.compile(r"\{\s*@?[A-Za-z_][^{}]*\}|\w\(.*\)$|\$\{", re.DOTALL)
_CALL = re.compile(r"[\w.]+\(.*\)", re.DOTALL)
_NESTED = re.compile(r"[^\w.+*/ -]")  # what would end an item of a list


class Overrides(NamedTuple):
    """What a file holds.

    Attributes:
      directives: in order.
      axes: of its sweep, each with its flag.
    """

    directives: list[Written]
    axes: list[tuple[str, Written]]


def read_overrides(name: str, kinds: Mapping[str, Any]) -> Overrides:
    """Return the directives of a YAML file and of those that it includes, which come first.

    Args:
      name: the file.
      kinds: the registry of directives.

    Raises:
      ConfigErrors: a file cannot be read, or its content is wrong; each message shows the line.
    """
    reader = _Reader(kinds)
    reader.read(name.strip())
    raise_all(reader.errors)
    reader.directives.sort(key=lambda text: kinds[text.partition(":")[0]].role != "base")
    return Overrides(reader.directives, reader.axes)


class _Reader:
    """Reads a file and those that it includes, each once."""

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self._kinds = kinds
        self.directives: list[Written] = []
        self.axes: list[tuple[str, Written]] = []
        self.errors: list[str] = []
        self._done: set[str] = set()

    def read(self, name: str) -> None:
        path, text = read_text(name)
        key = path if is_url(path) else os.path.realpath(path)
        if key in self._done:
            return
        self._done.add(key)
        self._file, self._lines = path, text.splitlines()
        try:
            root = read_nodes(text)
        except YAMLError as error:
            self._fail(error.problem, (error.line, error.column))
        except ConfigError as error:
            self.errors.append(f"{path}: {error}")
        else:
            self._tree(root)

    def _fail(self, message: str, place: "yaml.Node | tuple[int, int]") -> None:
        line, column = place if isinstance(place, tuple) else _mark(place)
        if self._lines and line >= len(self._lines):  # the end
            line, column = len(self._lines) - 1, len(self._lines[-1])
        line = Written.in_file("", self._file, self._lines, line, column)
        self.errors.append(directive_error(0, line, message))

    def _written(self, text: str, key: yaml.Node) -> Written:
        return Written.in_file(text, self._file, self._lines, *_mark(key))

    def _add(self, text: str, key: yaml.Node) -> None:
        self.directives.append(self._written(text, key))

    def _tree(self, root: yaml.Node) -> None:
        """Read the top of a file."""
        if not isinstance(root, yaml.MappingNode):
            self._fail("a file of overrides is a mapping: write name: value.", root)
            return
        entries = _entries(root)
        if "format" in entries:  # as in what --print=yaml writes
            self._fail("this is a whole config, for config_file:, or a patch, for patch:", root)
            return
        file, lines = self._file, self._lines
        for node in _items(entries["include"][1]) if "include" in entries else ():
            try:
                self.read(_beside(file, _plain(node)))
            except ConfigError as error:
                self._file, self._lines = file, lines
                self._fail(str(error), node)
            self._file, self._lines = file, lines
        for name, (key, value) in entries.items():
            if name == "sweep":
                self._sweep(value)
            elif name in self._kinds:
                self._of_kind(name, key, value)
            elif name != "include":
                self._values(name, key, value)

    def _values(self, path: str, key: yaml.Node, value: yaml.Node) -> None:
        """Read what stands below a key of the tree of values."""
        signed = _SIGNED.fullmatch(path)
        if signed:
            self._add(f"set:{signed[1]}{signed[2]}={_text(value)}", key)
        elif isinstance(value, yaml.MappingNode) and value.value:
            for name, (inner, entry) in _entries(value).items():
                if name == "use":
                    self._add(f"use:{path}={_text(entry)}", inner)
                else:
                    self._values(_joined(path, name), inner, entry)
        elif isinstance(value, yaml.SequenceNode) and _has_mapping(value):
            for index, item in enumerate(value.value):
                if not isinstance(item, yaml.MappingNode) or item.value:  # {} keeps an item
                    self._values(f"{path}[{index}]", item, item)
        else:
            self._add(f"set:{path}={_text(value)}", key)

    def _of_kind(self, kind: str, key: yaml.Node, value: yaml.Node) -> None:
        """Read the directives of a kind whose name is a key."""
        if self._kinds[kind].role == "file":
            self._fail("one file takes in another by include: FILE.", key)
        elif isinstance(value, yaml.SequenceNode):
            for item in value.value:
                self._of_kind(kind, item, item)
        elif isinstance(value, yaml.MappingNode):
            for name, (inner, entry) in _entries(value).items():
                rest = f"={_text(entry)}" if "=" in self._kinds[kind].syntax else _call(entry)
                self._add(f"{kind}:{name}{rest}", inner)
        else:
            is_file = self._kinds[kind].completes == "file"
            text = _beside(self._file, value.value) if is_file else value.value
            self._add(f"{kind}:{text}", key)

    def _sweep(self, section: yaml.Node) -> None:
        """Read the axes of a sweep: as one types them, or a tree whose values are lists."""
        if not isinstance(section, yaml.MappingNode):
            self.axes += [("sweep", self._written(_plain(n), n)) for n in _items(section)]
            return
        for name, (key, value) in _entries(section).items():
            if name in SWEEPS:
                self.axes += [(name, self._written(_plain(n), n)) for n in _items(value)]
            elif name in self._kinds and "=" not in self._kinds[name].syntax:
                texts = (_text(item, nested=True) for item in _items(value))
                self.axes.append(("sweep", self._written(f"{name}:{','.join(texts)}", key)))
            elif name in self._kinds and isinstance(value, yaml.MappingNode):
                for path, (inner, entry) in _entries(value).items():
                    self._axis(name, path, inner, entry)
            else:
                self._axis("set", name, key, value)

    def _axis(self, kind: str, path: str, key: yaml.Node, value: yaml.Node) -> None:
        if isinstance(value, yaml.MappingNode):
            for name, (inner, entry) in _entries(value).items():
                self._axis(kind, _joined(path, name), inner, entry)
            return
        is_list = isinstance(value, yaml.SequenceNode)
        texts = [_text(item, nested=True) for item in value.value] if is_list else [_plain(value)]
        self.axes.append(("sweep", self._written(f"{kind}:{path}={','.join(texts)}", key)))


def _mark(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line, node.start_mark.column


def _entries(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return the entries of a mapping, by the text of their keys."""
    return {key.value: (key, value) for key, value in node.value}


def _items(node: yaml.Node) -> list[yaml.Node]:
    """Return the items of a list; one value is a list of it."""
    return node.value if isinstance(node, yaml.SequenceNode) else [node]


def _plain(node: yaml.Node) -> str:
    """Return the text of a value as one would type it."""
    return node.value if isinstance(node, yaml.ScalarNode) else _text(node)


def _has_mapping(node: yaml.Node) -> bool:
    """Return whether a mapping with entries is in a list, at any depth."""
    inside = node.value if isinstance(node, yaml.SequenceNode) else ()
    has_entries = (isinstance(item, yaml.MappingNode) and bool(item.value) for item in inside)
    return any(has_entries) or any(map(_has_mapping, inside))


def _call(node: yaml.Node) -> str:
    """Return the arguments of a call that are a mapping; none for null."""
    if not isinstance(node, yaml.MappingNode):
        return "" if node.tag == _NULL else f"({_text(node, nested=True)})"
    named = _entries(node).items()
    return f"({', '.join(f'{name}={_text(entry, nested=True)}' for name, (_, entry) in named)})"


def _text(node: yaml.Node, *, nested: bool = False) -> str:
    """Return a value as it is typed after a `=`, or in a list.

    A word without quotes is read by the annotation, as on the command line. In quotes it is a
    text, unless it is a formula or calls a component.
    """
    if isinstance(node, yaml.MappingNode):
        keys = {key: key if _is_literal(key) else repr(key) for key in _entries(node)}
        inside = (f"{keys[k]}: {_text(v, nested=True)}" for k, (_, v) in _entries(node).items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(_text(item, nested=True) for item in node.value)}]"
    if node.tag == _NULL:
        return "None"
    if node.tag == _BOOL:
        return node.value.capitalize()
    is_quoted = isinstance(node, yaml.ScalarNode) and bool(node.style)
    is_typed = node.tag != _TEXT or (not is_quoted and not (nested and _ends(node.value)))
    return node.value if is_typed or _refers(node.value, nested=nested) else repr(node.value)


def _refers(text: str, *, nested: bool) -> bool:
    """Whether a text in quotes is a formula or calls a component; in a list, as one item of it."""
    if not _REFERENCE.search(text) or not nested:
        return _REFERENCE.search(text) is not None
    is_call = _CALL.fullmatch(text.strip()) is not None
    try:
        return (is_call or not {*text} & {*"'\""}) and len(expressions.split_at_commas(text)) == 1
    except ConfigError:
        return False


def _ends(text: str) -> bool:
    """Whether a word in a list needs quotes there."""
    return _NESTED.search(text) is not None and not _is_literal(text)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _joined(path: str, key: str) -> str:
    """Return the path of a key below a path; a key that is no path is an entry of a dict."""
    if key.isdecimal():
        return f"{path}[{key}]"
    signed = _SIGNED.fullmatch(key)
    try:
        paths.parse_selector(signed[1] if signed else key)
    except ConfigError:
        return f"{path}[{key!r}]"
    return f"{path}{key}" if key[0] in "[:@" else f"{path}.{key}"


def _beside(file: str, name: str) -> str:
    """Return the path of a file that another one names, relative to its folder."""
    if is_url(name) or os.path.isabs(name) or name.startswith("~"):
        return name
    folder = file.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name
