"""Binding: a tag is a variable, the graph is its scope, and unset parameters inherit from it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.errors import ConfigError, listed, raise_all
from fidgpt.graph import codec, fiddle, formulas, hints, walk
from fidgpt.graph.walk import IS_PART, Node, is_node, join, nodes, parts, step_to, title

Tag = Any  # a class derived from fdl.Tag, which the metaclass hides from type checkers


@dataclass(frozen=True, slots=True)
class Binding:
    """A value of a tag, and the argument that sets it."""

    value: Any
    node: Node
    key: fiddle.Key

    @property
    def path(self) -> str:
        return join(self.node.path, step_to(self.key))

    def agrees(self, other: "Binding | Conflict | None") -> bool:
        """Whether both have one value: the same node, or equal plain values."""
        if not isinstance(other, Binding):
            return False
        for binding in (self, other):
            binding.node.compared.add(binding.key)
        return codec.is_same(self.value, other.value)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two values of one tag.

    Attributes:
      node: a node that two parameters hold, or a node with two arguments that set the tag.
      sides: for each value the path by which it comes, and its binding; None if it is unset there.
    """

    node: Node
    sides: tuple[tuple[str, Binding | None], tuple[str, Binding | None]]


Scope = dict[Tag, Binding | Conflict]
_NO_BINDINGS: Mapping[fiddle.Key, Binding] = {}


class _Scopes:
    """The scope of every node, filled in one pass that meets parents before children."""

    def __init__(self) -> None:
        self._inside: dict[int, Scope] = {}
        self._set: dict[int, tuple[Scope, dict[fiddle.Key, frozenset[Tag]]]] = {}

    def enter(self, node: Node) -> None:
        scope: Scope = {}
        for i, parent in enumerate(node.parents):
            other = self.at(parent[0], parent[1][1:] if parent[1].startswith(".") else None)
            if i == 0:
                scope = other
            elif other is not scope:
                paths = (join(holder.path, step) for holder, step in (node.parents[0], parent))
                scope = _merged(node, *zip(paths, (scope, other), strict=True))
        if own := _tags(node.value, is_set=True):
            self._set[id(node.value)] = scope, own
            scope = _overlaid(scope, node, own)
        self._inside[id(node.value)] = scope

    def at(self, node: Node, key: fiddle.Key | None) -> Scope:
        """Return the scope of an argument of a node that was entered.

        An argument is outside its own scope: `HiddenDim.new(fdl.Config(half, HiddenDim.new()))` is
        half of what the enclosing nodes set.
        """
        around, own = self._set.get(id(node.value), ({}, {}))
        if key not in own:
            return self._inside[id(node.value)]
        return _overlaid(around, node, {name: tags for name, tags in own.items() if name != key})


def _tags(value: Any, *, is_set: bool) -> dict[fiddle.Key, frozenset[Tag]]:
    """Return the tagged parameters that are set, or those that are not; none of a container."""
    if not IS_PART[type(value)] or not fiddle.argument_tags(value):
        return {}
    known = fiddle.raw_arguments(value)
    own_tags = {
        key: frozenset(tags)
        for key, tags in fiddle.argument_tags(value).items()
        if tags and (key in known) == is_set
    }
    if len(own_tags) < 2:
        return own_tags
    order = fiddle.set_arguments(value) if is_set else fiddle.all_arguments(value)
    return {key: own_tags[key] for key in order if key in own_tags}


def unset_parameters(part: Any) -> dict[fiddle.Key, frozenset[Tag]]:
    """Return the parameters of a node that carry a tag and are not set; none of a container."""
    return _tags(part, is_set=False)


def _overlaid(around: Scope, node: Node, tagged: dict[fiddle.Key, frozenset[Tag]]) -> Scope:
    """Return a scope with a node's bindings, which also hide outer bindings of derived tags."""
    scope = around
    own: dict[Tag, Binding] = {}
    for key, tags in tagged.items():
        new = Binding(fiddle.raw_arguments(node.value)[key], node, key)
        for tag in tags:
            scope = {t: b for t, b in scope.items() if t in own or not issubclass(t, tag)}
            old = own.setdefault(tag, new)
            agrees = old is new or old.agrees(new)
            scope[tag] = old if agrees else Conflict(node, ((old.path, old), (new.path, new)))
    return scope


