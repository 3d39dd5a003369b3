"""Edits of a graph: set, change, delete, replace, tie and untie what a selector matches."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.errors import ConfigError, at, listed
from fidgpt.graph import binding, bound, expressions, fiddle, formulas, hints, provenance, walk
from fidgpt.graph.codec import is_same
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.reading import Parts, TextReader
from fidgpt.graph.selectors import find, find_parameters, tags_of
from fidgpt.graph.walk import LEAVES, is_node, nodes, title
from fidgpt.graph.walk import parts as parts_of

Selector = str | type[fdl.Tag]
Planned = tuple[ParameterRef, Any]  # a parameter and its new value; fdl.NO_VALUE to remove it
NO_PARTS: Parts = MappingProxyType({})


class Edit(NamedTuple):
    """One parameter that an operation changed.

    Attributes:
      path: the parameter.
      before: its old value; `fdl.NO_VALUE` if it was not set.
      after: its new value, in the same way.
    """

    path: str
    before: Any
    after: Any


class KeptGraph:
    """A graph that stays as it is, and changed graphs that share its nodes away from the changes.

    Args:
      root: the graph.
      parts: constructors that a text may name.

    Attributes:
      nodes: returns the nodes of a graph that differs from this one in plain values alone.
      tags: returns the tags of its parameters.
    """

    def __init__(self, root: Any, parts: Parts) -> None:
        self._original, self._parts = root, parts
        self._reader = TextReader(root, parts)
        self._find = functools.cache(functools.partial(find_parameters, root))
        self.nodes = functools.cache(functools.partial(nodes, root))
        self.tags = functools.cache(functools.partial(tags_of, root))
        self._made: dict[str, tuple[dict[int, Any], set[tuple[int, fiddle.Key]], KeptGraph]] = {}
        self._plain: list[Planned] = []  # values that differ from the original's

    @functools.cached_property
    def root(self) -> Any:
        """The graph, which must not change any more."""
        if not self._plain:
            return self._original
        graph_nodes = self.nodes()
        around = {id(ref.container) for ref, _ in self._plain}
        for node in reversed(graph_nodes):
            if id(node.value) in around:
                around |= {id(parent.value) for parent, _ in node.parents}
        kept = [node.value for node in graph_nodes if id(node.value) not in around]
        copies = walk.copies_of(graph_nodes, kept=kept)
        for ref, value in self._plain:
            ParameterRef(copies[id(ref.container)], ref.key).write(value)
        return copies[id(self._original)]

    def planned(self, selector: Selector, sign: str, text: str) -> list[Planned]:
        """Return what `set_text` would set; with a sign, what `change_by` would.

        Raises:
          ConfigError: as they do.
        """
        refs = self._find(selector)
        if not sign:
            return [(ref, self._reader.read(ref, text)) for ref in refs]
        leading = _leading(self._original, refs) or refs
        return [(ref, self._reader.changed(ref, sign, text.strip())) for ref in leading]

    def changed(self, selector: Selector, sign: str, text: str) -> "KeptGraph":
        """Return a changed graph; one that differs in plain values alone is copied when asked for.

        Raises:
          ConfigError: as `set_text` and `change_by` do.
        """
        planned = self.planned(selector, sign, text)
        old = {(id(ref.container), ref.key) for ref, _ in self._plain if sign}
        is_plain = all({type(ref.value), type(value)} <= LEAVES for ref, value in planned)
        is_known = is_plain and not any((id(ref.container), ref.key) in old for ref, _ in planned)
        if self._plain and not is_known:
            return KeptGraph(self.root, self._parts).changed(selector, sign, text)
        for ref, value in planned:
            ref.check(value)
        new = self.differing(self._plain + planned)
        return new if is_plain else KeptGraph(new.root, self._parts)

    def changed_by(self, name: str, code: Callable[[Any], None]) -> "KeptGraph":
        """Return the graph as code changes it.

        The code runs once for all graphs that differ in plain values that it neither reads nor
        sets.

        Args:
          name: of the code.
          code: called with a copy.

        Raises:
          ConfigError: whatever the code raises.
        """
        if name not in self._made:
            copies, touched = walk.copies_of(self.nodes()), set[tuple[int, fiddle.Key]]()
            with fiddle.recording([copy for copy in copies.values() if _is_part(copy)], touched):
                code(root := copies[id(self._original)])
            self._made[name] = copies, touched, KeptGraph(root, self._parts)
        copies, touched, changed = self._made[name]
        plain = [(ParameterRef(copies[id(r.container)], r.key), value) for r, value in self._plain]
        for ref, _ in plain:
            if not _is_part(ref.container) or (id(ref.container), ref.key) in touched:
                code(root := walk.clone(self.root))
                return KeptGraph(root, self._parts)
        kept = {id(node.value) for node in changed.nodes()}
        return changed.differing([pair for pair in plain if id(pair[0].container) in kept])

    def differing(self, plain: list[Planned]) -> "KeptGraph":
        """Return a graph that differs from the original in these values."""
        new = copy.copy(self)
        vars(new).update(_plain=plain)
        vars(new).pop("root", None)
        return new


def set_text(root: Any, selector: Selector, text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Set the value that a text means by the annotation, at every parameter of a selector.

    Args:
      root: the graph.
      selector: a path, a selector of many parameters, or a tag.
      text: a value, a formula with names in braces, or a node such as `RoPE(theta=5e5)`.
      parts: constructors that the text may name.

    Returns:
      What changed; nothing where all parameters had that value.

    Raises:
      ConfigError: the selector matches nothing, or the text means nothing that fits one of its
        parameters; the graph is as it was.
    """
    return _carry_out_unless_equal(root, KeptGraph(root, parts).planned(selector, "", text))


