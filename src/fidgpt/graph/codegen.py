"""The graph as a Python program."""

import builtins
import dataclasses
import enum
import keyword
import math
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import Key, all_arguments, first_variadic, parameter_of, set_arguments
from fidgpt.graph.outlines import Code, bracketed, lines, quoted
from fidgpt.graph.storage.codec import member_name, name_of
from fidgpt.graph.walk import Node, children, is_node, nodes, title

_WIDTH = 100
_OWN = "fidgpt"


class Imports:
    """Collects what a file of code imports."""

    def __init__(self) -> None:
        self._members: dict[str, set[str]] = {}  # by module
        self._numbers: dict[str, int] = {}  # by the name that they make free
        self._modules = {"fiddle as fdl"}
        self._taken: dict[str, Any] = dict.fromkeys([*keyword.kwlist, *dir(builtins), "fdl"])

    def name(self, thing: Any) -> str:
        """How code refers to a class or function from now on.

        Raises:
          ConfigError: it has no name by which it can be imported.
        """
        module, _, qualname = name_of(thing).partition(":")
        head = qualname.partition(".")[0]
        module = shortest(module, head)
        if module == "builtins":
            return qualname
        if self._taken.setdefault(head, module) != module:
            return f"{self.module(module)}.{qualname}"
        self._members.setdefault(module, set()).add(head)
        return qualname

    def module(self, module: str) -> str:
        """Imports a whole module, and returns how code refers to it."""
        self._modules.add(module)
        self._taken.setdefault(module.partition(".")[0])
        return module

    def variable(self, path: str) -> str:
        """A free name for what lies at a path: of its last step, its last two, or with a number."""
        steps = [_as_name(step) for step in path.split(".")]
        for name in (steps[-1], "_".join(steps[-2:])):
            if name not in self._taken:
                self._taken[name] = path
                return name
        name = steps[-1]
        while name in self._taken:
            self._numbers[steps[-1]] = number = self._numbers.get(steps[-1], 1) + 1
            name = f"{steps[-1]}_no{number}"
        self._taken[name] = path
        return name

    def lines(self) -> list[str]:
        """The imports in the order of isort: Python's own, others', ours."""
        sections: dict[int, list[str]] = {}
        for module in sorted(self._modules, key=_natural):
            sections.setdefault(_section(module), []).append(f"import {module}")
        for module in sorted(self._members, key=_natural):
            members = sorted(self._members[module], key=_member_order)
            sections.setdefault(_section(module), []).extend(_from_import(module, members))
        blocks = [sections[number] for number in sorted(sections)]
        return [line for block in blocks for line in (*block, "")][:-1]


def _as_name(step: str) -> str:
    """A step of a path as a name: `blocks_0` for `blocks[0]`."""
    words = re.findall(r"\w+", step)
    name = "_".join([*words[:1], *words[-1:]] if len(words) > 1 else words) or "part"
    return f"part_{name}" if name[0].isdigit() else name


def shortest(module: str, head: str) -> str:
    """The outermost package that offers the very thing that a module calls `head`."""
    thing = vars(sys.modules.get(module, builtins)).get(head)
    steps = module.split(".")
    for end in range(1, len(steps)):
        outer = ".".join(steps[:end])
        if vars(sys.modules.get(outer, builtins)).get(head) is thing:
            return outer
    return module


def _from_import(module: str, members: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(members)}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {member}," for member in members), ")"]


def _section(module: str) -> int:
    top = re.split(r"\W", module)[0]
    if top in sys.stdlib_module_names:
        return 0
    file = getattr(sys.modules.get(top), "__file__", None) or "site-packages"
    return 2 if top == _OWN or "site-packages" not in file else 1


def _member_order(name: str) -> tuple[int, Any]:
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, _natural(name)


def _natural(text: str) -> list[Any]:
    """Sorts numbers in a text by their size."""
    pieces = re.split(r"(\d+)", text.lower())
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]


_DEEPEST = 12  # brackets inside of brackets; what lies deeper is a variable


def python(root: fdl.Buildable, *, name: str = "config") -> str:
    """A module with a function `name` that returns the graph, unbound as it is.

    A part that several places hold is a variable.

    Raises:
      ConfigError: something in the graph has no name or form in code.
    """
    return "\n".join(_Writer(root, name).module(root)) + "\n"


