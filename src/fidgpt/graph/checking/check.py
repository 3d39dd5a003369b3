"""Everything that can be known to be wrong with a graph before it is built."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.collection import without_collection
from fidgpt.graph.binding.bind import Heard, bind_nodes, open_parameters
from fidgpt.graph.checking.asked import asked
from fidgpt.graph.checking.called import wrong_calls
from fidgpt.graph.checking.constraints import Constraint, broken, broken_of_whole
from fidgpt.graph.checking.misfit import misfit_in, shown
from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.signatures.annotations import hints_of
from fidgpt.graph.signatures.hints import can_be_typed, fits, hint_of, name_of
from fidgpt.graph.structure.arguments import Key, default_of, every, given, named_defaults
from fidgpt.graph.structure.walk import (
    IS_PART,
    LEAVES,
    Node,
    children,
    is_node,
    join,
    nodes,
    step_to,
    title,
)
from fidgpt.graph.typed.formula import is_formula
from fidgpt.graph.typed.lookup import wrong_formulas

_HOLDERS = (list, tuple, set, frozenset, collections.deque, Mapping)


@without_collection()
def check(root: Any) -> Any:
    """Returns the graph as it is, when nothing is wrong with it.

    Finds arguments that are required and missing, values and parts that do not fit their
    annotation, and parts that Fiddle would hand over unbuilt without a word.

    Raises:
      ConfigErrors: every mistake, in one go.
    """
    found = nodes(root)
    raise_all(mistakes_of(found, within=found))
    return root


@without_collection()
def checked(root: Any, *, constraints: Iterable[Constraint] = ()) -> Any:
    """The bound graph, when nothing is wrong with it.

    Beside what `check` finds: quantities that nobody says or two say differently, values that do
    not fit where they are heard, and constraints between arguments that do not hold.

    Args:
      root: a graph.
      constraints: functions that look at the whole bound graph and raise ValueError.

    Raises:
      ConfigErrors: every mistake, in one go.
    """
    found = nodes(root)
    mistakes = mistakes_of(found, within=found)
    try:
        bound, heard = bind_nodes(root, found)
    except ConfigError as error:
        raise_all(mistakes + error.mistakes)
        raise
    copies = nodes(bound)
    if not mistakes:  # a value wrong where it is said is wrong all over
        mistakes += _mistakes_of_binding(copies, heard)
    raise_all([*mistakes, *broken(copies), *broken_of_whole(bound, constraints)])
    return bound


def mistakes_of(some: list[Node], *, within: list[Node]) -> list[ConfigError]:
    """What is wrong with some nodes, and with the formulas of the graph that they are of."""
    mistakes = [mistake for node in some for mistake in _mistakes(node)]
    return mistakes + list(wrong_formulas(within))


def _mistakes_of_binding(found: list[Node], heard: list[Heard]) -> list[ConfigError]:
    """What is wrong with a bound graph that was right before: only what was heard is new."""
    if any(is_node(one.said.value) for one in heard) or any(is_formula(n.value) for n in found):
        return mistakes_of(found, within=found)
    hearing = {one.node.path for one in heard if _is_misfit(one.part, one.key, one.said.value)}
    return [one for node in found if hearing and node.path in hearing for one in _misfits(node)]


def _mistakes(node: Node) -> Iterator[ConfigError]:
    value = node.value
    if IS_PART[type(value)]:
        if isinstance(value, fdl.ArgFactory):
            yield from _outside_a_factory(node)
        yield from wrong_calls(node) if isinstance(value, fdl.Partial) else _missing(node)
        yield from _misfits(node)
    elif not is_plain(value) and _holds_parts(value):
        yield _not_built(node.path, value)
    for step, child in children(value):
        if not (type(child) in LEAVES or is_node(child)) and _holds_parts(child):
            yield _not_built(join(node.path, step), child)


def _missing(node: Node) -> Iterator[ConfigError]:
    """Required arguments that nobody gave."""
    part = node.value
    arguments = every(part)
    if type(fdl.NO_VALUE) not in map(type, arguments.values()):
        return
    heard = open_parameters(part)
    for key, value in arguments.items():
        if value is fdl.NO_VALUE and key not in heard:
            path = join(node.path, step_to(key))
            hint = hint_of(part, key)
            how = f": set:{path}=<{name_of(hint)}>." if can_be_typed(hint) else "."
            yield ConfigError(f"{path} is required by {title(part)} and not set{how}", place=path)


def _misfits(node: Node) -> Iterator[ConfigError]:
    part = node.value
    hints = {} if named_defaults(part) is None else hints_of(fdl.get_callable(part))
    sure = {
        key
        for key, value in part.__arguments__.items()
        if type(value) is hints.get(key) and type(value) in LEAVES and value == value
    }
    if len(sure) == len(part.__arguments__):
        return
    for key, value in given(part).items():
        if key in sure or not _is_misfit(part, key, value):
            continue
        path = join(node.path, step_to(key))
        wrong = misfit_in(path, value, hint_of(part, key))
        where = "" if wrong.path == path else " there"
        others = f" {wrong.num_others} more do not fit either." if wrong.num_others else ""
        how = f"\n  Set something that fits:  set:{path}=..." if can_be_typed(wrong.hint) else ""
        yield ConfigError(
            f"{wrong.path} is {shown(wrong.value)}, and {title(part)} takes "
            f"{name_of(wrong.hint)}{where}.{others}{asked(wrong.value, wrong.hint)}{how}",
            place=path,
        )


def _is_misfit(part: fdl.Buildable, key: Key, value: Any) -> bool:
    """Whether a parameter takes no such value; its own default fits, whatever its annotation."""
    return not fits(value, hint_of(part, key)) and value is not default_of(part, key)


def _outside_a_factory(node: Node) -> Iterator[ConfigError]:
    if not node.parents:
        yield ConfigError(
            f"the root is an ArgFactory of {title(node.value)}: make it a fdl.Config."
        )
    for parent, step in node.parents:
        if not all(isinstance(one, fdl.Partial | fdl.ArgFactory) for one in _part_holders(parent)):
            path = join(parent.path, step)
            yield ConfigError(
                f"{path} is an ArgFactory of {title(node.value)}, which only a Partial or another "
                "ArgFactory calls: make it a fdl.Config.",
                place=path,
            )


def _part_holders(node: Node) -> list[Any]:
    """The part that a node is, or the parts that hold it through lists, tuples and dicts."""
    if isinstance(node.value, fdl.Buildable) or not node.parents:
        return [node.value]
    return [holder for parent, _ in node.parents for holder in _part_holders(parent)]


def _not_built(path: str, value: Any) -> ConfigError:
    return ConfigError(
        f"{path or 'the root'} is of type {type(value).__name__}, inside which parts are not "
        "built: use a plain list, tuple or dict, or make it a fdl.Config too.",
        place=path,
    )


def is_plain(value: Any) -> bool:
    """Whether Fiddle builds what is inside a container: not in OrderedDict, for example."""
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    return is_named or type(value) in (list, tuple, dict)


def _holds_parts(value: Any) -> bool:
    """Whether parts lie inside a value, however deep; a value may hold itself."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if isinstance(one, fdl.Buildable):
            return True
        if id(one) not in seen:
            seen.add(id(one))
            left += _items(one)
    return False


def _items(value: Any) -> Iterable[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, _HOLDERS):
        return value.values() if isinstance(value, Mapping) else value
    return ()