def _merged(node: Node, first: tuple[str, Scope], second: tuple[str, Scope]) -> Scope:
    """Return the scope of a node that is reached by two paths."""
    merged = {tag: value for tag, value in first[1].items() if second[1].get(tag) is value}
    for tag in (first[1].keys() | second[1].keys()) - merged.keys():
        here, there = _look_up(tag, first[1]), _look_up(tag, second[1])
        if isinstance(here, Conflict) or (isinstance(here, Binding) and here.agrees(there)):
            merged[tag] = here
        elif isinstance(there, Conflict):
            merged[tag] = there
        else:
            merged[tag] = Conflict(node, ((first[0], here), (second[0], there)))
    return merged


def _look_up(tag: Tag, scope: Scope) -> Binding | Conflict | None:
    """Return the binding of a tag, or of one that it is derived from."""
    return next((scope[base] for base in tag.__mro__ if base in scope), None)


def _look_up_all(part: Any, tags: frozenset[Tag], scope: Scope) -> Binding | Conflict | None:
    """Return what a parameter with these tags inherits; two tags must not disagree."""
    if len(tags) == 1:
        return _look_up(next(iter(tags)), scope)
    first = None
    for bound in (_look_up(tag, scope) for tag in sorted(tags, key=str)):
        if isinstance(bound, Conflict):
            return bound
        if isinstance(first, Binding) and bound is not None and not first.agrees(bound):
            return Conflict(Node(part), ((first.path, first), (bound.path, bound)))
        first = first or bound
    return first


@dataclass(eq=False, slots=True)
class Inherited:
    """An unset parameter and what it inherits.

    Attributes:
      node: the node whose parameter it is.
      key: its name, or its number where it has none.
      binding: the value, and the argument that sets it.
    """

    node: Node
    key: fiddle.Key
    binding: Binding

    @property
    def part(self) -> fdl.Buildable:
        """The object whose parameter it is."""
        return self.node.value

    @property
    def path(self) -> str:
        """The parameter's path."""
        return join(self.node.path, step_to(self.key))


@gc_paused()
def bind(root: Any) -> Any:
    """Return a copy of a graph in which every unset parameter has the value that it inherits.

    A parameter that carries a tag and no value takes the value of the nearest enclosing node that
    sets the tag, or a tag that it is derived from, as a name in Python means what the nearest
    enclosing scope binds it to. A value that is itself a node is computed in the scope of the
    argument that sets it. Where no node sets the tag, the parameter's default applies. Formulas get
    the values that they name. Binding twice changes nothing, and a node of a bound graph stands for
    itself: `bind(cfg).model` can be saved and compared alone. Its arguments refuse changes, which
    would not reach the parameters that inherit: change `root`, and bind it again. Copies take
    changes, and inherit nothing: their inherited values are set.

    Raises:
      ConfigErrors: tags that no node sets, or that have two values: for a shared node, by two
        arguments of one node, or under two tags of one parameter. All are reported at once.
      ConfigError: a node contains itself, or a value is computed from itself.
    """
    return Resolved.of(root).bound


