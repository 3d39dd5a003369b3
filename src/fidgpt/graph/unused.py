"""Arguments that are set and that no code reads."""

import dis
import functools
import inspect
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.fiddle import VARIADIC, Key, parameter_of, set_arguments
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
    kept = [
        (node, key, attributes) for node in found for key, attributes in _merely_kept(node.value)
    ]
    names = frozenset[str]().union(*(attributes for *_, attributes in kept))
    unread = _unread(names, _packages(found))
    return [
        f"{join(node.path, step_to(key))} is set, but {title(node.value)} never reads it."
        for node, key, attributes in kept
        if attributes <= unread
    ]


def _packages(found: list[Any]) -> set[str]:
    """Return the packages that define the constructors of nodes and their bases, torch apart."""
    called = (fdl.get_callable(node.value) for node in found)
    defined = (one.__mro__ if inspect.isclass(one) else (one,) for one in called)
    modules = {getattr(one, "__module__", None) or "" for group in defined for one in group}
    return {module.partition(".")[0] for module in modules} - _NOT_SEARCHED


def _merely_kept(part: fdl.Buildable) -> Iterator[tuple[Key, set[str]]]:
    """Yield the arguments that are set and that a constructor reads at most to keep them.

    Each has the attributes as which it is kept.
    """
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
        if counts[parameter.name] == len(attributes):
            yield key, attributes


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


def _unread(names: Iterable[str], packages: set[str]) -> set[str]:
    """Return those names of attributes that no function of some packages reads.

    As far as the packages are imported. A function is taken to read what its texts name, and names
    of other kinds too.
    """
    left = {*names}
    for code in _codes_of(packages):
        if not left:
            break
        left -= _read_in(code, left)
    return left


def _codes_of(packages: set[str]) -> Iterator[types.CodeType]:
    """Yield the code of all functions of some packages, and of those inside of them."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in packages:
            continue
        for thing in list(vars(module).values()):
            if getattr(thing, "__module__", None) == name:
                members = list(vars(thing).values()) if isinstance(thing, type) else [thing]
                codes = [*filter(None, map(_code_of, members))]
                for code in codes:  # which grows by the functions inside
                    codes += filter(inspect.iscode, code.co_consts)
                yield from codes


def _read_in(code: types.CodeType, names: set[str]) -> set[str]:
    """Return those of some names that a function reads."""
    read = names.intersection(code.co_names)
    if read and dis.opmap["STORE_ATTR"] in code.co_code[::2]:
        loads = ("LOAD_ATTR", "LOAD_METHOD")
        read &= {one.argval for one in dis.get_instructions(code) if one.opname in loads}
    for one in code.co_consts:
        if isinstance(one, str) and one in names:
            read.add(one)
        elif isinstance(one, tuple) and not names.isdisjoint(one):
            is_matched = dis.opmap["MATCH_CLASS"] in code.co_code[::2]  # has names in a tuple
            read |= names.intersection(one) if is_matched else set()
    return read


def _code_of(member: Any) -> types.CodeType | None:
    function: Any = member.fget if isinstance(member, property) else member
    return getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
