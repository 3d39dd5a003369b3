"""The one adapter to Fiddle: every use of its dunders and private names is here."""

import contextlib
import functools
import inspect
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import fiddle as fdl
from fiddle.building import call_buildable
from fiddle.history import History

Key = str | int
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_USUAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_known_defaults: dict[Any, dict[Key, Any] | None] = {}


class _TypeHints:
    """The annotations of callables, in place of the dictionary in which Fiddle means to keep them.

    That refuses every key, since a pair cannot be held weakly: annotations were evaluated again for
    each node, which took half of the time in which a config is made. None are kept where there are
    none, as some may be defined later.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, dict[bool, dict[str, Any]]] = WeakKeyDictionary()

    def __getitem__(self, key: tuple[Any, bool]) -> dict[str, Any]:
        return self._known[key[0]][key[1]]

    def __setitem__(self, key: tuple[Any, bool], hints: dict[str, Any]) -> None:
        if hints:
            self._known.setdefault(key[0], {})[key[1]] = hints


def _keep_type_hints() -> None:
    signatures = sys.modules[fdl.Config(dict).__signature_info__.__module__]
    if isinstance(getattr(signatures, "_type_hints_cache", None), WeakKeyDictionary):
        vars(signatures)["_type_hints_cache"] = _TypeHints()


_keep_type_hints()

B = TypeVar("B", bound=fdl.Buildable)
T = TypeVar("T")
CALLABLE = "__fn_or_cls__"  # the key under which a history keeps what a node calls


def raw_arguments(part: fdl.Buildable) -> dict[Key, Any]:
    """Return the dict that holds a node's set arguments, in the order of assignment.

    Fiddle neither validates nor records values written to it; `assign` and `setattr` do both.
    """
    return part.__arguments__


def argument_tags(part: fdl.Buildable) -> dict[Key, set[Any]]:
    """Return the dict that holds the tags of a node's parameters; some sets may be empty."""
    return part.__argument_tags__


def nonempty_tags(part: fdl.Buildable) -> dict[Key, frozenset[Any]]:
    """Return the tags of every parameter that carries any."""
    return {key: frozenset(tags) for key, tags in part.__argument_tags__.items() if tags}


def argument_history(part: fdl.Buildable) -> History:
    """Return the history of a node's assignments, by key; a lookup adds a missing key."""
    return part.__argument_history__


def record_value(part: fdl.Buildable, key: Key, value: Any) -> None:
    """Add an assignment to the history of a node, at the caller's location."""
    part.__argument_history__.add_new_value(key, value)