class Resolved:
    """A graph, the bindings that its unset parameters inherit, and its bound copy, computed once.

    Functions of a whole graph, such as `build`, `outline`, `why_text`, `dump` and `fingerprint`,
    take one in place of the graph, which must not change any more.

    Attributes:
      root: the graph.
      nodes: its nodes, parents first.
      inherited: what each unset parameter inherits.
    """

    def __init__(self, root: Any, *, is_whole: bool = True) -> None:
        """Resolve a graph.

        Args:
          root: the graph.
          is_whole: as in `inherit_all`.

        Raises:
          ConfigErrors, ConfigError: as `bind` does.
        """
        self.root = root
        self.nodes = nodes(root)
        self.inherited = inherit_all(self.nodes, is_whole=is_whole)

    @classmethod
    def of(cls, root: Any, *, is_whole: bool = True) -> "Resolved":
        """Return a graph resolved; it may be so already."""
        return root if isinstance(root, cls) else cls(root, is_whole=is_whole)

    def inherited_by(self, part: Any) -> Mapping[fiddle.Key, Binding]:
        """Return the bindings that the unset parameters of a part inherit."""
        return self._bindings.get(id(part), _NO_BINDINGS)

    @cached_property
    def node_of(self) -> dict[int, Node]:
        """Every node by the identity of its value."""
        return {id(node.value): node for node in self.nodes}

    @cached_property
    def _bindings(self) -> dict[int, dict[fiddle.Key, Binding]]:
        bindings: dict[int, dict[fiddle.Key, Binding]] = {}
        for item in self.inherited:
            bindings.setdefault(id(item.part), {})[item.key] = item.binding
        return bindings

    @property
    def bound(self) -> Any:
        """The bound copy of the graph."""
        return self.copies[id(self.root)]

    @cached_property
    def copies(self) -> dict[int, Any]:
        """The bound copy of every node, by the identity of the node."""
        copies = walk.copies_of(self.nodes)
        bound = copies[id(self.root)]
        for item in self.inherited:
            value = copies.get(id(item.binding.value), item.binding.value)
            _inherit(copies[id(item.part)], item, value)
        for node in self.nodes:
            for key in unset_parameters(copies[id(node.value)]):
                fiddle.assign(copies[id(node.value)], key, fiddle.default_of(node.value, key))
        if any(formulas.is_formula(node.value) for node in self.nodes):
            formulas.look_up_names(bound, parts(bound))
        elif any(is_node(item.binding.value) for item in self.inherited):
            nodes(bound)  # raises if a value contains itself
        for node in self.nodes:
            if IS_PART[type(node.value)]:
                fiddle.freeze(copies[id(node.value)], partial(self._refused, node))
        return copies

    def _refused(self, node: Node, key: fiddle.Key) -> ConfigError:
        """Return the error for an attempt to change an argument of the bound copy of a node."""
        path, source = join(node.path, step_to(key)), self.inherited_by(node.value).get(key)
        inherits = f" It inherits its value from {source.path}: set that." if source else ""
        return ConfigError(
            f"{path} cannot change, because this graph is bound.{inherits} Change "
            "the graph that was bound, and bind it again.",
            place=path,
        )


def numbers_in(root: Any) -> Callable[[Any, fiddle.Key], Any]:
    """Return a function for the value that an argument of a node has once the graph is bound.

    That is the number of a formula or another quantity, and `fdl.NO_VALUE` where none is known.
    The graph may be `Resolved` already.
    """

    @cache
    def resolved() -> Resolved:
        return Resolved.of(root, is_whole=False)

    def number(part: Any, key: fiddle.Key) -> Any:
        with contextlib.suppress(ConfigError):  # which is reported when the graph is used
            bound = resolved().copies[id(part)]
            return hints.computed(fiddle.all_arguments(bound).get(key, fdl.NO_VALUE))
        return fdl.NO_VALUE

    return number


def _inherit(part: fdl.Buildable, inherited: Inherited, value: Any) -> None:
    """Set an argument, with the history of the argument that it is inherited from."""
    if not isinstance(inherited.key, str):
        fiddle.assign(part, inherited.key, value)
        return
    fiddle.raw_arguments(part)[inherited.key] = value
    history = fiddle.argument_history(inherited.binding.node.value).get(inherited.binding.key, ())
    fiddle.argument_history(part)[inherited.key] += history[-1:]


def inherits(root: Any, part: fdl.Buildable, key: fiddle.Key) -> bool:
    """Whether an unset parameter inherits a value, as an enclosing node sets its tag."""
    try:
        inherited = inherit_all(nodes(root), is_whole=False)
    except ConfigError:  # some tag has two values
        return bool(unset_parameters(part).get(key))
    return any(item.part is part and item.key == key for item in inherited)


@gc_paused()
def resolve(root: Any) -> list[Inherited]:
    """Return what each unset parameter of a graph inherits, without changing anything.

    Raises:
      ConfigErrors: as `bind` does.
    """
    return Resolved.of(root).inherited