class _Writer:
    """Turns nodes into expressions, children before parents, so that depth is no limit."""

    def __init__(self, root: Any, name: str) -> None:
        self._name = name
        self._imports = Imports()
        self._imports.variable(name)
        self._nodes = {id(node.value): node for node in nodes(root)}
        self._with_parts = self._find_holders()
        self._code: dict[int, Code] = {}
        self._height: dict[int, int] = {}

    def module(self, root: fdl.Buildable) -> Iterator[str]:
        body: list[str] = []
        for value in _children_first(root):
            if id(value) not in self._with_parts:
                continue
            node = self._nodes[id(value)]
            with at(node.path or "the root"):
                code = self._expression(value)
            if value is root:
                body += lines(code, before="return ", indent=1)
            elif self._is_variable(node):
                variable = self._imports.variable(node.path)
                body += lines(code, before=f"{variable} = ", indent=1)
                code = Code(variable)
                self._height[id(value)] = 0
            self._code[id(value)] = code
        result = f"fdl.{type(root).__name__}"
        if isinstance(fdl.get_callable(root), type):
            result += f"[{self._imports.name(fdl.get_callable(root))}]"
        yield f'"""The graph of a {title(root)}, written by fidgpt."""'
        yield from ("", *self._imports.lines(), "", "")
        yield f"def {self._name}() -> {result}:"
        yield from (f'    """Returns the {title(root)}."""', *body)

    def _find_holders(self) -> set[int]:
        """Parts, and the containers in which parts lie."""
        found: set[int] = set()
        for key, node in reversed(self._nodes.items()):
            held = any(id(child) in found for _, child in children(node.value))
            if isinstance(node.value, fdl.Buildable) or held:
                found.add(key)
        return found

    def _is_variable(self, node: Node) -> bool:
        return len(node.parents) > 1 or self._height[id(node.value)] >= _DEEPEST

    def _expression(self, value: Any) -> Code:
        inside = [self._height.get(id(child), 0) for _, child in children(value)]
        self._height[id(value)] = 1 + max(inside, default=0)
        if isinstance(value, TaggedValueCls):
            return self._argument(value, "value", set_arguments(value))
        if isinstance(value, fdl.Buildable):
            return self._call(value)
        return self._leaf(value)

    def _call(self, part: fdl.Buildable) -> Code:
        known = set_arguments(part)
        items = [("", Code(self._imports.name(fdl.get_callable(part))))]
        odd: list[tuple[str, Code]] = []
        for key in all_arguments(part):
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
                odd.append((f"{quoted(str(key)).text}: ", argument))
        if odd:
            items.append(("**", bracketed("{", odd, "}")))
        return bracketed(f"fdl.{type(part).__name__}(", items, ")")

    def _argument(self, part: fdl.Buildable, key: Key, known: Mapping[Key, Any]) -> Code:
        """A value, wrapped in the tags of its parameter."""
        value = [("", self._leaf(known[key]))] if key in known else []
        tags = sorted(fdl.get_tags(part, key), key=str)
        names = [self._imports.name(tag) for tag in tags]
        if not names:
            return value[0][1]
        if len(names) == 1:
            return bracketed(f"{names[0]}.new(", value, ")")
        listed = bracketed("[", [("", Code(name)) for name in names], "]")
        with_default = [("default=", code) for _, code in value]
        return bracketed(f"{self._imports.name(TaggedValue)}(", [("", listed), *with_default], ")")

    def _leaf(self, value: Any) -> Code:
        if id(value) in self._code and is_node(value):
            return self._code[id(value)]
        kind = type(value)
        if kind is str:
            return quoted(value)
        if value is None or kind in (bool, int):
            return Code(repr(value))
        if kind is float:
            return Code(repr(value) if math.isfinite(value) else f'float("{value}")')
        if kind in (list, tuple, dict) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return self._container(value)
        return self._other(value)

    def _container(self, value: Any) -> Code:
        if isinstance(value, dict):
            items = [(f"{self._leaf(k).text}: ", self._leaf(item)) for k, item in value.items()]
            return bracketed("{", items, "}")
        items = [("", self._leaf(item)) for item in value]
        if isinstance(value, list):
            return bracketed("[", items, "]")
        named = hasattr(value, "_fields")
        return bracketed(f"{self._imports.name(type(value))}(" if named else "(", items, ")")

    def _other(self, value: Any) -> Code:
        kind = type(value)
        if isinstance(value, enum.Enum):
            names = member_name(value).split("|")
            known = [f"{self._imports.name(kind)}.{name}" for name in names if name]
            return Code(" | ".join(known) or f"{self._imports.name(kind)}(0)")
        if isinstance(value, pathlib.PurePath):
            public = pathlib.Path if isinstance(value, pathlib.Path) else kind
            return Code(f"{self._imports.name(public)}({quoted(str(value)).text})")
        if kind.__module__ == "torch" and kind.__name__ == "dtype":
            self._imports.module("torch")
            return Code(str(value))
        if kind.__module__ == "torch" and kind.__name__ == "device":
            return Code(f'{self._imports.module("torch")}.device("{value}")')
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value) if field.init]
            items = [(f"{name}=", self._leaf(getattr(value, name))) for name in fields]
            return bracketed(f"{self._imports.name(kind)}(", items, ")")
        if callable(value):
            return Code(self._imports.name(value))
        raise ConfigError(f"{value!r:.60} of type {kind.__name__} has no form in Python code.")


def _is_positional(part: fdl.Buildable, key: Key) -> bool:
    """Whether an argument is passed by position: unnamed ones, and those before them."""
    parameter = parameter_of(part, key)
    if isinstance(key, int) or parameter is None:
        return True
    start = first_variadic(part)
    has_more = start is not None and any(
        isinstance(one, int) and one >= start for one in all_arguments(part)
    )
    return has_more and parameter.kind is parameter.POSITIONAL_OR_KEYWORD


def _children_first(root: Any) -> Iterator[Any]:
    """Every node once, as one reads, each after all that it holds."""
    met = {id(root)}
    stack = [(root, children(root))]
    while stack:
        value, left = stack[-1]
        child = next((one for _, one in left if is_node(one) and id(one) not in met), None)
        if child is None:
            stack.pop()
            yield value
        else:
            met.add(id(child))
            stack.append((child, children(child)))
