"""From a graph to the objects that it describes: check, bind, build."""

import collections
import contextlib
import copy
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.errors import ConfigError, ConfigErrors, raise_all
from fidgpt.graph import binding, checking, fiddle, formulas, hints, secrets, walk
from fidgpt.graph.walk import IS_NODE, IS_PART, Node, children, join, nodes, step_to, title

T = TypeVar("T")
Constraint = Callable[[Any], None]
_Values = Mapping[Any, Any]
_CONTAINERS = (list, dict, set, bytearray, collections.deque)
_MAX_LINES = 5  # of a message of a constructor


class Config(fiddle.PreparedConfig[T]):
    """A `fdl.Config` that `fdl.build` checks and binds first, where it is the root of the graph.

    It makes `fdl.build(cfg)` alone enough for a graph with unset parameters; `graph.build` needs no
    such root, and names errors by their paths.
    """

    def __prepare__(self) -> fdl.Buildable:
        return _plain(check_and_bind(self, construct=False))


@gc_paused()
def check_and_bind(
    root: Any, *, constraints: Iterable[Constraint] = (), construct: bool = True
) -> Any:
    """Return the bound graph if nothing is wrong with it.

    Beyond what `check` finds: unset quantities, conflicting ones, inherited values of a wrong type,
    broken constraints, and arguments that a constructor rejects.

    Args:
      root: the graph, or the graph resolved.
      constraints: functions that inspect the whole bound graph and raise ValueError.
      construct: whether to call the constructors; see `constructor_errors`.

    Raises:
      ConfigErrors: every error, all at once.
    """
    bound, order, errors = _bound(root, constraints)
    raise_all([*errors, *(constructor_errors(order, errors) if construct else ())])
    return bound


def rejections(root: Any, *, constraints: Iterable[Constraint] = ()) -> list[ConfigError]:
    """Return what constraints and constructors reject in a graph that can be shown nevertheless.

    Raises:
      ConfigErrors: the graph has other errors; these are all of them.
    """
    bound, order, errors = _bound(root, ())
    rejected = [*constraint_errors(bound, constraints)]
    rejected += constructor_errors(order, [*errors, *rejected])
    raise_all([*errors, *rejected] if errors else [])
    return rejected


def resolve_checked(root: Any) -> binding.Resolved:
    """Return a graph resolved; where that fails, report the errors of its nodes as well.

    Raises:
      ConfigErrors: every error, all at once.
    """
    if isinstance(root, binding.Resolved):
        return root
    try:
        resolved = binding.Resolved(root)
        _ = resolved.bound
    except ConfigError as error:
        raise_all([*checking.node_errors(nodes(root)), *error.mistakes])
        raise
    return resolved


def build(
    root: fdl.Config[T] | fdl.Partial[Any] | binding.Resolved | list[Any] | dict[str, Any],
    *,
    constraints: Iterable[Constraint] = (),
    within: Mapping[str, AbstractContextManager[object]] | None = None,
) -> T:
    """Check, bind and build a graph: `fdl.build`, with errors that name the path and the remedy.

    Args:
      root: the graph, or the graph resolved.
      constraints: functions that inspect the whole bound graph and raise ValueError.
      within: contexts to enter while an argument of the root is built, by its name.

    Raises:
      ConfigError: the graph is wrong, or a constructor raised an exception of any kind.
    """
    bound, order, errors = _bound(root, constraints)
    if errors:
        raise ConfigErrors([*errors, *constructor_errors(order, errors)])
    plain = bound
    try:
        return _built(plain := _plain(bound), dict(within or {}))
    except Exception as error:  # a division by head_dim=0 is the user's mistake too
        part, cause = fiddle.failed_call(error)
        calls = nodes(plain) if plain is not bound else order
        failure = rejection(next((call for call in calls if call.value is part), order[0]), cause)
    raise_all(constructor_errors(order))
    raise failure


def _built(root: Any, within: dict[str, AbstractContextManager[object]]) -> Any:
    """Build a bound graph; an argument that shares nodes with others takes these along."""
    while within and isinstance(root, fdl.Config):
        name, context = within.popitem()
        arguments = fiddle.raw_arguments(root)
        if IS_NODE[type(part := arguments.get(name))]:
            others = {key: value for key, value in arguments.items() if key != name}
            shared = {id(node.value) for node in nodes(others)} & {
                id(node.value) for node in nodes(part)
            }
            with context:
                if shared:
                    return _built(root, within)
                built = fdl.build(part)
            root = fiddle.copy_part(root, {**arguments, name: built})
    return fdl.build(root)


