"""Selectors: paths with wildcards, slices, classes and tags that match many parameters."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.errors import ConfigError, MissingEntry, listed, suggest
from fidgpt.graph import codec, fiddle, paths
from fidgpt.graph.paths import ParameterRef
from fidgpt.graph.walk import IS_PART, is_node, parts, title

_SPECIAL = frozenset("*:@")  # no plain path has these outside of quotes


def find_parameters(root: Any, selector: str | type[fdl.Tag]) -> list[ParameterRef]:
    """Return the parameters that match a selector, each once, in reading order.

    Args:
      root: the graph.
      selector: a path, a selector, or a tag: then the parameters that set it or a tag derived
        from it; where none does, those that would inherit it.

    Raises:
      ConfigError: the selector is malformed or matches nothing; the nearest names are suggested.
    """
    if not isinstance(selector, str):
        return _carriers_of(root, selector)
    if _SPECIAL.isdisjoint(selector):
        return [paths.find_parameter(root, selector)]
    steps = paths.parse_selector(selector)
    first = next((i for i, (kind, _) in enumerate(steps) if kind != "key"), len(steps))
    keys, left = [key for _, key in steps[:first]], steps[first:]
    refs = [paths.follow(root, keys, selector) if keys else ParameterRef.to_root(root)]
    while left:
        (kind, named), *left = left
        if kind in ("called", "tag"):
            called = [fdl.get_callable(ref.value) for ref in _parts(refs)]
            known = {id(x): x for x in (called if kind == "called" else tags_below(refs))}
            wanted, keys = _look_up([*known.values()], named, is_tag=kind == "tag")
            left = [*(("key", key) for key in keys), *left]
        else:
            wanted = named
        if not (matched := _match(refs, kind, wanted)):
            mistake = MissingEntry if kind == "slice" else ConfigError
            why = _why_none(refs, kind, named)
            raise mistake(f"{selector} selects nothing: {why}", place=refs[0].path)
        refs = matched
    refs = [paths.unwrapped(ref) for ref in refs if ref.above is not None]
    if not refs:
        raise ConfigError(f"{selector} is the whole graph: name a parameter in it.")
    return list({(id(ref.container), ref.key): ref for ref in refs}.values())


def _match(refs: list[ParameterRef], kind: str, named: Any) -> list[ParameterRef]:
    """Return what a step matches, given what the steps before it did."""
    if kind == "deep":
        return list(_below(refs))
    if kind == "called":
        return [ref for ref in _parts(refs) if any(fdl.get_callable(ref.value) is f for f in named)]
    if kind == "tag":
        return _set_or_all(_carriers(refs, named.__contains__))
    once = {id(ref.value): ref for ref in reversed(refs)}  # each node, by way of the first match
    refs = [ref for ref in refs if once[id(ref.value)] is ref]
    if kind == "key":
        held = (paths.inside(ref, named) for ref in refs if _has(ref.value, named))
        return [ref for ref in held if ref]
    if kind == "slice":
        chosen = slice(*(int(number) if number else None for number in named.split(":")))
        lists = [ref for ref in refs if isinstance(ref.value, list | tuple)]
        return [item for ref in lists for item in _held(ref)[chosen]]
    return [
        item
        for ref in refs
        for item in _held(ref)
        if not IS_PART[type(ref.value)] or isinstance(item.key, int)
    ]


def _has(value: Any, key: fiddle.Key) -> bool:
    """Whether a key is listed, rather than accepted as any other is by `**kwargs`."""
    is_part = isinstance(value, fdl.Buildable)
    return not is_part or key in fiddle.parameters_of(value) or key in fiddle.all_arguments(value)


def _held(ref: ParameterRef) -> list[ParameterRef]:
    """Return references to what a node holds."""
    value: Any = ref.value
    if IS_PART[type(value)]:
        value = fiddle.set_arguments(value)
    keys = value if isinstance(value, dict) else range(len(value)) if is_node(value) else ()
    return [ParameterRef(ref.value, key, ref) for key in keys]


def _below(refs: Iterable[ParameterRef]) -> Iterator[ParameterRef]:
    """Yield a reference to every node at or below some references once, in reading order."""
    met: set[int] = set()
    left = list(refs)[::-1]
    while left:
        ref = left.pop()
        value = ref.value
        if is_node(value) and id(value) not in met:
            met.add(id(value))
            yield ref
            left += _held(ref)[::-1]


def _parts(refs: Iterable[ParameterRef]) -> list[ParameterRef]:
    return [ref for ref in _below(refs) if IS_PART[type(ref.value)]]


def tags_below(refs: Iterable[ParameterRef]) -> set[Any]:
    """Return the tags of the parameters at or below some references."""
    carried = (fiddle.nonempty_tags(ref.value).values() for ref in _parts(refs))
    return {tag for parameters in carried for tags in parameters for tag in tags}


def tags_in(root: Any) -> dict[str, Any]:
    """Return the tags of the parameters of a graph, by name."""
    return {tag.__name__: tag for tag in tags_of(root)}


def tags_of(root: Any) -> set[Any]:
    """Return the tags of the parameters of a graph."""
    return tags_below([ParameterRef.to_root(root)])


def _carriers(refs: Iterable[ParameterRef], is_wanted: Callable[[Any], bool]) -> list[ParameterRef]:
    """Return the parameters at or below some references that carry a wanted tag."""
    return [
        ParameterRef(ref.value, key, ref)
        for ref in _parts(refs)
        for key, tags in fiddle.nonempty_tags(ref.value).items()
        if any(map(is_wanted, tags))
    ]


def _set_or_all(refs: list[ParameterRef]) -> list[ParameterRef]:
    """Return those that are set, which all others inherit; all of them where none is."""
    return [ref for ref in refs if ref.value is not fdl.NO_VALUE] or refs


def _carriers_of(root: Any, tag: type[fdl.Tag]) -> list[ParameterRef]:
    refs = [ParameterRef.to_root(root)]
    if carriers := _carriers(refs, lambda own: issubclass(own, tag)):
        return _set_or_all(carriers)
    known = tags_in(root)
    name = paths.path_of(tag) if tag.__name__ in known else tag.__name__
    raise ConfigError(
        f"no parameter of {title(root)} carries the tag {name}, so nothing would change. "
        f"{suggest(tag.__name__, map(paths.path_of, known.values()) if '.' in name else known)}"
    )


def _why_none(refs: list[ParameterRef], kind: str, named: Any) -> str:
    """Return why a step matches nothing."""
    first = refs[0]
    state = f"{first.path or 'the root'} is {paths.describe(first.value)}"
    if kind in ("called", "tag"):
        pieces = named.split(".")  # a module with a class in it, or a class with keys behind it
        name = ".".join(pieces[:-1]) if pieces[0] in sys.modules else pieces[0]
        called = [title(ref.value) for ref in _parts(refs)]
        what = f"no component there is a {name}"
        if kind == "tag":
            called = [tag.__name__ for tag in tags_below(refs)]
            what = f"no parameter there carries the tag {name}"
        return f"{what}. {suggest(name.rpartition('.')[2], called)}"
    if kind != "key":
        is_container = isinstance(first.value, list | tuple | dict)
        return f"{state}{'' if is_container else ', and has no entries'}."
    holders = [ref.value for ref in refs if isinstance(ref.value, fdl.Buildable)]
    names = {str(name) for part in holders for name in fiddle.all_arguments(part)}
    names |= {str(name) for ref in refs if isinstance(ref.value, dict) for name in ref.value}
    if not names and isinstance(named, str):
        return f"{state}, and has no parameters."
    return f"no component there has a parameter {named!r}. {suggest(str(named), names)}"


def _look_up(known: list[Any], dotted: str, *, is_tag: bool) -> tuple[list[Any], list[str]]:
    """Return what the longest beginning of a dotted name names, and the keys behind it.

    These are functions or tags of that name, and classes derived from one that has it. A name may
    begin with a module, or with the end of its path.

    Raises:
      ConfigError: it names several classes or functions, none derived from another.
    """
    pieces = dotted.split(".")
    for count in range(len(pieces), 0, -1):
        name = ".".join(pieces[:count])
        matches = {id(item): named for item in known if (named := _named(item, name))}
        defined = {paths.path_of(item): item for item in matches.values()}
        if len(defined) > 1:
            written = " or ".join(f"{'@' if is_tag else ':'}{path}" for path in defined)
            raise ConfigError(f"{name} is the name of {' and of '.join(defined)}: write {written}.")
        if matches:
            return [item for item in known if id(item) in matches], pieces[count:]
    return [], []


def _named(function: Any, name: str) -> Any:
    """Return the function, or the farthest of a class and its bases, that has a name."""
    own = function.__mro__ if isinstance(function, type) else (function,)
    named = [x for x in own if any(f".{path}".endswith(f".{name}") for path in _paths_of(x))]
    return named[-1] if named else None


def _paths_of(function: Any) -> tuple[str, str]:
    """Return the names of a function with its module, and with the outermost that exports it."""
    defined = paths.path_of(function)
    module, _, name = defined.rpartition(".")
    return defined, f"{codec.shortest(module, name)}.{name}"


def find(root: Any, *functions: Any) -> list[fdl.Buildable]:
    """Return every node under `root` that calls one of `functions` or a subclass of one.

    Raises:
      ConfigError: there is none.
    """
    matches = [node.value for node in parts(root) if _calls(node.value, functions)]
    if not matches:
        names = [getattr(function, "__name__", str(function)) for function in functions]
        called = {title(node.value) for node in parts(root)}
        alike = sorted(name for name in called if name.endswith((*names,)))
        has = f" It has {listed(alike, most=3)}." if alike else ""
        raise ConfigError(
            f"{title(root)} holds no {' or '.join(names)}, so there is nothing to change.{has}"
        )
    return matches


def holds(root: Any, *functions: Any) -> bool:
    """Return whether a node under `root` calls one of `functions` or a subclass of one."""
    return any(_calls(node.value, functions) for node in parts(root))


def _calls(part: fdl.Buildable, functions: tuple[Any, ...]) -> bool:
    called = fdl.get_callable(part)
    classes = tuple(function for function in functions if isinstance(function, type))
    return called in functions or (isinstance(called, type) and issubclass(called, classes))


def tagged(root: Any, tag: type[fdl.Tag]) -> list[tuple[fdl.Buildable, fiddle.Key]]:
    """Return every (node, parameter) under `root` that carries a tag or one derived from it."""
    carriers = _carriers([ParameterRef.to_root(root)], lambda own: issubclass(own, tag))
    return [(ref.container, ref.key) for ref in carriers]


def set_tag(root: Any, tag: type[fdl.Tag], value: Any) -> int:
    """Set a tag's value wherever it is set, and return at how many parameters.

    Parameters that inherit it stay unset, and follow. Where none sets it, because a default
    applies, every parameter that would inherit it is set.

    Raises:
      ConfigError: no parameter of the graph carries the tag.
    """
    refs = find_parameters(root, tag)
    for ref in refs:
        ref.write(value)
    return len(refs)
