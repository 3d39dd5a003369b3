"""Stubs for editors: `python -m fidgpt.stubs PACKAGE`, and with `--check` whether they are current.

The stub of a module, a `.pyi` file beside it, gives each of its config functions the type of the
graph that it returns: `cfg.model.` then completes, and `cfg.model.hidden_dm = 3` is an error in any
editor that knows Python's types. For each constructor in these graphs there is a class with its
parameters; the types of the components that a graph holds are its type arguments.
"""

import ast
import collections.abc
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.compose.catalogue import graphs_of, imported, module_with_configs
from fidgpt.errors import run_command
from fidgpt.graph import Config, ConfigError, fiddle, hints, walk

OWN = "fidgpt.configs"
_BEGIN = Path(__file__).with_name("stubs_begin.txt")  # of each stub
_STRICT = """\
    def __getattr__(self, name: NoSuchParameter) -> NoReturn: ...  # type: ignore
    def __setattr__(self, name: NoSuchParameter, value: typing.Any) -> None: ...  # type: ignore"""
_ANY = "typing.Any"
_READ = {collections.abc.Sequence: list, collections.abc.Mapping: dict}
_SET = {kind: type_name for type_name, kind in _READ.items()}


class _Type(NamedTuple):
    """A type as a stub writes it: a name, and the types between its brackets."""

    name: str
    arguments: tuple["_Type", ...] = ()

    def __str__(self) -> str:
        inside = f"[{', '.join(map(str, self.arguments))}]" if self.arguments else ""
        return self.name + inside


