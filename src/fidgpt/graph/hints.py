"""Type hints of parameters and what callables return."""

import collections.abc
import contextlib
import enum
import functools
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.fiddle import VARIADIC, Key, named_defaults, parameter_of, set_arguments

F = TypeVar("F", bound=Callable[..., Any])


def cached(function: F) -> F:
    """Keep the results of a function, except for arguments that cannot be hashed."""
    known = functools.lru_cache(maxsize=4096)(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return known(*args)
        except TypeError:  # such as an instance that can be called
            return function(*args)

    return call  # type: ignore[return-value]


@cached
def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a callable's parameters, and under "return" what a call returns.

    A class returns itself. An annotation that cannot be resolved is left out.
    """
    if isinstance(function, functools.partial):
        return hints_of(function.func)
    function = typing.get_origin(function) or function  # Box for Box[int]
    target = function
    if inspect.isclass(function):
        own_init = function.__init__ is not object.__init__
        target = function.__init__ if own_init else function.__new__
    elif not inspect.isroutine(function):
        target = type(function).__call__
    hints = _resolved(target)
    if inspect.isclass(function):
        hints["return"] = function if type(function).__call__ is type.__call__ else Any
    elif hints.get("return") is typing.Self:
        hints["return"] = getattr(function, "__self__", Any)
    return hints


def _resolved(target: Any) -> dict[str, Any]:
    """Return the annotations that can be resolved: some may name things that are not imported."""
    try:
        return typing.get_type_hints(target)
    except Exception:  # a third party's annotation may raise anything
        hints: dict[str, Any] = {}
    names = getattr(inspect.unwrap(target), "__globals__", {})
    for name, annotation in getattr(target, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):
            hints |= typing.get_type_hints(alone, globalns=names)
    return hints


def members_of(hint: Any) -> tuple[Any, ...]:
    """The members of a Union or Optional; a hint of one member otherwise.

    Names for other hints (`NewType`, `Annotated`, `type X = ...`) are followed to what they name.
    """
    if type(hint) is type:  # most are
        return (hint,)
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":  # Python 3.12
            hint = hint.__value__
        else:
            break
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(member for arg in typing.get_args(hint) for member in members_of(arg))
    return (hint,)


def is_unknown(hint: Any) -> bool:
    """Whether a hint has nothing that a value could be compared with."""
    is_named_only = isinstance(hint, typing.TypeVar | typing.ParamSpec | typing.ForwardRef | str)
    return hint is Any or hint is inspect.Parameter.empty or hint is typing.Self or is_named_only


def is_torch(hint: Any, name: str) -> bool:
    """Whether a hint is torch's `dtype` or `device`, found out without importing torch."""
    return (getattr(hint, "__module__", None), getattr(hint, "__name__", None)) == ("torch", name)


def is_protocol(hint: Any) -> bool:
    """Whether a hint is a Protocol; of an object not yet built only its methods can be asked."""
    return getattr(hint, "_is_protocol", False)


def methods_of(protocol: Any) -> dict[str, Any]:
    """The methods that a Protocol asks for, by name."""
    return {
        name: member
        for base in reversed(protocol.__mro__)
        if is_protocol(base)
        for name, member in vars(base).items()
        if inspect.isfunction(member) and (name == "__call__" or name[0] != "_")
    }


def own_method(kind: type, name: str) -> Any:
    """A method as a class has it, None where it has none; a torch module is called by `forward`."""
    own = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    is_torchs = name == "__call__" and getattr(own, "__module__", "").startswith("torch.nn.")
    return own_method(kind, "forward") if is_torchs else own


def _may_have(kind: type, name: str) -> bool:
    """Whether instances of a class have an attribute, of the class or set by its constructor."""
    for attributes in map(vars, kind.__mro__):  # `hasattr` would find what the class alone has, too
        code = getattr(attributes.get("__init__"), "__code__", None)
        set_names = code.co_names + code.co_consts if code else ()
        if name in attributes or name in attributes.get("__annotations__", ()) or name in set_names:
            return True
    return False


TOWER = {float: (int,), complex: (int, float)}  # types that fit where another number is asked


@cached
def _call_fits(kind: type, function: Any, hint: Any) -> bool:
    """Whether what a node will be once it is built may be passed where `hint` is expected."""
    built = hints_of(function).get("return", Any)
    if not issubclass(kind, fdl.Partial):
        return _may_be(built, hint, exactly=inspect.isclass(function))
    origin = typing.get_origin(hint) or hint
    if origin is collections.abc.Callable:
        return may_return(function, hint)
    if is_protocol(origin):
        call = methods_of(origin).get("__call__")
        takes = call is None or _passed(function, call, skip=1) is not None
        is_alike = has_methods(functools.partial, origin)
        returned = hints_of(call or Any).get("return", Any)
        return is_alike and takes and may_return(function, Callable[..., returned])
    return not inspect.isclass(origin) or issubclass(functools.partial, origin)


def may_return(function: Any, hint: Any) -> bool:
    """Whether a function or class, where it is one, may return what a Callable shall."""
    if not (inspect.isfunction(function) or inspect.isclass(function)):
        return True
    returns, built = (typing.get_args(hint)[1:] or (Any,))[0], hints_of(function).get("return", Any)
    if returns in (None, types.NoneType):
        # A function may return something that is ignored; a call of a class only makes an instance.
        return inspect.isfunction(function)
    return _may_be(built, returns, exactly=inspect.isclass(function))


def _may_be(built: Any, hint: Any, *, exactly: bool) -> bool:
    """Whether a call annotated to return `built` may return what `hint` asks.

    A class returns its own instances `exactly`; a function may return something narrower than its
    annotation, so that only what neither contains the other is known to be wrong.
    """
    pairs = [(member, asked) for member in members_of(built) for asked in members_of(hint)]
    return any(_one_may_be(member, asked, exactly) for member, asked in pairs)


def _one_may_be(built: Any, hint: Any, exactly: bool) -> bool:
    if is_unknown(built) or is_unknown(hint):
        return True
    origins = (typing.get_origin(side) or side for side in (built, hint))
    have, want = (getattr(side, "array_type", side) for side in origins)  # of any shape
    are_classes = inspect.isclass(have) and inspect.isclass(want)
    if not are_classes or is_protocol(have) or typing.is_typeddict(want):
        return True
    if is_protocol(want):
        return has_methods(have, want)
    if want is collections.abc.Callable and exactly:
        called = own_method(have, "__call__")
        if inspect.isfunction(called) and "return" in hints_of(called):
            return may_return(called, hint)
    if issubclass(have, (want, *TOWER.get(want, ()))):
        return True
    return not exactly and issubclass(want, have)


def has_methods(kind: type, protocol: Any) -> bool:
    """Whether instances of a class have the methods of a Protocol, as far as anybody can know."""
    asked = methods_of(protocol)
    looked_up = getattr(kind, "__getattr__", None)
    is_anything = looked_up and not looked_up.__module__.startswith("torch.")  # only set ones
    if not is_anything and not all(_may_have(kind, name) for name in asked):
        return False
    if methods_of(protocol.__base__) and role_of(kind) not in (None, protocol.__name__):
        return False
    return all(can_be_called_as(own_method(kind, name), asked[name]) for name in asked)


def role_of(kind: type) -> str | None:
    """Return the name of the Protocol that a class is made for; torch's norms are norms.

    Protocols derived from one ask for the same methods: only roles tell their modules apart.
    """
    is_norm = any(base.__module__ == "torch.nn.modules.normalization" for base in kind.__mro__)
    return getattr(kind, "ROLE", "Norm" if is_norm else None)


def can_be_called_as(own: Any, asked: Any) -> bool:
    """Whether a method takes what the one of a Protocol does, and may return what that returns."""
    parameters = inspect.signature(asked).parameters.values()
    if not inspect.isfunction(own) or any(parameter.kind in VARIADIC for parameter in parameters):
        return True
    if (passed := _passed(own, asked)) is None:
        return False
    takes, gives = hints_of(own), hints_of(asked)
    if _takes_context(own, besides=passed):
        return False
    built, wanted = takes.get("return", Any), gives.get("return", Any)
    if hasattr(own, "__wrapped__"):  # a decorator, such as of a context manager, returns another
        return True
    # A method may return another of its own kind, so that to ask for its methods would never end.
    return any(map(is_protocol, members_of(wanted))) or _may_be(built, wanted, exactly=False)


def _passed(own: Any, asked: Any, *, skip: int = 0) -> Collection[str] | None:
    """Return which parameters a call of a Protocol's method sets; None if it cannot be made.

    Args:
      own: the callable.
      asked: the method.
      skip: 1 if `own` is called without `self`, and may have been given more arguments before.
    """
    parameters = list(inspect.signature(asked).parameters.values())[skip:]
    by_name = [arg.name for arg in parameters if arg.kind is arg.KEYWORD_ONLY]
    in_order = [None] * (len(parameters) - len(by_name))
    try:
        signature = inspect.signature(own)
        bind = signature.bind_partial if skip else signature.bind
        return bind(*in_order, **dict.fromkeys(by_name)).arguments.keys()
    except TypeError:
        return None
    except ValueError:  # a function of C has no signature
        return ()


def _takes_context(method: Any, besides: Collection[str] = ()) -> bool:
    """Whether a method has a parameter that is always passed to those that take it."""
    hints = hints_of(method)
    taken = [hints[name] for name in hints.keys() - {*besides, "return"}]
    members = [member for hint in taken for member in members_of(hint)]
    return any(getattr(member, "PASSED_ALWAYS", False) for member in members)


_PLAIN = (int, float, str, list, tuple, dict, set, enum.Enum, pathlib.PurePath)
_LEAVES = (int, float, bool, str)
_WRITTEN = (*_LEAVES, list, tuple, dict)  # what can be typed


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
        return "value" not in set_arguments(value) or fits(set_arguments(value)["value"], hint)
    if isinstance(value, fdl.Buildable):
        return _call_fits(type(value), fdl.get_callable(value), hint)
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
    if not inspect.isclass(origin) or is_protocol(origin) or typing.is_typeddict(origin):
        return _is_bearable(value, hint)
    if not isinstance(value, origin) or (isinstance(value, str | bytes) and origin is not str):
        return False
    if isinstance(value, Mapping):
        kinds = args if len(args) == 2 else (Any, Any)
        return all(fits(key, kinds[0]) and fits(item, kinds[1]) for key, item in value.items())
    items: Any = value if isinstance(value, Collection) else ()
    if origin is tuple and args and args[-1] is not Ellipsis and len(args) != len(items):
        return False
    return all(fits(item, element_hint(hint, i)) for i, item in enumerate(items))


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
    """Whether a value for a hint can be typed, None apart; a node or function cannot."""

    def can(member: Any) -> bool:
        origin = typing.get_origin(member) or member
        named_by_torch = is_torch(member, "dtype") or is_torch(member, "device")
        if is_unknown(member) or named_by_torch or origin in (typing.Literal, object):
            return True
        elements = [element for element in typing.get_args(member) if element is not Ellipsis]
        is_plain = inspect.isclass(origin) and issubclass(origin, _PLAIN)
        return is_plain or (_is_container(origin) and all(map(can_be_typed, elements)))

    return any(map(can, members_of(hint)))


def name_of(hint: Any) -> str:
    """How to write a hint in a message."""
    if inspect.isclass(hint) and not typing.get_args(hint):
        return "None" if hint is type(None) else hint.__name__
    if len(members := members_of(hint)) > 1:
        return " or ".join(map(name_of, members))
    return re.sub(r"(\w+\.)+(?=\w)", "", str(hint))


def is_quantity(part: Any) -> bool:
    """Whether a part computes a number or a text, for which a copy is as good."""
    if not isinstance(part, fdl.Config):
        return False
    returns = hints_of(fdl.get_callable(part)).get("return")
    return all(member in _LEAVES for member in members_of(returns))


def computed(value: Any) -> Any:
    """A value of a bound graph as its constructor gets it; of a quantity, the number itself.

    `fdl.NO_VALUE` for a value not known before the graph is built: a part, or a quantity whose
    computation fails, which `build` reports.
    """
    if not isinstance(value, fdl.Buildable):
        return value
    if not is_quantity(value):
        return fdl.NO_VALUE
    try:
        return fdl.build(value)
    except Exception:  # whatever the function does with wrong arguments
        return fdl.NO_VALUE


def missing_methods(value: Any, hint: Any) -> str:
    """Return lines on the Protocols of a hint that a value does not implement."""
    kind = type(value)
    if isinstance(value, fdl.Buildable):
        function = fdl.get_callable(value)
        kind = function if inspect.isclass(function) else hints_of(function).get("return")
        is_known = inspect.isclass(kind) and not (is_unknown(kind) or is_protocol(kind))
        kind = kind if is_known and not isinstance(value, fdl.Partial) else None
    lines: list[str] = []
    for protocol in filter(is_protocol, members_of(hint)):
        methods = methods_of(protocol)
        lines += [_summary(protocol)]
        for name in methods:
            if name == "__call__" and "forward" in methods:  # which torch calls
                continue
            own = kind and own_method(kind, name)
            if own is None or not can_be_called_as(own, methods[name]):
                has = f"no {name}" if own is None else f"{name}{_call_of(own)}"
                why = f", and {kind.__name__} has {has}" if kind is not None else ""
                lines.append(f"It is called as {name}{_call_of(methods[name])}{why}.")
    return "".join(f"\n  {line}" for line in lines)


def _summary(hint: Any) -> str:
    doc = inspect.getdoc(hint) or ""
    return f"{name_of(hint)}: {doc.partition(chr(10))[0]}"


def _call_of(method: Any) -> str:
    """Return what a method takes, as one would write the call: names and defaults alone."""
    own = list(inspect.signature(method).parameters.values())[1:]
    plain = [parameter.replace(annotation=parameter.empty) for parameter in own]
    return str(inspect.Signature(plain)).replace(", /", "")
