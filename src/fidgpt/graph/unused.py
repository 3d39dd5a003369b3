"""Arguments that are set and that no code reads."""

import dis
import functools
import inspect
import sys
import types
from collections import Counter
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
    or where any function of the packages that the graph's constructors come from names that
    attribute. This is found out from bytecode, without running anything; what is not written in
    Python is taken to read all it is given.
    """
    found = parts(root)
    read = frozenset().union(*(_names_read(one) for one in _packages(found)))
    return [
        f"{join(node.path, key_step)} is set, but {title(node.value)} never reads it."
        for node in found
        for key_step in _unread_steps(node.value, read)
    ]


def _packages(found: list[Any]) -> set[str]:
    """Return the packages that define the constructors of nodes and their bases, torch apart."""
    called = (fdl.get_callable(node.value) for node in found)
    defined = (one.__mro__ if inspect.isclass(one) else (one,) for one in called)
    modules = {getattr(one, "__module__", None) or "" for group in defined for one in group}
    return {module.partition(".")[0] for module in modules} - _NOT_SEARCHED


def _unread_steps(part: fdl.Buildable, read: frozenset[str]) -> Iterator[str]:
    function = inspect.unwrap(fdl.get_callable(part))
    if inspect.isclass(function):
        is_plain = type(function).__call__ is type.__call__ and function.__new__ is object.__new__
        function = function.__init__ if is_plain else None
    code = _code_of(function)
    if code is None or not _ALL_AT_ONCE.isdisjoint(code.co_names):
        return
    counts, kept = _uses(code)
    for key in set_arguments(part):
        parameter = parameter_of(part, key)
        if parameter is None or parameter.kind in VARIADIC:
            continue
        attributes = {attribute for name, attribute in kept if name == parameter.name}
        if counts[parameter.name] == len(attributes) and read.isdisjoint(attributes):
            yield step_to(key)


@functools.lru_cache(maxsize=4096)
def _uses(code: types.CodeType) -> tuple[Counter[str], set[tuple[str, str]]]:
    """Return how often each variable is read, and the attributes as which it is merely kept."""
    counts: Counter[str] = Counter()
    kept: set[tuple[str, str]] = set()
    loads: list[str] = []
    for one in dis.get_instructions(code):
        if one.opname in ("CACHE", "EXTENDED_ARG", "RESUME", "NOP"):
            continue
        if one.opname == "STORE_ATTR" and len(loads) == 2:
            kept.add((loads[0], one.argval))
        is_load = one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF"))
        # Python 3.13 loads two variables in one instruction.
        names = [*one.argval] if isinstance(one.argval, tuple) else [one.argval]
        loads = (loads + names)[-2:] if is_load else []
        counts.update(names if is_load else ())
    for inner in filter(inspect.iscode, code.co_consts):  # a lambda that sees the variable
        counts.update(inner.co_freevars)
    return counts, kept


@functools.lru_cache(maxsize=64)
def _names_read(package: str) -> frozenset[str]:
    """Return the attributes that the functions of a package read, and texts that may name some.

    As far as the package is imported; names of other kinds may be among them.
    """
    codes: list[types.CodeType] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for thing in list(vars(module).values()):
                if getattr(thing, "__module__", None) == name:
                    members = list(vars(thing).values()) if isinstance(thing, type) else [thing]
                    codes += filter(None, map(_code_of, members))
    found: set[Any] = set()
    for code in codes:  # which grows by the functions inside
        codes += filter(inspect.iscode, code.co_consts)
        operations = code.co_code[::2]
        is_setting = dis.opmap["STORE_ATTR"] in operations
        instructions = dis.get_instructions(code) if is_setting else ()
        reads = [one.argval for one in instructions if one.opname in ("LOAD_ATTR", "LOAD_METHOD")]
        found.update(reads if is_setting else code.co_names)
        found.update(one for one in code.co_consts if isinstance(one, str))
        if dis.opmap["MATCH_CLASS"] in operations:  # has names in a tuple
            found.update(*(one for one in code.co_consts if isinstance(one, tuple)))
    return frozenset(found)


def _code_of(member: Any) -> types.CodeType | None:
    function: Any = member.fget if isinstance(member, property) else member
    return getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