def delete(root: Any, selector: str) -> list[Edit]:
    """Remove values, so that defaults apply, and parameters with a tag inherit again.

    An entry of a dict is removed from it; an item of a list cannot be, because the paths of those
    behind it would change.

    Returns:
      What changed; nothing where nothing was set.

    Raises:
      ConfigError: the selector matches nothing, or an item of a list or tuple.
    """
    return carry_out((ref, fdl.NO_VALUE) for ref in find_parameters(root, selector))


def change_by(
    root: Any, selector: Selector, sign: str, text: str, *, parts: Parts = NO_PARTS
) -> list[Edit]:
    """Multiply, add to or subtract from the number at every parameter that a selector matches.

    A number that is set, or a default, becomes another number; an inherited or computed one
    becomes a formula of its present value. A parameter that inherits, or is computed from, another
    matched one follows it, and is not changed itself. To a list, tuple or dict, `+` adds items.

    Args:
      root: the graph.
      selector: a path, a selector of many parameters, or a tag.
      sign: `*`, `+` or `-`.
      text: by how much: a number, arithmetic, or a formula; or the items to add: `[1, 2]`.
      parts: constructors that items may name.

    Returns:
      What changed.

    Raises:
      ConfigError: there is neither a number nor a list, or the result does not fit; the graph is
        as it was.
    """
    return carry_out(KeptGraph(root, parts).planned(selector, sign, text))


def tie(root: Any, selector: str, source: str) -> list[Edit]:
    """Make every parameter that a selector matches hold the very node that `source` holds.

    Returns:
      What changed; nothing where they hold it already.

    Raises:
      ConfigError: there is no node at the source, it is created for every call, it does not fit,
        or it would contain itself; the graph is as it was.
    """
    part = _part_at(find_parameter(root, source))
    if isinstance(part, fdl.ArgFactory):
        raise ConfigError(
            f"{source} is created for every call (an ArgFactory), so that two parameters that "
            "hold it would still get one each: make it a fdl.Config first."
        )
    inner = {id(node.value) for node in nodes(part)}
    refs = find_parameters(root, selector)
    for ref in refs:
        if id(ref.container) in inner:
            raise ConfigError(
                f"{ref.path} lies inside {source} ({title(part)}), which would contain itself."
            )
    return carry_out((ref, part) for ref in refs)