class _Nodes:
    """The classes of the components in some graphs."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._names: dict[tuple[type, Any], str] = {}
        self._parameters: dict[str, fdl.Buildable] = {}
        self._holders: dict[str, dict[str, None]] = {}  # parameters that hold a component somewhere

    def see(self, root: Any) -> None:
        """Add the components of a graph."""
        for part in _parts(root):
            name = self._name(part)
            held = self._holders.setdefault(name, {})
            for key, value in fiddle.set_arguments(part).items():
                if isinstance(key, str) and _parts_in(value):
                    held[key] = None

    def _name(self, part: fdl.Buildable) -> str:
        function = fdl.get_callable(part)
        key = (type(part), function)
        if key not in self._names:
            name = f"{function.__name__}{fiddle.kind_of(part).__name__}"
            while name in self._parameters:
                name += "_"
            self._names[key] = name
            self._parameters[name] = part
        return self._names[key]

    def type_of(self, value: Any, hint: Any = Any) -> _Type:
        """Return what a value of a graph is read as."""
        if isinstance(value, TaggedValueCls):
            return self.type_of(fiddle.set_arguments(value).get("value"), hint)
        if isinstance(value, fdl.Buildable):
            name, known = self._name(value), fiddle.set_arguments(value)
            hints_by_name = hints.hints_of(fdl.get_callable(value))
            held = self._holders[name]
            types = (self.type_of(known.get(k), hints_by_name.get(k, Any)) for k in held)
            return _Type(name, tuple(types))
        if isinstance(value, list) and _parts_in(value):
            return _Type("Items", (_merged(self.type_of(item) for item in value),))
        if isinstance(value, dict) and _parts_in(value):
            return _Type("Entries", (_merged(self.type_of(item) for item in value.values()),))
        return self._read_as(hint)

    def _read_as(self, hint: Any) -> _Type:
        """Return what a parameter without a component is read as: None is left out."""
        members = [member for member in hints.members_of(hint) if member is not type(None)]
        if not members or not all(map(hints.can_be_typed, members)):
            return _Type(_ANY)
        return _Type(" | ".join(dict.fromkeys(self.written(t, reads=True) for t in members)))

    def written(self, hint: Any, *, reads: bool = False) -> str:
        """Return a type as a stub writes it.

        Args:
          hint: the annotation.
          reads: whether for a value that is read: what may be set is wider, as components may
            stand for the items of a container.
        """
        members = [*hints.members_of(hint)]
        if len(members) > 1:
            return " | ".join(dict.fromkeys(self.written(t, reads=reads) for t in members))
        hint = members[0]
        origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        origin = getattr(origin, "array_type", origin)  # of a tensor whose shape is annotated
        if hint is None or hint is type(None):
            return "None"
        if origin is typing.Literal:
            return f"typing.Literal[{', '.join(map(self._literal, args))}]"
        if hints.is_unknown(hint) or not inspect.isclass(origin) or typing.is_typeddict(origin):
            return _ANY
        if origin is collections.abc.Callable:
            return f"{self._class(origin)}[..., {_ANY}]"
        if not args or origin.__module__ not in ("builtins", "collections.abc"):
            return self._class(origin)
        items = ["..." if arg is ... else self.written(arg, reads=reads) for arg in args]
        if not reads:
            items = [t if t == "..." else f"{t} | fiddle.Buildable[{_ANY}]" for t in items]
        if issubclass(origin, collections.abc.Mapping):  # whose keys may not be wider
            items[0] = _ANY
        # A Sequence takes a list of anything narrower, which a list does not.
        kinds = _READ if reads else _SET
        return f"{self._class(kinds.get(origin, origin))}[{', '.join(items)}]"

    def _literal(self, value: Any) -> str:
        return f"{self._class(type(value))}.{value.name}" if hasattr(value, "name") else repr(value)

    def _class(self, kind: type) -> str:
        if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
            return _ANY
        self.modules.add(kind.__module__)
        return f"{kind.__module__}.{kind.__qualname__}"

    def lines(self) -> Iterator[str]:
        """Yield the classes."""
        most = max((len(held) for held in self._holders.values()), default=0)
        for i in range(most):
            yield f'_{i} = TypeVar("_{i}")'
        for name in sorted(self._parameters):
            yield from self._class_lines(name)

    def _class_lines(self, name: str) -> Iterator[str]:
        part = self._parameters[name]
        function, held = fdl.get_callable(part), list(self._holders[name])
        own = hints.hints_of(function)
        made = self.written(own.get("return", Any))
        kind = (
            "fidgpt.graph.Config" if isinstance(part, Config) else f"fiddle.{type(part).__name__}"
        )
        arguments = ", ".join(f"_{i}" for i in range(len(held)))
        generic = f", Generic[{arguments}]" if held else ""
        yield f"\nclass {name}({kind}[{made}]{generic}):"
        parameters = fiddle.parameters_of(part)
        if not any(parameter.kind in fiddle.VARIADIC for parameter in parameters.values()):
            yield _STRICT
        for key, parameter in parameters.items():
            if parameter.kind in (parameter.POSITIONAL_ONLY, *fiddle.VARIADIC):
                continue
            hint = own.get(key, Any)
            read = f"_{held.index(key)}" if key in held else str(self._read_as(hint))
            yield f"    {key}: Value[{read}, {self.written(hint)}]"
        yield "    ..."


def _parts(root: Any) -> Iterator[fdl.Buildable]:
    for node in walk.parts(root):
        if not isinstance(node.value, TaggedValueCls):
            yield node.value


def _parts_in(value: Any) -> bool:
    """Whether a value is a component, or a list or dict with some in it."""
    if isinstance(value, TaggedValueCls):
        return _parts_in(fiddle.set_arguments(value).get("value"))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(isinstance(item, fdl.Buildable) for item in value)
    return isinstance(value, fdl.Buildable)


def _merged(types: Iterable[_Type]) -> _Type:
    """Return a type that all others are: parts that differ between them are anything."""
    first, *others = types
    for other in others:
        if first.name != other.name or len(first.arguments) != len(other.arguments):
            return _Type(_ANY)
        pairs = zip(first.arguments, other.arguments, strict=True)
        first = _Type(first.name, tuple(map(_merged, pairs)))
    return first


def stub_of(name: str) -> str:
    """Return the stub of a module.

    Its functions without required arguments that are annotated to return a graph have the types of
    the graphs; everything else is as in the source.

    Raises:
      ConfigError: there is no such module, or it has no config function.
    """
    module = imported(name, "a stub")
    graphs = graphs_of(module)
    if not graphs:
        raise ConfigError(
            f"{name} has no config function: one that needs no arguments and is annotated to "
            "return a fdl.Config."
        )
    nodes = _Nodes()
    for _, root in graphs.values():
        nodes.see(root)
    aliases: dict[str, str] = {}
    types = {key: _short(nodes.type_of(root), aliases) for key, (_, root) in graphs.items()}
    body = ast.parse(inspect.getsource(module)).body
    defined = {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}
    lines = [line for statement in body for line in _statement(statement, types)]
    for key, (function, _) in graphs.items():
        if key not in defined:
            lines.append(f"def {key}({_parameters(function, nodes)}) -> {types[key]}: ...")
    classes = [*nodes.lines()]
    modules = [f"import {mod}" for mod in sorted({*nodes.modules, "fidgpt.graph"} - {"builtins"})]
    named = [f"{alias} = {text}" for text, alias in aliases.items()]
    whole = [_BEGIN.read_text(encoding="utf-8"), *modules, "", *classes, "", *named, "", *lines]
    return "\n".join(whole) + "\n"


def _short(kind: _Type, aliases: dict[str, str]) -> str:
    """Return the text of a type in which those with arguments have names of their own."""
    if not kind.arguments:
        return str(kind)
    text = f"{kind.name}[{', '.join(_short(inner, aliases) for inner in kind.arguments)}]"
    number = sum(known.startswith(f"{kind.name}[") for known in aliases) + 1
    return aliases.setdefault(text, f"_{kind.name}{number}")


def _parameters(function: Callable[..., Any], nodes: _Nodes) -> str:
    own = hints.hints_of(function)
    return ", ".join(
        f"{key}: {nodes.written(own.get(key, Any))}{'' if arg.default is arg.empty else ' = ...'}"
        for key, arg in inspect.signature(function).parameters.items()
        if arg.kind not in fiddle.VARIADIC
    )


def _statement(statement: ast.stmt, types: dict[str, str]) -> Iterator[str]:
    """Yield a statement of the source as it stands in the stub."""
    if isinstance(statement, ast.FunctionDef) and statement.name in types:
        doc = ast.get_docstring(statement, clean=False)
        statement.body = [ast.Expr(ast.Constant(doc if doc else ...))]
        statement.returns = ast.parse(types[statement.name]).body[0].value  # type: ignore[attr-defined]
    if isinstance(statement, ast.ImportFrom):
        statement.names = [n for n in statement.names if (n.asname or n.name) not in types]
        if not statement.names:
            return
    yield ast.unparse(statement)


def main(arguments: list[str]) -> int:
    """Write stubs, or compare them with those that are there."""
    checks = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    stale: list[Path] = []
    for name in map(module_with_configs, names or [OWN]):
        text = stub_of(name)
        path = Path(imported(name, "a stub").__file__ or "").resolve().with_suffix(".pyi")
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
        if not checks:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if not checks:
        return 0
    for path in stale:
        print(f"{path} is missing or not current.", file=sys.stderr)
    if stale:
        print(f"Write it with: python -m fidgpt.stubs {' '.join(names)}".rstrip(), file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    run_command(main)
