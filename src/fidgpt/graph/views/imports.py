"""The names by which Python code refers to classes and functions, and the imports for them."""

import builtins
import keyword
import re
import sys
from typing import Any

from fidgpt.graph.storage.names import name_of

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
