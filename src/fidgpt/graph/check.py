"""Everything that can be known to be wrong with a graph before it is built."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import default_of, every, given
from fidgpt.graph.bind import bind, open_parameters
from fidgpt.graph.constraints import Constraint, broken, broken_of_whole
from fidgpt.graph.errors import ConfigError, ConfigErrors, raise_all
from fidgpt.graph.formula import wrong_formulas
from fidgpt.graph.hints import can_be_typed, fits, hint_of, name_of
from fidgpt.graph.walk import Node, children, is_node, join, nodes, step_to, title

_HOLDERS = (list, tuple, set, frozenset, collections.deque, Mapping)


def check(root: Any) -> Any:
    """Returns the graph as it is, when nothing is wrong with it.

    Finds arguments that are required and missing, values and parts that do not fit their
    annotation, and parts that Fiddle would hand over unbuilt without a word.

    Raises:
      ConfigErrors: every mistake, in one go.
    """
    found = nodes(root)
    mistakes = [message for node in found for message in _mistakes(node)]
    raise_all(mistakes + list(wrong_formulas(found)))
    return root


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
    _, messages = _asked(check, root)
    bound, others = _asked(bind, root)
    messages += others
    if bound is not None and not messages:
        messages += _asked(check, bound)[1]  # a value wrong where it is said is wrong all over
    if bound is not None:
        messages += [*broken(nodes(bound)), *broken_of_whole(bound, constraints)]
    raise_all(messages)
    return bound


def _asked(question: Callable[[Any], Any], root: Any) -> tuple[Any, list[str]]:
    """What a question returns, or None and the mistakes that it found."""
    try:
        return question(root), []
    except ConfigErrors as errors:
        return None, errors.messages
    except ConfigError as error:
        return None, [str(error)]


def _mistakes(node: Node) -> Iterator[str]:
    if isinstance(node.value, fdl.ArgFactory):
        yield from _outside_a_factory(node)
    if isinstance(node.value, fdl.Buildable):
        yield from _missing(node)
        yield from _misfits(node)
    elif not _is_plain(node.value) and _holds_parts(node.value):
        yield _not_built(node.path, node.value)
    for step, child in children(node.value):
        if not is_node(child) and _holds_parts(child):
            yield _not_built(join(node.path, step), child)


def _missing(node: Node) -> Iterator[str]:
    """Required arguments that nobody gave; a Partial is called with the rest later."""
    if isinstance(node.value, fdl.Partial):
        return
    part = node.value
    heard = open_parameters(part)
    for key, value in every(part).items():
        if value is fdl.NO_VALUE and key not in heard:
            path = join(node.path, step_to(key))
            hint = hint_of(part, key)
            how = f": set:{path}=<{name_of(hint)}>." if can_be_typed(hint) else "."
            yield f"{path} is required by {title(part)} and not set{how}"


def _misfits(node: Node) -> Iterator[str]:
    for key, value in given(node.value).items():
        hint = hint_of(node.value, key)
        if fits(value, hint) or value is default_of(node.value, key):
            continue
        path = join(node.path, step_to(key))
        text = f"the part {title(value)}" if isinstance(value, fdl.Buildable) else f"{value!r:.60}"
        how = f"\n  Set something that fits:  set:{path}=..." if can_be_typed(hint) else ""
        yield f"{path} is {text}, and {title(node.value)} takes {name_of(hint)}.{how}"


def _outside_a_factory(node: Node) -> Iterator[str]:
    if not node.parents:
        yield f"the root is an ArgFactory of {title(node.value)}: make it a fdl.Config."
    for parent, step in node.parents:
        if not all(isinstance(one, fdl.Partial | fdl.ArgFactory) for one in _part_holders(parent)):
            yield (
                f"{join(parent.path, step)} is an ArgFactory of {title(node.value)}, which only a "
                "Partial or another ArgFactory calls: make it a fdl.Config."
            )


def _part_holders(node: Node) -> list[Any]:
    """The part that a node is, or the parts that hold it through lists, tuples and dicts."""
    if isinstance(node.value, fdl.Buildable) or not node.parents:
        return [node.value]
    return [holder for parent, _ in node.parents for holder in _part_holders(parent)]


def _not_built(path: str, value: Any) -> str:
    return (
        f"{path or 'the root'} is of type {type(value).__name__}, inside which parts are not "
        "built: use a plain list, tuple or dict, or make it a fdl.Config too."
    )


def _is_plain(value: Any) -> bool:
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
