"""Checks of a whole graph before anything is built."""

import ast
import collections
import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import Inherited, unset_parameters
from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.fiddle import (
    VARIADIC,
    Key,
    all_arguments,
    default_of,
    named_defaults,
    raw_arguments,
    set_arguments,
    signature_of,
)
from fidgpt.graph.formulas import is_formula, wrong_formulas
from fidgpt.graph.hints import (
    can_be_typed,
    element_hint,
    fits,
    hint_of,
    hints_of,
    key_hint,
    members_of,
    name_of,
)
from fidgpt.graph.requirements import asked
from fidgpt.graph.walk import IS_PART, LEAVES, Node, children, is_node, join, nodes, step_to, title


def wrong_calls(node: Node) -> Iterator[ConfigError]:
    """What is wrong with a Partial, by the annotation of each place that holds it.

    A place annotated `Callable[[], Block]` calls without arguments; `Callable[..., Block]` says
    nothing, and neither does what is no Callable.
    """
    part = node.value
    is_whole = type(fdl.NO_VALUE) not in map(type, all_arguments(part).values())
    for parent, step in node.parents:
        members = [one for hint in _hints(parent, step) for one in members_of(hint)]
        counts = [_num_asked(one) for one in members if fits(part, one)]
        if None in counts or (is_whole and 0 in counts):
            continue
        wrong = [(_with(count), _misfit(part, count)) for count in counts if count is not None]
        if wrong and all(message for _, message in wrong):
            path = join(parent.path, step)
            yield ConfigError(f"{path} is called {wrong[0][0]}, and {wrong[0][1]}", place=path)


def _hints(parent: Node, step: str) -> list[Any]:
    """The annotations of a place: more than one where a list that holds it is shared."""
    key = step[1:] if step.startswith(".") else ast.literal_eval(step[1:-1])
    if isinstance(parent.value, fdl.Buildable):
        return [hint_of(parent.value, key)]
    return [
        element_hint(hint, key) for above, inner in parent.parents for hint in _hints(above, inner)
    ]


def _num_asked(hint: Any) -> int | None:
    """How many arguments an annotation promises to give; None where it leaves that open."""
    if typing.get_origin(hint) is not collections.abc.Callable:
        return None
    asked = typing.get_args(hint)[:1]
    return len(asked[0]) if asked and isinstance(asked[0], list) else None


def _with(count: int) -> str:
    words = {0: "without arguments", 1: "with 1 argument"}
    return words.get(count, f"with {count} arguments")


def _misfit(part: fdl.Buildable, count: int) -> str:
    """What is missing where a part is called with so many arguments; "" where nothing is."""
    known = dict.fromkeys([*set_arguments(part), *unset_parameters(part)])
    num_given = sum(isinstance(key, int) for key in known)
    names = [key for key in known if isinstance(key, str)]
    signature = signature_of(part)
    try:
        bound = signature.bind_partial(*[None] * (num_given + count), **dict.fromkeys(names))
    except TypeError:  # some of them are given by name, which an annotation cannot say
        return ""
    missing = [
        name
        for name, one in signature.parameters.items()
        if name not in bound.arguments and one.default is one.empty and one.kind not in VARIADIC
    ]
    if not missing:
        return ""
    verb = "is" if len(missing) == 1 else "are"
    return f"{title(part)} requires {', '.join(missing)}, which {verb} not set."


_SHOWN = 60  # letters of a value


class Misfit(NamedTuple):
    """A value that does not fit.

    Attributes:
      path: where it is.
      value: what it is.
      hint: the annotation there.
      num_others: how many more do not fit in the same list or dict.
    """

    path: str
    value: Any
    hint: Any
    num_others: int = 0


def misfit_in(path: str, value: Any, hint: Any) -> Misfit:
    """The first item in a value that does not fit, however deep; the value where it is no item.

    Args:
      path: the place of the value.
      value: what does not fit.
      hint: the annotation that it does not fit.
    """
    found = Misfit(path, value, hint)
    while wrong := list(_wrong_items(found)):
        found = wrong[0]._replace(num_others=len(wrong) - 1)
    return found


def shown(value: Any) -> str:
    """A value in a message, on one line."""
    if isinstance(value, fdl.Buildable):
        return f"the part {title(value)}"
    text = " ".join(repr(value).split()) if isinstance(value, list | tuple | dict) else repr(value)
    return f"{text:.{_SHOWN}}"


def _wrong_items(one: Misfit) -> Iterator[Misfit]:
    if not (isinstance(one.value, list | tuple | dict) and _is_asked(one.value, one.hint)):
        return
    if isinstance(one.value, dict):
        if not all(fits(key, key_hint(one.hint)) for key in one.value):
            return
        items = [(f"[{key!r}]", key, item) for key, item in one.value.items()]
    else:
        items = [(f"[{i}]", i, item) for i, item in enumerate(one.value)]
    for step, key, item in items:
        hint = element_hint(one.hint, key)
        if not fits(item, hint):
            yield Misfit(join(one.path, step), item, hint)


def _is_asked(value: Any, hint: Any) -> bool:
    """Whether a hint asks for such a container, whatever is in it."""
    origins = [typing.get_origin(one) or one for one in members_of(hint)]
    return any(
        typing.is_typeddict(one) or (inspect.isclass(one) and isinstance(value, one))
        for one in origins
    )


_HOLDERS = (list, tuple, set, frozenset, collections.deque, Mapping)


@gc_paused()
def check(root: Any) -> Any:
    """Returns the graph as it is, when nothing is wrong with it.

    Finds arguments that are required and missing, values and parts that do not fit their
    annotation, and parts that Fiddle would hand over unbuilt without a word.

    Raises:
      ConfigErrors: every mistake, in one go.
    """
    raise_all(node_errors(nodes(root)))
    return root


def node_errors(found: list[Node]) -> list[ConfigError]:
    """Return what is wrong with the nodes of a graph, without binding it."""
    return [error for node in found for error in _mistakes(node)] + list(wrong_formulas(found))


def inherited_errors(found: list[Node], inherited: list[Inherited]) -> list[ConfigError]:
    """Return what is wrong with a bound graph that had no errors before: what it inherited."""
    if any(is_node(one.binding.value) for one in inherited) or any(
        is_formula(n.value) for n in found
    ):
        return node_errors(found)
    paths = {one.node.path for one in inherited if _is_misfit(one.part, one.key, one.binding.value)}
    return [one for node in found if paths and node.path in paths for one in _misfits(node)]


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
    arguments = all_arguments(part)
    if type(fdl.NO_VALUE) not in map(type, arguments.values()):
        return
    heard = unset_parameters(part)
    for key, value in arguments.items():
        if value is fdl.NO_VALUE and key not in heard:
            path = join(node.path, step_to(key))
            hint = hint_of(part, key)
            how = f": set:{path}=<{name_of(hint)}>." if can_be_typed(hint) else "."
            yield ConfigError(f"{path} is required by {title(part)} and not set{how}", place=path)


def _misfits(node: Node) -> Iterator[ConfigError]:
    part = node.value
    hints: dict[Any, Any] = {} if named_defaults(part) is None else hints_of(fdl.get_callable(part))
    sure = {
        key
        for key, value in raw_arguments(part).items()
        if type(value) is hints.get(str(key)) and type(value) in LEAVES and value == value
    }
    if len(sure) == len(raw_arguments(part)):
        return
    for key, value in set_arguments(part).items():
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
