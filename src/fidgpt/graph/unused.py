"""Arguments that are set and that no code reads."""

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.fiddle import VARIADIC, parameter_of, set_arguments
from fidgpt.graph.walk import join, parts, step_to, title

_NOT_SEARCHED = {"torch", "builtins", "typing", "abc", "collections"}  # none has a knob of ours
_ALL_AT_ONCE = {"locals", "vars", "eval", "exec"}  # read every argument, and name none


def unused_arguments(root: Any) -> list[str]:
    """Return a sentence for each argument that is set in the graph and that no code uses.

    An argument is read where its constructor does more with it than to keep it as an attribute,
    or where any function of the packages that the graph's constructors come from reads an
    attribute of that name. This is found out from bytecode, without running anything; what is not
    written in Python is taken to read all it is given.
    """
    found = parts(root)
    packages = frozenset().union(*(_packages_of(fdl.get_callable(node.value)) for node in found))
    return [
        f"{join(node.path, key_step)} is set, but {title(node.value)} never reads it."
        for node in found
        for key_step in _unread_steps(node.value, packages)
    ]


def _unread_steps(part: fdl.Buildable, packages: frozenset[str]) -> Iterator[str]:
    code = _code_of(fdl.get_callable(part))
    if code is None or not _ALL_AT_ONCE.isdisjoint(code.co_names):
        return
    for key in set_arguments(part):
        parameter = parameter_of(part, key)
        if parameter is None or parameter.kind in VARIADIC:
            continue
        uses, attributes = _uses(code).get(parameter.name, (0, frozenset()))
        is_kept_only = uses == len(attributes)
        if is_kept_only and not any(_is_read(a, one) for a in attributes for one in packages):
            yield step_to(key)


def _packages_of(function: Any) -> frozenset[str]:
    """Return the packages that define a constructor and its bases, torch apart."""
    written_in = function.__mro__ if inspect.isclass(function) else (function,)
    modules = [getattr(one, "__module__", None) or "" for one in written_in]
    return frozenset(module.partition(".")[0] for module in modules) - _NOT_SEARCHED


def _code_of(function: Any) -> types.CodeType | None:
    """Return the bytecode that gets the arguments; None where it is not plain Python."""
    target = inspect.unwrap(function)
    if inspect.isclass(target):
        if type(target).__call__ is not type.__call__ or target.__new__ is not object.__new__:
            return None
        target = inspect.unwrap(target.__init__)
    return getattr(target, "__code__", None)


@functools.lru_cache(maxsize=4096)
def _uses(code: types.CodeType) -> dict[str, tuple[int, frozenset[str]]]:
    """Return how often each variable is read, and the attributes as which it is merely kept."""
    counts: dict[str, int] = {}
    kept: dict[str, set[str]] = {}
    loads: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("CACHE", "EXTENDED_ARG", "RESUME", "NOP"):
            continue
        if instruction.opname == "STORE_ATTR" and len(loads) == 2:
            kept.setdefault(loads[0], set()).add(instruction.argval)
        names = _loaded(instruction)
        loads = (loads + names)[-2:] if names else []
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    for inner in _inner(code):  # a lambda or a comprehension that sees the variable
        for name in inner.co_freevars:
            counts[name] = counts.get(name, 0) + 1
    return {name: (count, frozenset(kept.get(name, ()))) for name, count in counts.items()}


def _loaded(instruction: dis.Instruction) -> list[str]:
    if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
        return []
    named = instruction.argval  # two variables in one instruction since Python 3.13
    return list(named) if isinstance(named, tuple) else [named]


@functools.lru_cache(maxsize=16384)
def _is_read(attribute: str, package: str) -> bool:
    """Whether any function of a package reads an attribute, as far as the package is imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package and isinstance(module, types.ModuleType):
            for code in _codes_of(module):
                tuples = (one for one in code.co_consts if isinstance(one, tuple))
                named = any(attribute in one for one in (code.co_names, code.co_consts, *tuples))
                if named and attribute in _attributes_read(code):
                    return True
    return False


@functools.lru_cache(maxsize=16384)
def _attributes_read(code: types.CodeType) -> frozenset[str]:
    """Return the attributes that a function reads, and texts that may name some for `getattr`."""
    instructions = list(dis.get_instructions(code))
    own = {one.argval for one in instructions if one.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    matches = any(one.opname == "MATCH_CLASS" for one in instructions)  # has names in a tuple
    groups = [one for one in code.co_consts if isinstance(one, tuple)] if matches else []
    texts = [*code.co_consts, *(one for group in groups for one in group)]
    return frozenset(own | {one for one in texts if isinstance(one, str)})


@functools.lru_cache(maxsize=4096)
def _codes_of(module: types.ModuleType) -> list[types.CodeType]:
    """Return the bytecode of all functions of a module, those inside others too."""
    found: list[types.CodeType] = []
    left: list[types.CodeType] = []
    for thing in list(vars(module).values()):
        if not isinstance(thing, type | types.FunctionType) or thing.__module__ != module.__name__:
            continue
        for member in list(vars(thing).values()) if isinstance(thing, type) else [thing]:
            function: Any = member.fget if isinstance(member, property) else member
            function = inspect.unwrap(getattr(function, "__func__", function))
            code = getattr(function, "__code__", None)
            left += [code] if isinstance(code, types.CodeType) else []
    while left:
        found.append(left.pop())
        left += _inner(found[-1])
    return found


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