def untie(root: Any, selector: str) -> list[Edit]:
    """Give every parameter that a selector matches its own copy of the node that it shares.

    The copy holds the same inner nodes, as `clone_part` does. Where all parameters that share a
    node are matched, the first of them keeps it.

    Returns:
      What changed.

    Raises:
      ConfigError: a parameter holds no node, or none of them is shared; the graph is as it was.
    """
    refs = find_parameters(root, selector)
    shared = {id(node.value): node for node in nodes(root) if node.is_shared}
    together: dict[int, list[ParameterRef]] = {}
    for ref in refs:
        if id(_part_at(ref)) in shared:
            together.setdefault(id(ref.value), []).append(ref)
    if not together:
        paths = [node.path for node in shared.values()]
        known = f"Shared are {listed(paths, most=6)}." if paths else "No part is shared."
        raise ConfigError(f"nothing else shares {refs[0].path} ({title(refs[0].value)}). {known}")
    return carry_out(
        (ref, walk.clone_part(ref.value))
        for key, matched in together.items()
        for ref in matched[len(matched) == len(shared[key].parents) :]
    )


def use(root: Any, selector: str, text: str, *, parts: Parts) -> list[Edit]:
    """Replace each node that a selector matches by one that `text` names.

    The new node keeps the values, tags and inner nodes of the parameters that both have, and then
    takes the arguments in the text. A shared node stays one node: all parameters that hold it hold
    the new one, whichever of them are matched. Parameters that are unset or None get a new node.
    What a new node requires and the old one lacks is inherited as in `swap_all`.

    Args:
      root: the graph.
      selector: a path or a selector of many parameters.
      text: a name, or a call such as `RoPE(theta=5e5)`.
      parts: the constructors that may be named.

    Returns:
      What changed: each parameter that holds another node now.

    Raises:
      ConfigError: there is no such part or argument, a parameter holds a plain value, or the new
        node does not fit there; the graph is as it was.
    """
    reader = TextReader(root, parts)
    call, refs = expressions.parse_call(text), find_parameters(root, selector)
    if (function := reader.part_named(call.name, refs[0].hint)) is None:
        raise ConfigError(reader.why_no_part(refs[0], selector, text))
    planned: list[Planned] = []
    olds: dict[int, ParameterRef] = {}
    for ref in refs:
        if _is_part(ref.value):
            olds.setdefault(id(ref.value), ref)
            continue
        with at(ref.path):
            planned.append((ref, reader.first_part(ref, function, call)))
    news: dict[int, fdl.Buildable] = {}
    for key, ref in olds.items():
        with at(call.name):
            new = swapped(ref.value, function)
            if not hints.fits(new, ref.hint) and (kind := reader.kind_for(ref, function)):
                new = swapped(ref.value, function, kind=kind)  # such as an object that is called
            news[key] = reader.with_arguments(ref, new, call)
    _tag_as_outside(root, news.values())
    return _carry_out_unless_equal(root, [*planned, *_replacements(root, news)])


def swapped(
    part: fdl.Buildable,
    function: Any,
    *,
    renamed: Mapping[str, str] | None = None,
    kind: type[fdl.Buildable] | None = None,
) -> Any:
    """Return a node that calls `function`, with the arguments that both take.

    Values and tags of a parameter are kept, so that an inherited value stays inherited; inner
    nodes are the same. Arguments that `function` does not take are dropped.

    Args:
      part: the node to replace; it is not changed.
      function: what the new one calls.
      renamed: the names of parameters in `function`, where they differ.
      kind: of the new node; None for the kind of the old one.
    """
    new = (kind or type(part))(function)
    known, names = fiddle.set_arguments(part), renamed or {}
    for key in fiddle.all_arguments(part):
        own = names.get(key, key) if isinstance(key, str) else key
        if own not in fiddle.parameter_names(new):
            continue
        for tag in fdl.get_tags(part, key):
            fdl.add_tag(new, own, tag)
        if key in known:
            fiddle.assign(new, own, known[key])
        provenance.keep_assignments(new, part, key, known_as=own)
    return new


def swap_all(root: Any, *functions: Any, by: Any) -> list[fdl.Buildable]:
    """Replace every node that calls one of `functions` by `swapped(node, by)`.

    All parameters that held a node hold the new one. A node that calls `by` already stays. What
    `by` requires and the old node lacks is inherited as by the outermost parameter of its name,
    such as `hidden_dim`.

    Returns:
      The nodes that call `by` now.

    Raises:
      ConfigError: there is none to replace.
    """
    replaced = find(root, *functions)
    news = {id(part): swapped(part, by) for part in replaced if fdl.get_callable(part) is not by}
    _tag_as_outside(root, news.values())
    carry_out(_replacements(root, news))
    return [news.get(id(part), part) for part in replaced]


