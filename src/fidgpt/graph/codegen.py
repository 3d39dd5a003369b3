"""The graph as a Python program."""

import builtins
import itertools
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.errors import ConfigError, at
from fidgpt.graph import bound, codec, fiddle, walk

_WIDTH = 100


class _Code(NamedTuple):
    """An expression: plain text, or items between two brackets, each with the text before it."""

    head: str
    items: Sequence[tuple[str, "_Code"]] = ()
    tail: str = ""

    @property
    def text(self) -> str:
        """The whole on one line."""
        inside = ", ".join(before + item.text for before, item in self.items)
        comma = "," if self.head == "(" and len(self.items) == 1 else ""  # of a tuple
        return f"{self.head}{inside}{comma}{self.tail}"

    def lines(self, *, before: str, after: str = "", indent: int = 1) -> Iterator[str]:
        """Yield the expression on one line if it fits, else with a line for each item."""
        margin = "    " * indent
        whole = margin + before + self.text + after
        if len(whole) <= _WIDTH or not self.items:
            yield whole
            return
        yield margin + before + self.head
        for name, item in self.items:
            yield from item.lines(before=name, after=",", indent=indent + 1)
        yield margin + self.tail + after


def _quoted(text: str) -> _Code:
    """Return a text as a literal, in double quotes unless it holds more of these than of single."""
    quote, other = ("'", '"') if text.count('"') > text.count("'") else ('"', "'")
    inside = f"\\{quote}".join(repr(other + part)[2:-1] for part in text.split(quote))
    return _Code(f"{quote}{inside}{quote}")