def parameters_of(part: fdl.Buildable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of what a node calls, by name."""
    return part.__signature_info__.parameters


def parameter_names(part: fdl.Buildable) -> tuple[str, ...]:
    """Return the names that may be passed by keyword, `**kwargs` apart."""
    return part.__signature_info__.valid_param_names


def aliases_of(part: fdl.Buildable) -> Mapping[str, str]:
    """Return the parameters that paths may call by other names, by these names."""
    return getattr(part.__fn_or_cls__, "ALIASES", {})


def repeats_of(part: fdl.Buildable) -> Mapping[str, str]:
    """Return the lists that repeat until there are as many items as another argument gives."""
    return getattr(part.__fn_or_cls__, "REPEATS", {})


def first_variadic(part: fdl.Buildable) -> int | None:
    """Return the index of the first element of `*args`; None for a callable without."""
    return part.__signature_info__.var_positional_start


def call(part: fdl.Buildable, arguments: dict[Any, Any], *, directly: bool = False) -> Any:
    """Call what a node calls, as `fdl.build` does once the arguments are built.

    Args:
      part: the node.
      arguments: its arguments, built.
      directly: whether to call what a factory calls, instead of making a factory of it.
    """
    args, keywords = part.__signature_info__.transform_to_args_kwargs(arguments)
    return (part.__fn_or_cls__ if directly else part.__build__)(*args, **keywords)


class PreparedConfig(fdl.Config[T]):
    """A Config in whose place `fdl.build` builds what `__prepare__` returns, if it is the root."""

    def __prepare__(self) -> fdl.Buildable:
        """Return the node to build; it calls the same."""
        raise NotImplementedError

    def __flatten__(self) -> Any:
        return fdl.Config.__flatten__(_built_instead_of(self))

    def __path_elements__(self) -> Any:
        return fdl.Config.__path_elements__(_built_instead_of(self))

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_cast = vars(inspect.getmodule(fdl.cast))["register_supported_cast"]
        for other in (fdl.Config, fdl.Partial, fdl.ArgFactory):
            register_cast(cls, other)
            register_cast(other, cls)


_BUILD_CODE = {constant for constant in fdl.build.__code__.co_consts if inspect.iscode(constant)}
_FRAMES = 6  # between `fdl.build` and a method by which it flattens a node


def kind_of(value: Any) -> type:
    """Return a value's type, of a node that is prepared before it is built `fdl.Config`."""
    kind = type(value)
    return fdl.Config if issubclass(kind, PreparedConfig) else kind


def _built_instead_of(part: PreparedConfig) -> Any:
    """Return what `fdl.build` is to build; the node itself outside of it, and below its root."""
    frame = inspect.currentframe()
    for _ in range(_FRAMES):
        frame = frame and frame.f_back
        if frame and frame.f_code in _BUILD_CODE:
            return part if frame.f_locals["state"].current_path else part.__prepare__()
    return part


def failed_call(error: Exception) -> tuple[fdl.Buildable | None, Exception]:
    """Return the node whose call failed inside `fdl.build`, and what the call itself raised.

    Fiddle raises another exception, whose message holds every argument.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    calls = [frame for frame in frames if frame.f_code is call_buildable.__code__]
    if not calls:
        return None, error
    return calls[0].f_locals["buildable"], getattr(error, "proxy_base_exception", error)


def copy_part(part: B, arguments: dict[Key, Any]) -> B:
    """Return a node that calls the same with other arguments; tags and history are copied.

    Unlike `copy.copy`, which inspects the signature again, it costs next to nothing.
    """
    new = object.__new__(type(part))
    tags, history = part.__argument_tags__, part.__argument_history__
    own = vars(new)  # bypasses Fiddle's own __setattr__, as its `__deepcopy__` does
    own.update(part.__dict__)
    own["__arguments__"] = arguments
    own["__argument_tags__"] = copied = defaultdict(set)
    for key, carried in tags.items():
        copied[key] = set(carried)
    own["__argument_history__"] = History(
        zip(history, map(list.copy, history.values()), strict=True)
    )
    return new


class _FrozenArguments(dict[Key, Any]):
    """Arguments of a node that refuse changes; copies take them."""

    refuse: Callable[[Key], Exception]

    def __setitem__(self, key: Key, value: Any) -> None:
        raise self.refuse(key)

    def __delitem__(self, key: Key) -> None:
        raise self.refuse(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def freeze(part: fdl.Buildable, refuse: Callable[[Key], Exception]) -> None:
    """Let the arguments of a node refuse changes with the error that `refuse` returns for a key."""
    frozen = _FrozenArguments(part.__arguments__)
    frozen.refuse = refuse
    vars(part)["__arguments__"] = frozen  # bypasses Fiddle's own __setattr__


class RecordedArguments(MutableMapping[Key, Any]):
    """Arguments of a node that report the keys whose values are read or changed.

    Args:
      arguments: of the node.
      report: is called with each key.
    """

    def __init__(self, arguments: dict[Key, Any], report: Callable[[Key], None]) -> None:
        self.arguments = arguments
        self._report = report

    def __getitem__(self, key: Key) -> Any:
        self._report(key)
        return self.arguments[key]

    def __setitem__(self, key: Key, value: Any) -> None:
        self._report(key)
        self.arguments[key] = value

    def __delitem__(self, key: Key) -> None:
        self._report(key)
        del self.arguments[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@contextlib.contextmanager
def recording(parts: list[Any], touched: set[tuple[int, Key]]) -> Iterator[None]:
    """Add the arguments of nodes whose values are read or changed inside, by identity and key.

    A walk to the nodes inside others reads only arguments that hold nodes.
    """
    before = [part.__arguments__ for part in parts]
    for part, arguments in zip(parts, before, strict=True):
        add = functools.partial(lambda part, key: touched.add((part, key)), id(part))
        vars(part)["__arguments__"] = RecordedArguments(arguments, add)
    try:
        yield
    finally:
        for part, arguments in zip(parts, before, strict=True):
            vars(part)["__arguments__"] = arguments


def set_arguments(part: fdl.Buildable) -> dict[Key, Any]:
    """Return the arguments that are set, in the order of the signature."""
    named, known = named_defaults(part), part.__arguments__
    if named is None:
        return fdl.ordered_arguments(part)
    return {key: known[key] for key in named if key in known}


def all_arguments(part: fdl.Buildable) -> dict[Key, Any]:
    """Return all arguments: the set value, else the default, else `fdl.NO_VALUE`.

    Elements of `*args` and `**kwargs` that carry a tag and no value are among them, which Fiddle
    itself does not list.
    """
    if (named := named_defaults(part)) is not None:
        return {**named, **part.__arguments__}
    listed = fdl.ordered_arguments(part, include_defaults=True, include_unset=True)
    is_open = [key for key, tags in part.__argument_tags__.items() if tags and key not in listed]
    if not is_open:
        return listed
    both = listed | dict.fromkeys(is_open, fdl.NO_VALUE)
    return dict(sorted(both.items(), key=lambda item: _position(part, item[0])))


def named_defaults(part: fdl.Buildable) -> Mapping[Key, Any] | None:
    """Return the defaults of a node that takes arguments by name only, in the signature's order.

    `fdl.NO_VALUE` stands where there is none. None where there may be arguments without a name, or
    with any name.
    """
    function = part.__fn_or_cls__
    try:
        return _known_defaults[function]
    except KeyError:
        defaults = _known_defaults[function] = _named_defaults(part)
        return defaults
    except TypeError:  # an instance that can be called but not hashed
        return _named_defaults(part)


def _named_defaults(part: fdl.Buildable) -> dict[Key, Any] | None:
    parameters = part.__signature_info__.parameters
    if not all(parameter.kind in _USUAL for parameter in parameters.values()):
        return None
    empty = inspect.Parameter.empty
    return {
        name: fdl.NO_VALUE if parameter.default is empty else parameter.default
        for name, parameter in parameters.items()
    }


def _position(part: fdl.Buildable, key: Key) -> tuple[int, int]:
    names = list(part.__signature_info__.parameters)
    if isinstance(key, str):
        return (names.index(key) if key in names else len(names)), 0
    return min(key, part.__signature_info__.var_positional_start or 0), key


def default_of(part: fdl.Buildable, key: Key) -> Any:
    """Return the default of a parameter; `fdl.NO_VALUE` where it has none."""
    parameter = parameter_of(part, key)
    is_set = parameter is not None and parameter.default is not inspect.Parameter.empty
    return parameter.default if parameter is not None and is_set else fdl.NO_VALUE


def parameter_of(part: fdl.Buildable, key: Key) -> inspect.Parameter | None:
    """Return the parameter that takes an argument: `*args` and `**kwargs` take what no other does.

    None where nothing takes it.
    """
    parameters = part.__signature_info__.parameters
    usual = parameters.get(key) if isinstance(key, str) else None
    if usual is not None and usual.kind in _USUAL:
        return usual
    kinds = {parameter.kind: parameter for parameter in parameters.values()}
    if isinstance(key, str):
        named = parameters.get(key)
        if named is None or named.kind is named.VAR_KEYWORD:
            return kinds.get(inspect.Parameter.VAR_KEYWORD)
        return None if named.kind is named.VAR_POSITIONAL else named
    first = part.__signature_info__.var_positional_start
    if first is not None and key >= first:
        return kinds[inspect.Parameter.VAR_POSITIONAL]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    at = list(parameters.values())[key] if 0 <= key < len(parameters) else None
    return at if at is not None and at.kind in positional else None


def assign(part: fdl.Buildable, key: Key, value: Any) -> None:
    """Set an argument by its name, or by its number where it has none.

    Raises:
      AttributeError, IndexError: there is no such argument.
    """
    if isinstance(key, int):
        key = part.__signature_info__.index_to_key(key, part.__arguments__)
    if isinstance(key, str):
        setattr(part, key, value)
        return
    # Fiddle refuses to set an element of *args that is not there yet, or that is unset.
    first = part.__signature_info__.var_positional_start
    if parameter_of(part, key) is None or (
        first is not None and key > first and not {key, key - 1} & all_arguments(part).keys()
    ):
        raise IndexError(f"there is no positional argument {key}")
    part.__arguments__[key] = value


def unset(part: fdl.Buildable, key: Key) -> None:
    """Remove an argument; its tags stay."""
    if isinstance(key, str):
        delattr(part, key)
    else:  # Fiddle's own `del part[i]` would move the arguments that follow
        part.__argument_history__.add_deleted_value(key)
        del part.__arguments__[key]
