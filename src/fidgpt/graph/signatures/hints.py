"""What the annotation of a parameter allows, and whether a value of a graph fits it."""

import collections.abc
import enum
import inspect
import pathlib
import re
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.signatures.annotations import (
    hints_of,
    is_device,
    is_dtype,
    is_unknown,
    members_of,
)
from fidgpt.graph.signatures.protocols import is_protocol
from fidgpt.graph.signatures.returns import TOWER, has_methods, may_return, part_fits
from fidgpt.graph.structure.arguments import Key, given, named_defaults, parameter_of

_PLAIN = (int, float, str, list, tuple, dict, set, enum.Enum, pathlib.PurePath)
_LEAVES = (int, float, bool, str)
_WRITTEN = (*_LEAVES, list, tuple, dict)  # what a text may say


def hint_of(part: fdl.Buildable, key: Key) -> Any:
    """The annotation of a parameter; Any where there is none or it cannot be resolved."""
    if isinstance(key, str) and (named := named_defaults(part)) is not None:
        return hints_of(fdl.get_callable(part)).get(key, Any) if key in named else Any
    parameter = parameter_of(part, key)
    return hints_of(fdl.get_callable(part)).get(parameter.name, Any) if parameter else Any


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of a graph, parts inside it included, may be passed where `hint` is asked.

    A part stands for what it builds: a `Config` for what its constructor returns, a `Partial` for
    a callable. True is no number, nan is none, an int is a float, and a text is no sequence of its
    letters.
    """
    if type(value) is hint and hint in _LEAVES:  # most are
        return value == value
    members = members_of(hint)
    if len(members) != 1:
        return any(fits(value, member) for member in members)
    hint = members[0]
    if is_unknown(hint):
        return True
    if isinstance(value, TaggedValueCls):
        return "value" not in given(value) or fits(given(value)["value"], hint)
    if isinstance(value, fdl.Buildable):
        return part_fits(value, hint)
    return _plain_fits(value, hint)


def _plain_fits(value: Any, hint: Any) -> bool:
    """Whether a value that is no part fits a hint of one member."""
    if typing.get_origin(hint) is collections.abc.Callable and not may_return(value, hint):
        return False
    if isinstance(value, bool) and hint in (int, float, complex):
        return False
    protocol = typing.get_origin(hint) or hint
    if isinstance(value, _WRITTEN) and is_protocol(protocol):
        return has_methods(type(value), protocol) and _is_bearable(value, hint)
    if isinstance(value, list | tuple | dict) or _is_container(typing.get_origin(hint)):
        return _container_fits(value, hint)
    is_plain = inspect.isclass(hint) and not (typing.get_args(hint) or typing.is_typeddict(hint))
    if is_plain and not is_protocol(hint):
        return isinstance(value, (hint, *TOWER.get(hint, ())))
    return _is_bearable(value, hint)


def _container_fits(value: Any, hint: Any) -> bool:
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if typing.is_typeddict(origin):
        fields = typing.get_type_hints(origin)
        is_whole = isinstance(value, dict) and origin.__required_keys__ <= value.keys()
        return is_whole and all(key in fields and fits(value[key], fields[key]) for key in value)
    if not inspect.isclass(origin) or is_protocol(origin):
        return _is_bearable(value, hint)
    if not isinstance(value, origin) or (isinstance(value, str | bytes) and origin is not str):
        return False
    if isinstance(value, Mapping):
        if len(args) != 2:
            return True
        return all(fits(key, args[0]) and fits(item, args[1]) for key, item in value.items())
    if not isinstance(value, Collection):
        return True
    if origin is tuple and args and args[-1] is not Ellipsis and len(args) != len(value):
        return False
    return all(fits(item, element_hint(hint, i)) for i, item in enumerate(value))


def _is_container(origin: Any) -> bool:
    """Whether a generic is one of Python's own containers, whose elements can be looked at."""
    is_own = getattr(origin, "__module__", "") in ("builtins", "collections", "collections.abc")
    return is_own and inspect.isclass(origin) and issubclass(origin, Iterable)


def _is_bearable(value: Any, hint: Any) -> bool:
    """A hint that the checker does not know refuses nothing."""
    from beartype import BeartypeConf  # late: most values are of plain classes
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    try:  # an int is welcome where a float is expected
        return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeException:
        return True


def element_hint(hint: Any, key: Any) -> Any:
    """The annotation of one element of a list, tuple or dict that is annotated `hint`."""
    for member in members_of(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if typing.is_typeddict(origin or member):
            return typing.get_type_hints(origin or member).get(str(key), Any)
        if not inspect.isclass(origin):
            continue
        if issubclass(origin, Mapping):
            if len(args) == 2 and (not isinstance(key, int) or fits(key, args[0])):
                return args[1]
        elif origin is tuple and args and args[-1] is not Ellipsis:
            return args[key] if isinstance(key, int) and key < len(args) else Any
        elif issubclass(origin, Iterable) and args and isinstance(key, int):
            return args[0]
    return Any


def key_hint(hint: Any) -> Any:
    """The annotation of the keys of a dict that is annotated `hint`."""
    for member in members_of(hint):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if inspect.isclass(origin) and issubclass(origin, Mapping) and len(args) == 2:
            return args[0]
    return Any


def can_be_typed(hint: Any) -> bool:
    """Whether a text can say a value for a hint, None apart; a part or function it cannot."""
    for member in members_of(hint):
        origin = typing.get_origin(member) or member
        named_by_torch = is_dtype(member) or is_device(member)
        if is_unknown(member) or named_by_torch or origin in (typing.Literal, object):
            return True
        is_plain = inspect.isclass(origin) and issubclass(origin, _PLAIN)
        elements = [one for one in typing.get_args(member) if one is not Ellipsis]
        if is_plain or (_is_container(origin) and all(map(can_be_typed, elements))):
            return True
    return False


def name_of(hint: Any) -> str:
    """How to write a hint in a message."""
    if inspect.isclass(hint) and not typing.get_args(hint):
        return "None" if hint is type(None) else hint.__name__
    if members := members_of(hint)[1:]:
        return " or ".join(name_of(member) for member in (members_of(hint)[0], *members))
    return re.sub(r"(\w+\.)+(?=\w)", "", str(hint))