def _bound(
    root: Any, constraints: Iterable[Constraint]
) -> tuple[Any, list[Node], list[ConfigError]]:
    """The bound graph, its nodes, and its errors except those that constructors raise."""
    resolved = resolve_checked(root)
    errors, bound = checking.node_errors(resolved.nodes), resolved.bound
    copies = nodes(bound)
    if not errors:  # a value that is wrong where it is set is wrong wherever it is inherited
        errors = checking.node_errors(copies)
    return bound, copies, [*errors, *constraint_errors(bound, constraints)]


def _plain(bound: Any) -> Any:
    """A bound graph that `fdl.build` builds as it is, with secrets and with its own containers.

    `fdl.build` copies lists and dicts, but neither sets nor defaults, whose receiver could
    change them for the config and for all later calls.
    """
    root, copies = bound, dict[int, Any]()
    if any(_lent(node.value) for node in nodes(bound)):
        root = walk.clone(bound)
        for node in nodes(root):
            items = fiddle.raw_arguments(node.value) if IS_PART[type(node.value)] else node.value
            for key, value in _lent(node.value).items():
                items[key] = _owned(secrets.revealed(value), copies)
    return fdl.cast(fdl.Config, root) if isinstance(root, Config) else root


def _lent(value: Any) -> dict[Any, Any]:
    """The values in a node, by key, that `fdl.build` would pass on themselves, and secrets."""
    if not IS_PART[type(value)]:
        items = enumerate(value) if isinstance(value, list) else getattr(value, "items", tuple)()
        return {key: item for key, item in items if _is_passed_on(item) or _is_secret(item)}
    held = fiddle.raw_arguments(value)
    return {
        key: argument
        for key, argument in fiddle.all_arguments(value).items()
        if _is_passed_on(argument, is_default=key not in held)
        or (key in held and _is_secret(argument))
    }


