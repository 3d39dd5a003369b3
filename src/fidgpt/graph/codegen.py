"""The graph as a Python program."""

import builtins
import dataclasses
import enum
import keyword
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph import fiddle, walk
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage import bound, codec

_WIDTH = 100
_DEEPEST = 12  # brackets inside of brackets; what lies deeper is a variable


@dataclass(frozen=True, slots=True)
class _Code:
    """An expression: plain text, or items between two brackets.

    Attributes:
      text: the whole on one line.
      head: the text before the items, with the opening bracket.
      items: the items, each with the text before it, such as `name=`.
      tail: the closing bracket.
    """

    text: str
    head: str = ""
    items: tuple[tuple[str, "_Code"], ...] = ()
    tail: str = ""

    def lines(self, *, before: str, after: str = "", indent: int = 1) -> Iterator[str]:
        """Yield the expression on one line if it fits, else with a line for each item."""
        margin = "    " * indent
        if not self.items or len(margin + before + self.text + after) <= _WIDTH:
            yield margin + before + self.text + after
            return
        yield margin + before + self.head
        for name, item in self.items:
            yield from item.lines(before=name, after=",", indent=indent + 1)
        yield margin + self.tail + after


def _bracketed(head: str, items: Iterable[tuple[str, _Code]], tail: str) -> _Code:
    items = tuple(items)
    inside = ", ".join(before + item.text for before, item in items)
    comma = "," if head == "(" and len(items) == 1 else ""  # of a tuple
    return _Code(f"{head}{inside}{comma}{tail}", head, items, tail)


def _quoted(text: str) -> _Code:
    """Return a text as a literal, in double quotes unless it holds some."""
    literal = repr(text)
    return _Code(f'"{literal[1:-1]}"' if '"' not in text and literal[0] == "'" else literal)


