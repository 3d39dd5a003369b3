"""Edits of a graph: set, change, delete, replace, tie and untie what a selector matches."""

import contextlib
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph import cloning, expressions, fiddle, formulas, hints, provenance, values
from fidgpt.graph.binding import inherit_all, inherits, unset_parameters
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.errors import ConfigError, at, listed, nearest
from fidgpt.graph.fitting import fitting as fitting_names
from fidgpt.graph.identity import is_same
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.selectors import find, find_parameters
from fidgpt.graph.walk import is_node, nodes, title
from fidgpt.graph.walk import parts as parts_of

B = TypeVar("B", bound=fdl.Buildable)
Selector = str | type[fdl.Tag]
Parts = Mapping[str, Callable[..., Any]]  # constructors and functions that a text may name
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


def set_text(root: Any, selector: Selector, text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Set what a text means, by the annotation, at every parameter that a selector matches.

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
    planned = [(ref, _read(root, ref, text, parts)) for ref in find_parameters(root, selector)]
    return _carry_out_unless_equal(root, planned)


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

    A number that is set, or a default, becomes another number; what is inherited or computed
    becomes a formula of what it was. A parameter that inherits, or is computed from, another
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
    found = find_parameters(root, selector)
    leading = _leading(root, found) or found
    return carry_out([(ref, _changed(root, ref, sign, text.strip(), parts)) for ref in leading])


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
    found = find_parameters(root, selector)
    for ref in found:
        if id(ref.container) in inner:
            raise ConfigError(
                f"{ref.path} lies inside {source} ({title(part)}), which would contain itself."
            )
    return carry_out((ref, part) for ref in found)


def untie(root: Any, selector: str) -> list[Edit]:
    """Give every parameter that a selector matches its own copy of the node that it shares.

    The copy holds the same inner nodes, as `clone_part` does. Where all parameters that share a
    node are matched, the first of them keeps it.

    Returns:
      What changed.

    Raises:
      ConfigError: a parameter holds no node, or none of them is shared; the graph is as it was.
    """
    found = find_parameters(root, selector)
    shared = {id(node.value): node for node in nodes(root) if node.is_shared}
    together: dict[int, list[ParameterRef]] = {}
    for ref in found:
        if id(_part_at(ref)) in shared:
            together.setdefault(id(ref.value), []).append(ref)
    if not together:
        paths = [node.path for node in shared.values()]
        known = f"Shared are {listed(paths, most=6)}." if paths else "No part is shared."
        raise ConfigError(f"nothing else shares {found[0].path} ({title(found[0].value)}). {known}")
    return carry_out(
        (ref, cloning.clone_part(ref.value))
        for key, matched in together.items()
        for ref in matched[len(matched) == len(shared[key].parents) :]
    )


def use(root: Any, selector: str, text: str, *, parts: Parts) -> list[Edit]:
    """Replace each node that a selector matches by one that `text` names.

    The new node keeps the values, tags and inner nodes of the parameters that both have, and then
    takes the arguments in the text. A shared node stays one node: all parameters that hold it hold
    the new one, whichever of them are matched. Parameters that are unset or None get a new node.

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
    call, found = expressions.parse_call(text), find_parameters(root, selector)
    if (function := _part_named(call.name, found[0].hint, parts)) is None:
        raise ConfigError(_no_part(root, found[0], selector, text, parts))
    planned: list[Planned] = []
    olds: dict[int, ParameterRef] = {}
    for ref in found:
        if _is_part(ref.value):
            olds.setdefault(id(ref.value), ref)
            continue
        with at(ref.path):
            planned.append((ref, _first_part(root, ref, function, call, parts)))
    news: dict[int, fdl.Buildable] = {}
    for key, ref in olds.items():
        with at(call.name):
            news[key] = _with_arguments(root, ref, swapped(ref.value, function), call, parts)
    return _carry_out_unless_equal(root, [*planned, *_replacements(root, news)])


def swapped(part: B, function: Any, *, renamed: Mapping[str, str] | None = None) -> B:
    """Return a node that calls `function`, with the arguments that both take.

    Values and tags of a parameter are kept, so that an inherited value stays inherited; inner
    nodes are the same. Arguments that `function` does not take are dropped.

    Args:
      part: the node to replace; it is not changed.
      function: what the new one calls.
      renamed: the names of parameters in `function`, where they differ.
    """
    new = type(part)(function)
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

    All parameters that held a node hold the new one. A node that calls `by` already stays.

    Returns:
      The nodes that call `by` now.

    Raises:
      ConfigError: there is none to replace.
    """
    found = find(root, *functions)
    news = {id(part): swapped(part, by) for part in found if fdl.get_callable(part) is not by}
    carry_out(_replacements(root, news))
    return [news.get(id(part), part) for part in found]


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
    before = BoundGraph(root, bound=False).digest[id(root)] if has_nodes else ""
    edits = carry_out(planned)
    is_equal = has_nodes and BoundGraph(root, bound=False).digest[id(root)] == before
    return [] if is_equal else edits


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


# Numbers and items that are changed.


def _changed(root: Any, ref: ParameterRef, sign: str, text: str, parts: Parts) -> Any:
    now = ref.value
    if now is fdl.NO_VALUE:
        factory = fiddle.default_factory_of(ref.container, ref.key)
        is_container = fiddle.makes_container(factory)
        now = factory() if is_container else fiddle.default_of(ref.container, ref.key)
    if sign == "+" and fiddle.kind_of(now) in _ITEMS:
        return _extended(root, ref, now, text, parts)
    with at(f"{ref.path}{sign}={text}"):
        if ref.value is fdl.NO_VALUE and inherits(root, ref.container, ref.key):
            tags = sorted(fdl.get_tags(ref.container, ref.key), key=str)
            name = f"@{tags[0].__name__}"
            return _formula(root, ref, f"{{{name}}}", {name: TaggedValue(tags=tags)}, sign, text)
        if formulas.is_formula(now):
            own = fiddle.set_arguments(cloning.clone_part(now))
            return _formula(root, ref, f"({own['text']})", own.get("values") or {}, sign, text)
        if hints.is_quantity(now) and hints.fits(now, int | float):
            return _formula(root, ref, "{before}", {"before": now}, sign, text)
        if now is fdl.NO_VALUE:
            raise ConfigError("it has no value to change.")
        if type(now) not in (int, float):
            adds = "+= appends items, and " if fiddle.kind_of(now) in _ITEMS else ""
            raise ConfigError(
                f"it is {describe(now)}, not a number: {adds}set:{ref.path}=... sets it."
            )
        if formulas.means_formula(text, ref.hint):
            return formulas.make_formula(root, f"{now!r} {sign} ({text})", ref=ref)
        return _number(ref, now, sign, text)


def _number(ref: ParameterRef, now: int | float, sign: str, text: str) -> Any:
    if remedy := expressions.typed_number(text):
        raise ConfigError(f"it is not a number: {remedy}")
    result = expressions.compute(f"({now!r}) {sign} ({text})", {})
    asked, hint = values.as_asked(result, ref.hint), ref.hint
    stays_whole = type(now) is int and float not in hints.members_of(hint)
    if stays_whole and expressions.is_whole(asked):
        asked = int(asked)
    if not hints.fits(asked, hint) or (stays_whole and type(asked) is not int):
        takes = "a whole number" if hints.fits(asked, hint) else hints.name_of(hint)
        raise ConfigError(f"{now!r} {sign} {text} is {result!r}, and it takes {takes}.")
    return asked


def _formula(
    root: Any, ref: ParameterRef, now: str, known: dict[str, Any], sign: str, text: str
) -> fdl.Config[Any]:
    amount = formulas.make_formula(root, text, ref=ref)
    is_single = text.replace(".", "").replace("_", "").isalnum()
    made = fdl.Config(formulas.formula, text=f"{now} {sign} {text if is_single else f'({text})'}")
    made.values = {**known, **(fiddle.set_arguments(amount).get("values") or {})}
    return made


def _leading(root: Any, found: list[ParameterRef]) -> list[ParameterRef]:
    """Return the parameters whose values depend on no other of them."""
    selected = {(id(ref.container), ref.key) for ref in found}
    sources: dict[tuple[int, fiddle.Key], tuple[int, fiddle.Key]] = {}
    with contextlib.suppress(ConfigError):  # a conflict is for `bind` to report
        for one in inherit_all(nodes(root), is_whole=False) if len(selected) > 1 else ():
            sources[id(one.part), one.key] = id(one.binding.node.value), one.binding.key

    def inputs(ref: ParameterRef) -> Iterator[tuple[int, fiddle.Key] | None]:
        """Yield the parameters that a value is inherited or computed from."""
        yield sources.get((id(ref.container), ref.key))
        for node in parts_of(ref.value) if hints.is_quantity(ref.value) else ():
            part = node.value
            yield from (sources.get((id(part), key)) for key in unset_parameters(part))
            for name in formulas.names_in(part.text) if formulas.is_formula(part) else ():
                with contextlib.suppress(ConfigError):  # a tag, or a path that leads nowhere yet
                    named = find_parameter(root, name)
                    yield id(named.container), named.key

    return [ref for ref in found if len(selected) < 2 or selected.isdisjoint(inputs(ref))]


_ITEMS = {list: "[...]", tuple: "(..., ...)", dict: "{name: ...}"}  # as they are written


def _extended(root: Any, ref: ParameterRef, now: Any, text: str, parts: Parts) -> Any:
    """Return the present items and those of a text; the same object if the text has none.

    Raises:
      ConfigError: the text has no form of items, an item does not fit, or an entry exists already.
    """
    if text in ("[]", "()", "{}"):
        return now
    is_dict = isinstance(now, dict)
    with at(f"{ref.path}+={text}"):
        texts = values.item_texts(text, ref.hint)
        if not texts or is_dict != (text[:1] == "{"):
            raise ConfigError(
                f"it is {describe(now)}, to which += appends items: write +={_ITEMS[type(now)]}."
            )
        if present := [key for key in texts if is_dict and key in now]:
            raise ConfigError(
                f"entry {present[0]!r} exists already: set:{ref.path}[{present[0]!r}]=... sets it."
            )
    added: dict[Any, Any] = {}
    for key, one in texts.items():
        own = key if is_dict else len(now) + key
        item = ParameterRef({own: None}, own, ref)
        added[own] = _read(root, item, one, parts)
        item.check(added[own])
    return {**now, **added} if is_dict else type(now)([*now, *added.values()])


# New values and nodes, read from a text.


def _read(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    """Return what a text means for a parameter: a plain value, a formula or a new node.

    Raises:
      ConfigError: nothing that fits there.
    """
    try:
        return _read_unnamed(root, ref, text, parts)
    except ConfigError as error:
        if error.place.startswith((f"{ref.path}[", f"{ref.path}.")):  # has the path of an inner one
            raise
        raise ConfigError(f"{ref.path}: {error}", place=ref.path) from error


_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
_PLAIN = (int, float, bool, str, type(None))


def _read_unnamed(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    hint = ref.hint
    function = _function_in(text, ref, parts)
    if formulas.means_formula(text, hint) and not (function and "(" in text):
        return formulas.make_formula(root, text, ref=ref)
    if function is not None:
        is_bare = "(" not in text and not _is_implementer(function, hint)
        if is_bare and _takes_function(ref) and hints.fits(function, hint):
            return function
        call = expressions.parse_call(text)
        with contextlib.suppress(_Unfitting):
            return _new_part(root, ref, function, call, parts)

    def read_item(key: fiddle.Key, item: str) -> Any:
        return _read(root, ParameterRef({key: None}, key, ref), item, parts)

    try:
        return values.read_value(text, hint)
    except ConfigError:
        if not _takes_part(hint, parts):
            raise
        if values.item_texts(text, hint):
            return values.read_items(text, hint, read_item)
        if hints.can_be_typed(hint):
            raise
        raise _Unfitting(ref, text, parts, function) from None


def _takes_part(hint: Any, parts: Parts) -> bool:
    return bool(parts) and any(one not in _PLAIN for one in hints.members_of(hint))


def _function_in(text: str, ref: ParameterRef, parts: Parts) -> Callable[..., Any] | None:
    """Return what a text names or calls; None where it is a value of another kind.

    Raises:
      ConfigError: it is a call, and no part has that name.
    """
    hint = ref.hint
    call = _CALL.fullmatch(text) if _takes_part(hint, parts) else None
    if call is None:
        return None
    takes_text, is_bare = str in hints.members_of(hint), call[2] is None
    takes_any = any(map(hints.is_unknown, hints.members_of(hint)))
    if is_bare and (takes_text or ("." in call[1] and takes_any)):
        return None  # a word, which is as good a text as a name
    try:
        function = _part_named(call[1], hint, parts)
    except ConfigError:
        if is_bare and hints.can_be_typed(hint):
            return None  # a value whose name has dots, such as torch.float32
        raise
    if function is None and not (is_bare or takes_text or formulas.means_formula(text, hint)):
        likely = _which_fit(ref, call[1], parts)
        raise ConfigError(f"there is no component {call[1]!r}. {likely}")
    return function


class _Unfitting(ConfigError):
    """A text is no part that a parameter takes."""

    def __init__(self, ref: ParameterRef, text: str, parts: Parts, function: Any = None) -> None:
        takes = hints.name_of(ref.hint)
        lacks = ""
        if inspect.isclass(function):
            lacks = hints.missing_methods(fdl.Config(function), ref.hint)
        likely = _which_fit(ref, text, parts)
        super().__init__(f"{text.strip()!r:.60} is not a {takes}. {likely}{lacks}")


def _new_part(
    root: Any,
    ref: ParameterRef,
    function: Any,
    call: expressions.Call,
    parts: Parts,
) -> fdl.Buildable:
    """Return the node of a call, of the first kind that fits.

    Raises:
      ConfigError: no kind fits, or an argument does not.
    """
    is_implementer = _is_implementer(function, ref.hint)
    for kind in sorted(_kinds(ref), key=lambda kind: is_implementer and kind is fdl.Partial):
        part = kind(function)
        if hints.fits(part, ref.hint):
            return _with_arguments(root, ref, part, call, parts)
    raise _Unfitting(ref, call.name, parts, function)


def _is_implementer(function: Any, hint: Any) -> bool:
    """Whether it is a class whose instances may have the methods of a Protocol in a hint."""
    return inspect.isclass(function) and any(map(hints.is_protocol, hints.members_of(hint)))


def _with_arguments(
    root: Any, ref: ParameterRef, part: fdl.Buildable, call: expressions.Call, parts: Parts
) -> fdl.Buildable:
    """Set the arguments of a call on a node that is about to replace the value of `ref`.

    Required parameters without a value get the tags of the parameters of that name, to inherit.

    Raises:
      ConfigError: an argument is unknown, given twice, or does not fit.
    """
    for name, text in call.texts(fiddle.parameters_of(part).values()).items():
        argument = ParameterRef(part, name, ref)
        argument.set(_read(root, argument, text, parts))
    for key, value in fiddle.all_arguments(part).items():
        if value is not fdl.NO_VALUE or not isinstance(key, str) or fdl.get_tags(part, key):
            continue
        if isinstance(ref.value, fdl.Buildable) and key in fiddle.all_arguments(ref.value):
            carried = {fdl.get_tags(ref.value, key)}
        else:  # those of all parameters of that name, if they are the same
            tagged = (fiddle.nonempty_tags(node.value).get(key) for node in parts_of(root))
            carried = {tags for tags in tagged if tags}
        for tag in carried.pop() if len(carried) == 1 else ():
            fdl.add_tag(part, key, tag)
    return part


def _first_part(
    root: Any, ref: ParameterRef, function: Any, call: expressions.Call, parts: Parts
) -> fdl.Buildable:
    """Return a node for a parameter that holds none, or one that computes the number it takes."""
    is_empty = ref.value is None or ref.value is fdl.NO_VALUE
    with contextlib.suppress(*() if is_empty else (_Unfitting,)):
        if is_empty or not hints.is_unknown(ref.hint):
            return _new_part(root, ref, function, call, parts)
    raise ConfigError(f"it is {describe(ref.value)}, not a component: write set:{ref.path}=...")


def _no_part(root: Any, ref: ParameterRef, selector: str, text: str, parts: Parts) -> str:
    """Return why a text names no part, and what to write in place of it."""
    name, text = expressions.parse_call(text).name, text.strip()
    likely = _which_fit(ref, name, parts)
    what = f"there is no component {name!r}"
    with contextlib.suppress(ConfigError):  # what means nothing here, or anywhere
        if not isinstance(values.read_value(text, Any), str):
            what = f"{text:.60} is a value, not a component"
            _read(root, ref, text, parts)
            likely = f"set:{selector}={text} sets it."
    return f"{what}. {likely}"


def _which_fit(ref: ParameterRef, text: str, parts: Parts) -> str:
    """Return a sentence with parts that fit: of a name like the text, or like the present one."""
    hint = ref.hint
    for empty, key in (([], 0), ({}, "")):
        takes_items = any(hints.fits(empty, one) for one in hints.members_of(hint))
        if takes_items and not hints.can_be_typed(hints.element_hint(hint, key)):
            inner = _which_fit(ParameterRef({key: None}, key, ref), "", parts)
            return f"Write {_ITEMS[type(empty)]}. {inner}"
    known = _classes_in(hint) | dict(parts)
    fitting = fitting_names(hint, known)
    if near := nearest(text, fitting):
        return f"Did you mean {' or '.join(near)}?"
    if not fitting:
        return "It takes a component, and no named one fits: use a fiddler to set it."
    now = set(fiddle.all_arguments(ref.value)) if isinstance(ref.value, fdl.Buildable) else set()
    alike = {n: len(now & {*inspect.signature(known[n]).parameters}) for n in fitting}
    fitting.sort(key=lambda name: (-alike[name], name))
    return f"Name a component that fits, such as {listed(fitting, most=6)}."


def _part_named(name: str, hint: Any, parts: Parts) -> Callable[..., Any] | None:
    """Return what a name stands for where `hint` applies: a class of the hint, or a known part."""
    classes = _classes_in(hint)
    return parts[name] if name not in classes and name in parts else classes.get(name)


def _classes_in(hint: Any) -> dict[str, Callable[..., Any]]:
    """Return the classes in a hint that can be constructed, by name."""
    classes = [
        one for one in hints.members_of(hint) if inspect.isclass(one) and not hints.is_protocol(one)
    ]
    made = [one for one in classes if not (inspect.isabstract(one) or hints.can_be_typed(one))]
    others = ("builtins", "torch")  # whose classes are known, or are no parts
    return {one.__name__: one for one in made if one.__module__.partition(".")[0] not in others}


def _takes_function(ref: ParameterRef) -> bool:
    """Whether a parameter holds a function itself, rather than what one returns."""
    now = ref.value
    if now is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable):
        now = fiddle.default_of(ref.container, ref.key)
    return inspect.isroutine(now)


def _kinds(ref: ParameterRef) -> list[Any]:
    """Return the kinds of node that a parameter may hold, the likeliest first.

    A new node is of the same kind as the one it replaces. In a factory it is created for each
    call, so that nothing is shared by mistake.
    """
    holder = ref.owner[0] if ref.owner else None
    made = fdl.ArgFactory if isinstance(holder, fdl.Partial | fdl.ArgFactory) else fdl.Config
    is_callable = any(typing.get_origin(one) is Callable for one in hints.members_of(ref.hint))
    kinds = [fdl.Partial, made] if is_callable or _takes_function(ref) else [made, fdl.Partial]
    return [type(ref.value), *kinds] if isinstance(ref.value, fdl.Buildable) else kinds