def carry_out(planned: Iterable[Planned]) -> list[Edit]:
    """Set every parameter to its new value; return where that changed something.

    Raises:
      ConfigError: a value may not be set, and none was.
    """
    planned = list(planned)
    for ref, value in planned:
        ref.check(value)
    changed = [(ref, value) for ref, value in planned if not is_same(ref.value, value)]
    edits = [Edit(ref.path, ref.value, value) for ref, value in changed]
    for ref, value in planned:
        ref.write(value)
    return edits


def _carry_out_unless_equal(root: Any, planned: list[Planned]) -> list[Edit]:
    """Carry out a plan; nothing changes where new nodes equal the old and are shared alike."""
    has_nodes = any(is_node(value) and not is_same(ref.value, value) for ref, value in planned)
    before = bound.BoundGraph(root, bound=False).digest[id(root)] if has_nodes else ""
    edits = carry_out(planned)
    is_equal = has_nodes and bound.BoundGraph(root, bound=False).digest[id(root)] == before
    return [] if is_equal else edits


def _tag_as_outside(root: Any, news: Iterable[fdl.Buildable]) -> None:
    """Tag what new nodes require and lack as the outermost parameter of the same name is."""
    known: dict[fiddle.Key, frozenset[Any]] = {}
    for node in parts_of(root):
        known = {**fiddle.nonempty_tags(node.value), **known}
    for new in news:
        taken = {*fiddle.set_arguments(new), *fiddle.nonempty_tags(new)}
        for name, parameter in fiddle.parameters_of(new).items():
            if name not in taken and parameter.default is parameter.empty:
                for tag in known.get(name, ()):
                    fdl.add_tag(new, name, tag)


def _is_part(value: Any) -> bool:
    return isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls)


def _part_at(ref: ParameterRef) -> fdl.Buildable:
    if _is_part(ref.value):
        return ref.value
    raise ConfigError(f"{ref.path} is {describe(ref.value)}, and only a component can be shared.")


def _replacements(root: Any, news: Mapping[int, fdl.Buildable]) -> Iterator[Planned]:
    """Yield every parameter that holds a node to be replaced, with the new node.

    Inside another replaced node it is the parameter of the new one, if that holds the same.

    Args:
      root: the graph.
      news: the new nodes, by the identities of the old ones.
    """
    for node in nodes(root) if news else ():
        if (new := news.get(id(node.value))) is None:
            continue
        if not node.parents:
            raise ConfigError("the root cannot be replaced: start from another config.")
        for ref in (find_parameter(root, path) for path in node.paths):
            outer = news.get(id(ref.container))
            if outer is None:
                yield ref, new
            elif fiddle.set_arguments(outer).get(ref.key) is node.value:
                yield dataclasses.replace(ref, container=outer), new


def _leading(root: Any, refs: list[ParameterRef]) -> list[ParameterRef]:
    """Return the parameters whose values depend on none of the others."""
    selected = {(id(ref.container), ref.key) for ref in refs}
    sources: dict[tuple[int, fiddle.Key], tuple[int, fiddle.Key]] = {}
    with contextlib.suppress(ConfigError):  # a conflict is for `bind` to report
        for item in binding.inherit_all(nodes(root), is_whole=False) if len(selected) > 1 else ():
            sources[id(item.part), item.key] = id(item.binding.node.value), item.binding.key

    def inputs(ref: ParameterRef) -> Iterator[tuple[int, fiddle.Key] | None]:
        """Yield the parameters that a value is inherited or computed from."""
        yield sources.get((id(ref.container), ref.key))
        for node in parts_of(ref.value) if hints.is_quantity(ref.value) else ():
            part = node.value
            yield from (sources.get((id(part), key)) for key in binding.unset_parameters(part))
            for name in formulas.names_in(part.text) if formulas.is_formula(part) else ():
                with contextlib.suppress(ConfigError):  # a tag, or a path that leads nowhere yet
                    named = find_parameter(root, name)
                    yield id(named.container), named.key

    return [ref for ref in refs if len(selected) < 2 or selected.isdisjoint(inputs(ref))]