def _owned(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of a container and of those in it, one for all its uses; of a tuple, another one."""
    if type(value) is tuple:
        return tuple(_owned(item, copies) for item in value)
    if isinstance(value, _CONTAINERS) and id(value) not in copies:
        copies[id(value)] = mine = copy.copy(value)
        if isinstance(mine, dict | list):
            for key, item in [*mine.items()] if isinstance(mine, dict) else enumerate(mine):
                mine[key] = _owned(item, copies)
    return copies.get(id(value), value)


def _is_passed_on(value: Any, *, is_default: bool = False) -> bool:
    if type(value) is tuple:
        return any(_is_passed_on(item, is_default=is_default) for item in value)
    return isinstance(value, _CONTAINERS) and (is_default or type(value) not in (list, dict))


def _is_secret(value: Any) -> bool:
    return type(value) not in (list, dict) and secrets.has_secrets(value)


def shown(text: str, arguments: Mapping[Any, Any]) -> list[str]:
    """Return the names of the arguments that a text shows with values, as `f"{name=}"` does."""
    return [
        name
        for name, value in arguments.items()
        if f"{name}=" in text
        and re.search(rf"(?<![\w.\]]){re.escape(f'{name}={value!r}')}(?!\w|\.\d)", text)
    ]


def shown_last(text: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of those that are, or hold, a number after the last colon of a text.

    Torch's optimizers raise such errors: `Invalid learning rate: -1.0`.
    """
    last = text.rpartition(":")[2].replace(",", " ").split()
    return [
        name
        for name, value in arguments.items()
        if any(repr(x) in last for x in (value if isinstance(value, list | tuple) else [value]))
    ]


def constraint_errors(root: Any, constraints: Iterable[Constraint]) -> Iterator[ConfigError]:
    """Yield what functions that inspect a whole bound graph reject by raising ValueError.

    A ConfigError names in its `sources` the values that it is about, wherever they are.
    """
    for constraint in constraints:
        try:
            constraint(root)
        except ConfigError as error:
            yield from error.mistakes
        except ValueError as error:
            yield ConfigError(str(error), sources=_shown_paths(str(error), root, ""))
        except Exception as error:  # whatever a user's own function does
            name = getattr(constraint, "__name__", repr(constraint))
            yield ConfigError(
                f"the constraint {name} failed: {type(error).__name__}: {_message(error)}"
            )


def constructor_errors(order: list[Node], known: Iterable[ConfigError] = ()) -> list[ConfigError]:
    """Return the ValueErrors of all constructors of a bound graph.

    Every node is built once, children first, with torch on the meta device; a node is skipped if
    one below it failed. Classes inside factories are constructed too, as far as their arguments
    are complete; functions that a `Partial` holds are never called. Exceptions other than
    ValueError are for `build` to report: a file may be missing here, or a constructor unable to
    run on meta.

    Args:
      order: the nodes, parents first.
      known: errors that were found before; the nodes that they are about are skipped.
    """
    places = {error.place for error in known}
    errors: list[ConfigError] = []
    made: dict[int, Any] = {}
    with _without_memory():
        for node in reversed(order):
            inside = [*children(node.value)]
            is_wrong = bool(places) and bool(
                places & {node.path, *(join(node.path, step) for step, _ in inside)}
            )
            if not is_wrong and all(id(one) in made for _, one in inside if IS_NODE[type(one)]):
                try:
                    made[id(node.value)] = _made(node.value, made)
                except ValueError as error:
                    errors.append(rejection(node, error))
                except Exception:  # see above
                    continue
    return errors[::-1]


def _made(value: Any, made: Mapping[int, Any]) -> Any:
    """Return what a node becomes; of an `ArgFactory` and a class, what it creates."""
    if isinstance(value, fdl.Partial) and inspect.isclass(fdl.get_callable(value)):
        try:
            made_of(value, made, {}, directly=True)
        except Exception as error:  # such as of an argument that its caller passes
            if isinstance(error, ValueError):
                raise
    return made_of(value, made, {}, directly=isinstance(value, fdl.ArgFactory))


def made_of(value: Any, made: _Values, others: _Values, *, directly: bool = False) -> Any:
    """Return what a node of a bound graph becomes, as `fdl.build` makes it.

    Args:
      value: the node.
      made: what the nodes inside became, by identity.
      others: arguments that replace the node's.
      directly: as of `fiddle.call`.
    """

    def built(item: Any) -> Any:
        if id(item) in made:
            return made[id(item)]
        return copy.copy(item) if _is_passed_on(item) else secrets.revealed(item)

    if isinstance(value, dict):
        return {key: built(item) for key, item in value.items()}
    if not IS_PART[type(value)]:
        items = [built(item) for item in value]
        return items if isinstance(value, list) else getattr(type(value), "_make", tuple)(items)
    defaults = {key: _owned(default, {}) for key, default in _lent(value).items()}
    arguments = {**defaults, **fiddle.raw_arguments(value), **others}
    built_arguments = {key: built(item) for key, item in arguments.items()}
    return fiddle.call(value, built_arguments, directly=directly)


@contextlib.contextmanager
def _without_memory() -> Iterator[None]:
    """Let torch allocate nothing, draw nothing and warn of nothing; without torch, do nothing."""
    torch = sys.modules.get("torch")
    with contextlib.ExitStack() as stack:
        if torch is not None:
            stack.enter_context(torch.device("meta"))
            stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def rejection(node: Node, error: Exception) -> ConfigError:
    """What a constructor rejected, as an error of its node.

    What its message shows as `name=value` is what it is about; without any, it is the whole node.
    """
    message = _message(error)
    if not isinstance(error, ValueError | TypeError):
        message = f"{type(error).__name__}: {message}".rstrip(": ")
    path, part = node.path, node.value
    called = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    for step, value in _held(part):
        if not isinstance(value, fdl.Partial):
            continue
        function = fdl.get_callable(value)
        call = function.__init__ if inspect.isclass(function) else function
        is_refused = message.startswith(f"{getattr(call, '__qualname__', None)}() ")  # by Python
        if is_refused or getattr(call, "__code__", None) in called:
            path, part = join(path, step), value  # which the constructor called
    sources = _shown_paths(message, part, path)
    rejected = ConfigError(
        f"{path or 'the root'} ({title(part)}): {message or 'invalid arguments'}",
        place=path,
        sources=[path, *formulas.inputs_of(part, path)] if formulas.is_formula(part) else sources,
    )
    rejected.__cause__ = error
    return rejected


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a node holds, in lists and dicts too."""
    for step, held in children(value):
        yield step, held
        if IS_NODE[type(held)] and not IS_PART[type(held)]:
            yield from ((f"{step}{inner}", child) for inner, child in _held(held))


def _shown_paths(text: str, part: Any, path: str) -> list[str]:
    """The paths of the arguments of a node that a message shows."""
    arguments = fiddle.all_arguments(part) if IS_PART[type(part)] else {}
    known = {key: hints.computed(value) for key, value in arguments.items()}
    return [join(path, step_to(key)) for key in shown(text, known)]


def _message(error: Exception) -> str:
    return secrets.redacted("\n".join(str(error).splitlines()[:_MAX_LINES]))