def inherit_all(graph_nodes: Iterable[Node], *, is_whole: bool = True) -> list[Inherited]:
    """Return what each unset parameter of some nodes, parents first, inherits.

    Args:
      graph_nodes: the nodes.
      is_whole: whether they are a whole graph, in which a tag that no node sets is an error.

    Raises:
      ConfigErrors: as `bind` does.
    """
    inherited: list[Inherited] = []
    unset: dict[frozenset[Tag], list[tuple[Node, str]]] = {}
    conflicts: dict[Any, tuple[Conflict, list[str]]] = {}
    scopes = _Scopes()
    for node in graph_nodes:
        scopes.enter(node)
        for key, tags in unset_parameters(node.value).items():
            bound = _look_up_all(node.value, tags, scopes.at(node, key))
            if isinstance(bound, Binding):
                inherited.append(Inherited(node, key, bound))
            elif isinstance(bound, Conflict):
                alike = tags, *(path for path, _ in bound.sides)
                conflicts.setdefault(alike, (bound, []))[1].append(join(node.path, step_to(key)))
            elif is_whole and fiddle.default_of(node.value, key) is fdl.NO_VALUE:
                unset.setdefault(tags, []).append((node, join(node.path, step_to(key))))
    errors = [error for tags, group in unset.items() for error in _unset_errors(tags, group)]
    raise_all(errors + [_conflict_error(key[0], *conflict) for key, conflict in conflicts.items()])
    return inherited


def _unset_errors(tags: frozenset[Tag], unset: list[tuple[Node, str]]) -> Iterator[ConfigError]:
    """Yield the errors of parameters, each with its node, whose tags no enclosing node sets."""
    name = min(tag.__name__ for tag in tags)
    paths: list[str] = []
    for node, path in unset:
        above = node.parents[0][0] if node.parents else node
        formula = above.parents[0][0] if above.parents else above
        if formulas.is_formula(formula.value) and above is not formula:
            why = f"{formula.path} is {formula.value.text}, but no enclosing node sets {name}"
            remedy = f"Write the path of a number in its place, or {formula.path}*=2 to double it."
            yield ConfigError(f"{why}.\n  {remedy}", place=formula.path)
        else:
            paths.append(path)
    if paths:
        first = next(node for node, path in unset if path == paths[0])
        around = f"cfg.{_enclosing(first, paths)}".rstrip(".")
        yield ConfigError(
            f"{_inheriting(paths, tags)}, but no enclosing node sets {name}.\n"
            f"  Set it there alone:  set:{paths[0]}=...\n"
            f"  or for everything inside:  {around}.<parameter> = {name}.new(...)",
            place=paths[0],
            sources=paths,
        )


def _enclosing(node: Node, paths: list[str]) -> str:
    """Return the path of the nearest enclosing node that contains all paths."""
    while node.parents:
        node = node.parents[0][0]
        inside = (join(node.path, "."), node.path + "[")
        if isinstance(node.value, fdl.Buildable) and all(p.startswith(inside) for p in paths):
            break
    return node.path


def _conflict_error(tags: frozenset[Tag], conflict: Conflict, paths: list[str]) -> ConfigError:
    """Return the error of parameters that would inherit two values."""
    remedy = f"Set it there:  set:{paths[0]}=..."
    if any(source is None or source.path != through for through, source in conflict.sides):
        name = title(conflict.node.value)
        remedy = f"Both reach one {name}. {remedy}, or give each parameter its own {name}."
    lines = [f"{_inheriting(paths, tags)}, which has two values:"]
    for through, source in conflict.sides:
        value, way = "unset", f"through {through}: "
        if source is not None:
            is_part = isinstance(source.value, fdl.Buildable)
            shown = f"{title(source.value)}(...)" if is_part else f"{source.value!s:.60}"
            value, way = f"{shown}, set by {source.path}", "" if through == source.path else way
        lines.append(f"  {way}{value}")
    sources = [path for way, side in conflict.sides for path in (way, side and side.path) if path]
    return ConfigError(
        "\n".join([*lines, f"  {remedy}"]), place=paths[0], sources=[*paths, *sources]
    )


def _inheriting(paths: list[str], tags: frozenset[Tag]) -> str:
    names = " and ".join(sorted(tag.__name__ for tag in tags))
    return f"{listed(paths, most=2)} {'inherits' if len(paths) == 1 else 'inherit'} {names}"