class _Imports:
    """Collects what a module imports, and the names that it takes."""

    def __init__(self) -> None:
        self._lines = {"import fiddle as fdl"}
        self._taken: dict[str, str] = dict.fromkeys([*keyword.kwlist, *dir(builtins), "fdl"], "")

    def name(self, thing: Any) -> str:
        """Return how code refers to a class or function, or to one that a file names.

        Raises:
          ConfigError: it has no name by which it can be imported.
        """
        name = thing if isinstance(thing, str) else codec.name_of(thing)
        module, _, qualname = name.partition(":")
        module = codec.shortest(module, qualname.partition(".")[0])
        return qualname if module == "builtins" else f"{self.module(module)}.{qualname}"

    def module(self, module: str) -> str:
        """Return how code refers to a module: by its last name, or in full if that is taken."""
        package, _, name = module.rpartition(".")
        if self._taken.setdefault(name, module) != module:
            package, name = "", module
            self._taken.setdefault(module.partition(".")[0], "")
        self._lines.add(f"from {package} import {name}" if package else f"import {name}")
        return name

    def variable(self, path: str) -> str:
        """Return a free name for what lies at a path: its last step, maybe with a number."""
        words = re.findall(r"\w+", path.rpartition(".")[2]) or ["part"]
        name = "_".join(dict.fromkeys([words[0], words[-1]]))
        name = f"part_{name}" if name[0].isdigit() else name
        names = itertools.chain([name], (f"{name}_no{number}" for number in itertools.count(2)))
        free = next(name for name in names if name not in self._taken)
        self._taken[free] = path
        return free

    def lines(self) -> list[str]:
        """Return the imports of modules, then those from packages."""
        return sorted(self._lines, key=lambda line: (line.startswith("from"), line.lower()))


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
            elif len(node.parents) > 1:
                variable = self._imports.variable(node.path)
                body += code.lines(before=f"{variable} = ")
                code = _Code(variable)
            self._code[id(value)] = code
        called = fdl.get_callable(root)
        result = f"[{self._imports.name(called)}]" if isinstance(called, type) else ""
        result = f"{self._kind(root)}{result}"
        yield f'"""The graph of a {walk.title(root)}, written by fidgpt."""'
        yield from ("", *self._imports.lines(), "", "")
        yield f"def {self._name}() -> {result}:"
        yield from (f'    """Returns the {walk.title(root)}."""', *body)

    def _expression(self, value: Any) -> _Code:
        if isinstance(value, TaggedValueCls):
            return self._argument(value, "value", fiddle.set_arguments(value))
        return self._call(value) if isinstance(value, fdl.Buildable) else self._value(value)

    def _call(self, part: fdl.Buildable) -> _Code:
        known = fiddle.set_arguments(part)
        items = [("", _Code(self._imports.name(fdl.get_callable(part))))]
        for key in fiddle.all_arguments(part):
            if key not in known and not fdl.get_tags(part, key):
                continue
            argument = self._argument(part, key, known)
            if _is_positional(part, key):
                if isinstance(key, int) and len(items) != key + 1:
                    raise ConfigError(f"Python cannot pass argument {key} without those before it.")
                items.append(("", argument))
            else:
                items.append((f"{key}=", argument))
        return _Code(f"{self._kind(part)}(", items, ")")

    def _kind(self, part: fdl.Buildable) -> str:
        kind = type(part)
        return f"fdl.{kind.__name__}" if fiddle.kind_of(part) is kind else self._imports.name(kind)

    def _argument(
        self, part: fdl.Buildable, key: fiddle.Key, known: Mapping[fiddle.Key, Any]
    ) -> _Code:
        """Return a value, wrapped in the tags of its parameter."""
        value = [self._value(known[key])] if key in known else []
        names = [self._imports.name(tag) for tag in sorted(fdl.get_tags(part, key), key=str)]
        if not names:
            return value[0]
        if len(names) == 1:
            return _Code(f"{names[0]}.new(", [("", code) for code in value], ")")
        listed = _Code("[", [("", _Code(name)) for name in names], "]")
        items = [("", listed), *(("default=", code) for code in value)]
        return _Code(f"{self._imports.name(TaggedValue)}(", items, ")")

    def _value(self, value: Any) -> _Code:
        if walk.is_node(value) and id(value) in self._code:
            return self._code[id(value)]
        if fiddle.kind_of(value) in (list, tuple, dict):
            return self._written(codec.encode_items(value, self._value))
        return self._written(codec.encode(value))

    def _written(self, written: Any) -> _Code:
        """Return code for the JSON of a value, in which items may be code already."""
        match written:
            case _Code():
                return written
            case str():
                return _quoted(written)
            case list(items) | {"tuple": items}:
                brackets = "[]" if isinstance(written, list) else "()"
                return _Code(
                    brackets[0], [("", code) for code in map(self._written, items)], brackets[1]
                )
            case {"dict": items}:
                return self._written({"items": items.items()})
            case {"items": pairs}:
                codes = [(self._written(key).text, self._written(item)) for key, item in pairs]
                return _Code("{", [(f"{key}: ", code) for key, code in codes], "}")
            case {"object": [name, fields]}:
                items = [(f"{key}=", self._written(field)) for key, field in fields.items()]
                return _Code(f"{self._imports.name(name)}(", items, ")")
            case {"float": text}:
                return _Code(f'float("{text}")')
            case {"path": text}:
                return _Code(f"{self._imports.name('pathlib:Path')}({_quoted(text).text})")
            case {"name": name}:
                return _Code(self._imports.name(name))
            case {"enum": [name, member]}:
                return _Code(f"{self._imports.name(name)}.{member}")
            case {"dtype": text}:
                return _Code(f"{self._imports.module('torch')}.{text.removeprefix('torch.')}")
            case {"device": text}:
                return _Code(f'{self._imports.module("torch")}.device("{text}")')
        return _Code(repr(written))


def _is_positional(part: fdl.Buildable, key: fiddle.Key) -> bool:
    """Return whether an argument is passed by position: unnamed ones, and those before them."""
    parameter = fiddle.parameter_of(part, key)
    if isinstance(key, int) or parameter is None:
        return True
    start = fiddle.first_variadic(part)
    has_more = start is not None and any(
        isinstance(key, int) and key >= start for key in fiddle.all_arguments(part)
    )
    return has_more and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