class _Imports:
    """Collects what a module imports, and the names that it takes."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {"": {"fiddle as fdl"}}  # by the package
        self._taken: dict[str, str] = dict.fromkeys([*keyword.kwlist, *dir(builtins), "fdl"], "")

    def name(self, thing: Any) -> str:
        """Return how code refers to a class or function.

        Raises:
          ConfigError: it has no name by which it can be imported.
        """
        module, _, qualname = codec.name_of(thing).partition(":")
        module = shortest(module, qualname.partition(".")[0])
        return qualname if module == "builtins" else f"{self.module(module)}.{qualname}"

    def module(self, module: str) -> str:
        """Return how code refers to a module: by its last name, or in full if that is taken."""
        package, _, name = module.rpartition(".")
        if self._taken.setdefault(name, module) != module:
            package, name = "", module
            self._taken.setdefault(module.partition(".")[0], "")
        self._names.setdefault(package, set()).add(name)
        return name

    def variable(self, path: str) -> str:
        """Return a free name for what lies at a path: its last step or two, or with a number."""
        steps = [_as_name(step) for step in path.split(".")]
        names = [steps[-1], "_".join(steps[-2:])]
        number = 2
        while names[0] in self._taken:
            names = [*names[1:], f"{steps[-1]}_no{number}"]
            number += 1
        self._taken[names[0]] = path
        return names[0]

    def lines(self) -> list[str]:
        """Return the imports in the order of isort: the standard library, others, fidgpt."""
        found = [f"import {name}" for name in sorted(self._names.pop(""), key=str.lower)]
        for package, names in sorted(self._names.items(), key=lambda item: item[0].lower()):
            found.append(f"from {package} import {', '.join(sorted(names, key=str.lower))}")
        sections: list[list[str]] = [[], [], []]
        for line in found:
            top = re.split(r"\W", line)[1]
            sections[0 if top in sys.stdlib_module_names else 1 + (top == "fidgpt")].append(line)
        return [line for section in sections if section for line in (*section, "")][:-1]


def _as_name(step: str) -> str:
    """Return a step of a path as a name: `blocks_0` for `blocks[0]`."""
    words = re.findall(r"\w+", step)
    name = "_".join([*words[:1], *words[-1:]] if len(words) > 1 else words) or "part"
    return f"part_{name}" if name[0].isdigit() else name


def shortest(module: str, head: str) -> str:
    """Return the outermost package that has the very object that a module calls `head`."""
    thing = vars(sys.modules.get(module, builtins)).get(head)
    steps = module.split(".")
    for end in range(1, len(steps)):
        outer = ".".join(steps[:end])
        if vars(sys.modules.get(outer, builtins)).get(head) is thing:
            return outer
    return module


def python(root: fdl.Buildable, *, name: str = "config") -> str:
    """Return a module with a function `name` that returns the graph, unbound as it is.

    A node that several places hold is a variable.

    Raises:
      ConfigError: something in the graph has no name or form in code.
    """
    return "\n".join(_Writer(root, name).module(root)) + "\n"


class _Writer:
    """Turns nodes into expressions, children before parents, so that depth is no limit."""

    def __init__(self, root: Any, name: str) -> None:
        self._name = name
        self._imports = _Imports()
        self._imports.variable(name)
        self._graph = bound.BoundGraph(root, bound=False)
        self._code: dict[int, _Code] = {}
        self._height: dict[int, int] = {}

    def module(self, root: fdl.Buildable) -> Iterator[str]:
        body: list[str] = []
        for node in self._graph.nodes:
            value = node.value
            if not self._graph.has_parts(value):
                continue
            with at(node.path or "the root"):
                code = self._expression(value)
            if value is root:
                body += code.lines(before="return ")
            elif self._is_variable(node):
                variable = self._imports.variable(node.path)
                body += code.lines(before=f"{variable} = ")
                code = _Code(variable)
                self._height[id(value)] = 0
            self._code[id(value)] = code
        called = fdl.get_callable(root)
        result = f"[{self._imports.name(called)}]" if isinstance(called, type) else ""
        result = f"{self._kind(root)}{result}"
        yield f'"""The graph of a {walk.title(root)}, written by fidgpt."""'
        yield from ("", *self._imports.lines(), "", "")
        yield f"def {self._name}() -> {result}:"
        yield from (f'    """Returns the {walk.title(root)}."""', *body)

    def _is_variable(self, node: walk.Node) -> bool:
        return len(node.parents) > 1 or self._height[id(node.value)] >= _DEEPEST

    def _expression(self, value: Any) -> _Code:
        inside = [self._height.get(id(child), 0) for _, child in walk.children(value)]
        self._height[id(value)] = 1 + max(inside, default=0)
        if isinstance(value, TaggedValueCls):
            return self._argument(value, "value", fiddle.set_arguments(value))
        return self._call(value) if isinstance(value, fdl.Buildable) else self._leaf(value)

    def _call(self, part: fdl.Buildable) -> _Code:
        known = fiddle.set_arguments(part)
        items = [("", _Code(self._imports.name(fdl.get_callable(part))))]
        odd: list[tuple[str, _Code]] = []
        for key in fiddle.all_arguments(part):
            if key not in known and not fdl.get_tags(part, key):
                continue
            argument = self._argument(part, key, known)
            if _is_positional(part, key):
                if isinstance(key, int) and len(items) != key + 1:
                    raise ConfigError(f"Python cannot pass argument {key} without those before it.")
                items.append(("", argument))
            elif str(key).isidentifier() and not keyword.iskeyword(str(key)):
                items.append((f"{key}=", argument))
            else:
                odd.append((f"{_quoted(str(key)).text}: ", argument))
        if odd:
            items.append(("**", _bracketed("{", odd, "}")))
        return _bracketed(f"{self._kind(part)}(", items, ")")

    def _kind(self, part: fdl.Buildable) -> str:
        kind = type(part)
        return f"fdl.{kind.__name__}" if fiddle.kind_of(part) is kind else self._imports.name(kind)

    def _argument(
        self, part: fdl.Buildable, key: fiddle.Key, known: Mapping[fiddle.Key, Any]
    ) -> _Code:
        """Return a value, wrapped in the tags of its parameter."""
        value = [self._leaf(known[key])] if key in known else []
        names = [self._imports.name(tag) for tag in sorted(fdl.get_tags(part, key), key=str)]
        if not names:
            return value[0]
        if len(names) == 1:
            return _bracketed(f"{names[0]}.new(", [("", code) for code in value], ")")
        listed = _bracketed("[", [("", _Code(name)) for name in names], "]")
        items = [("", listed), *(("default=", code) for code in value)]
        return _bracketed(f"{self._imports.name(TaggedValue)}(", items, ")")

    def _leaf(self, value: Any) -> _Code:
        if id(value) in self._code and walk.is_node(value):
            return self._code[id(value)]
        kind = type(value)
        if kind is str:
            return _quoted(value)
        if value is None or kind in (bool, int) or (kind is float and math.isfinite(value)):
            return _Code(repr(value))
        if kind is float:
            return _Code(f'float("{value}")')
        if kind is dict:
            items = [(f"{self._leaf(k).text}: ", self._leaf(item)) for k, item in value.items()]
            return _bracketed("{", items, "}")
        is_named = isinstance(value, tuple) and hasattr(value, "_fields")
        if kind in (list, tuple) or is_named:
            head = f"{self._imports.name(kind)}(" if is_named else "[" if kind is list else "("
            tail = "]" if kind is list else ")"
            return _bracketed(head, [("", self._leaf(item)) for item in value], tail)
        return self._other(value)

    def _other(self, value: Any) -> _Code:
        kind = type(value)
        if isinstance(value, enum.Enum):
            names = [name for name in codec.member_name(value).split("|") if name]
            known = [f"{self._imports.name(kind)}.{name}" for name in names]
            return _Code(" | ".join(known) or f"{self._imports.name(kind)}(0)")
        if isinstance(value, pathlib.PurePath):
            public = pathlib.Path if isinstance(value, pathlib.Path) else kind
            return _Code(f"{self._imports.name(public)}({_quoted(str(value)).text})")
        if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
            name = str(value).removeprefix("torch.")
            name = f'device("{name}")' if kind.__name__ == "device" else name
            return _Code(f"{self._imports.module('torch')}.{name}")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value) if field.init]
            items = [(f"{name}=", self._leaf(getattr(value, name))) for name in fields]
            return _bracketed(f"{self._imports.name(kind)}(", items, ")")
        if callable(value):
            return _Code(self._imports.name(value))
        raise ConfigError(f"{value!r:.60} of type {kind.__name__} has no form in Python code.")


def _is_positional(part: fdl.Buildable, key: fiddle.Key) -> bool:
    """Return whether an argument is passed by position: unnamed ones, and those before them."""
    parameter = fiddle.parameter_of(part, key)
    if isinstance(key, int) or parameter is None:
        return True
    start = fiddle.first_variadic(part)
    has_more = start is not None and any(
        isinstance(one, int) and one >= start for one in fiddle.all_arguments(part)
    )
    return has_more and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
