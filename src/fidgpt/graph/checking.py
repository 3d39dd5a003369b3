"""Checks of a whole graph before anything is built."""

import collections
import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.errors import ConfigError, raise_all
from fidgpt.graph import fiddle, hints
from fidgpt.graph.binding import unset_parameters
from fidgpt.graph.formulas import means_formula
from fidgpt.graph.paths import describe
from fidgpt.graph.walk import IS_PART, LEAVES, Node, children, is_node, join, nodes, step_to, title

_HOLDERS = (list, tuple, set, frozenset, collections.deque, Mapping)


@gc_paused()
def check(root: Any) -> Any:
    """Return a graph as it is if nothing is wrong with it.

    Finds arguments that are required and missing, values and nodes that do not fit their
    annotation, and nodes that Fiddle would silently pass on unbuilt.

    Raises:
      ConfigErrors: every error, all at once.
    """
    raise_all(node_errors(nodes(root)))
    return root


def node_errors(graph_nodes: list[Node]) -> list[ConfigError]:
    """Return the errors of the nodes of a graph, without binding it."""
    return [error for node in graph_nodes for error in _errors(node)]


def _errors(node: Node) -> Iterator[ConfigError]:
    value = node.value
    if IS_PART[type(value)]:
        if isinstance(value, fdl.ArgFactory):
            yield from _outside_a_factory(node)
        if not isinstance(value, fdl.Partial):
            yield from _missing(node)
        yield from _type_errors(node)
    elif fiddle.kind_of(value) not in (list, tuple, dict) and not hasattr(value, "_fields"):
        yield from _not_built(node.path, value)
    for step, child in children(value):
        if not (type(child) in LEAVES or is_node(child)):
            yield from _not_built(join(node.path, step), child)


def _missing(node: Node) -> Iterator[ConfigError]:
    """Yield the required arguments that are neither set nor inherited."""
    part = node.value
    arguments = fiddle.all_arguments(part)
    if type(fdl.NO_VALUE) not in map(type, arguments.values()):
        return
    unset = unset_parameters(part)
    for key, value in arguments.items():
        if value is fdl.NO_VALUE and key not in unset:
            path, hint = join(node.path, step_to(key)), hints.hint_of(part, key)
            how = f": set:{path}=<{hints.name_of(hint)}>." if hints.can_be_typed(hint) else "."
            yield ConfigError(f"{path} is required by {title(part)} and not set{how}", place=path)


def _parts_around(node: Node) -> list[Any]:
    """Return what a node is if it is a part, else the parts that hold it, or else the root."""
    if isinstance(node.value, fdl.Buildable) or not node.parents:
        return [node.value]
    return [part for above, _ in node.parents for part in _parts_around(above)]


def is_wrong(part: fdl.Buildable, key: fiddle.Key, value: Any) -> bool:
    """Whether a value does not fit; a parameter's own default does, whatever its annotation."""
    return not hints.fits(value, hints.hint_of(part, key)) and value is not fiddle.default_of(
        part, key
    )


def _type_errors(node: Node) -> Iterator[ConfigError]:
    part = node.value
    for key, value in fiddle.set_arguments(part).items():
        if not is_wrong(part, key, value):
            continue
        path = join(node.path, step_to(key))
        inner, item, hint = path, value, hints.hint_of(part, key)
        while wrong := next(_wrong_items(inner, item, hint), None):
            inner, item, hint = wrong
        where = "" if inner == path else " there"
        how = f"\n  Set a value of that type:  set:{path}=..." if hints.can_be_typed(hint) else ""
        if isinstance(item, str) and means_formula(item, hint):
            how = f"\n  Make a text a formula:  fidgpt.graph.formulas.make_formula(cfg, {item!r})"
        yield ConfigError(
            f"{inner} is {describe(item)}, and {title(part)} takes {hints.name_of(hint)}{where}."
            f"{hints.missing_methods(item, hint)}{how}",
            place=path,
        )


def _wrong_items(path: str, value: Any, hint: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the items of a container that do not fit, if its kind does: path, value, annotation."""
    if not isinstance(value, list | tuple | dict):
        return
    origins = [typing.get_origin(member) or member for member in hints.members_of(hint)]
    if not any(inspect.isclass(origin) and isinstance(value, origin) for origin in origins):
        return
    is_dict = isinstance(value, dict)
    if is_dict and not all(hints.fits(key, hints.key_hint(hint)) for key in value):
        return
    for key, item in value.items() if is_dict else enumerate(value):
        own = hints.element_hint(hint, key)
        if not hints.fits(item, own):
            yield join(path, f"[{key!r}]"), item, own


def _outside_a_factory(node: Node) -> Iterator[ConfigError]:
    if not node.parents:
        yield ConfigError(
            f"the root is an ArgFactory of {title(node.value)}: make it a fdl.Config."
        )
    num_calls = 0
    for parent, step in node.parents:
        parts = _parts_around(parent)
        num_calls += sum(isinstance(part, fdl.Partial | fdl.ArgFactory) for part in parts)
        if num_calls > 1:
            both = " and ".join((node if len(node.parents) > 1 else parent).paths[:2])
            yield ConfigError(
                f"{both} hold one ArgFactory of {title(node.value)}, which creates another for "
                "each of them: make it a fdl.Config, or copy it (graph.clone_part).",
                place=node.path,
            )
            return
        if not all(isinstance(part, fdl.Partial | fdl.ArgFactory) for part in parts):
            path = join(parent.path, step)
            yield ConfigError(
                f"{path} is an ArgFactory of {title(node.value)}, which only a Partial or another "
                "ArgFactory calls: make it a fdl.Config.",
                place=path,
            )


def _not_built(path: str, value: Any) -> Iterator[ConfigError]:
    """Yield the error of a container that Fiddle does not look into, if it holds nodes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held: Any = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        held = getattr(value, "values", lambda: value)() if isinstance(value, _HOLDERS) else ()
    if any(isinstance(item, fdl.Buildable) for item in held):
        yield ConfigError(
            f"{path or 'the root'} is of type {type(value).__name__}, in which components are "
            "not built: use a plain list, tuple or dict, or make it a fdl.Config too.",
            place=path,
        )
