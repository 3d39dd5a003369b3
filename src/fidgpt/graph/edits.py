"""Edits of a graph: set, change, delete, tie and untie the parameters that a selector matches."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph.binding import inherit_all, inherits, unset_parameters
from fidgpt.graph.cloning import clone_part, own_value
from fidgpt.graph.errors import ConfigError, at, listed
from fidgpt.graph.fiddle import (
    Key,
    default_container_of,
    default_of,
    kind_of,
    nonempty_tags,
    set_arguments,
)
from fidgpt.graph.formulas import (
    UNREADABLE,
    calculate,
    compute,
    formula,
    is_formula,
    make_formula,
    names_in,
    says_formula,
)
from fidgpt.graph.hints import fits, is_quantity, members_of, name_of
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.replacements import Parts, can_be_extended, extended, read
from fidgpt.graph.selectors import find_parameters
from fidgpt.graph.values import as_asked
from fidgpt.graph.walk import children, is_node, nodes, parts, title

Selector = str | type[fdl.Tag]
Planned = tuple[ParameterRef, Any]  # a parameter and its new value; fdl.NO_VALUE to remove it
Same = Callable[[Any, Any], bool]
NO_PARTS: Mapping[str, Any] = MappingProxyType({})
SIGNS = {"*": operator.mul, "+": operator.add, "-": operator.sub}


@dataclass(frozen=True, slots=True)
class Edit:
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
      text: a value, a formula with names in braces, or a part such as `RoPE(theta=5e5)`.
      parts: constructors that the text may name.

    Returns:
      What changed; nothing where all parameters had that value.

    Raises:
      ConfigError: the selector matches nothing, or the text means nothing that fits one of its
        parameters; the graph is as it was.
    """
    planned = [(ref, read(root, ref, text, parts)) for ref in find_parameters(root, selector)]
    return carry_out(planned, same=builds_same(root, keeps_sharing=False))


def set_value(root: Any, selector: Selector, value: Any) -> list[Edit]:
    """Set a value at every parameter that a selector matches.

    All of them hold the same node; of a list or dict each gets its own copy.

    Returns:
      What changed.

    Raises:
      ConfigError: the selector matches nothing, or the value does not fit; the graph is as it was.
    """
    return carry_out((ref, own_value(value)) for ref in find_parameters(root, selector))


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
        raise ConfigError(f"nothing else holds {found[0].path} ({title(found[0].value)}). {known}")
    return carry_out(
        (ref, clone_part(ref.value))
        for key, matched in together.items()
        for ref in matched[len(matched) == len(shared[key].parents) :]
    )


def _part_at(ref: ParameterRef) -> fdl.Buildable:
    value = ref.value
    if isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls):
        return value
    state = "not set" if value is fdl.NO_VALUE else describe(value)
    raise ConfigError(f"{ref.path} is {state}, and only a part can be shared.")


def is_same(before: Any, after: Any) -> bool:
    """Whether two values are one node, or equal plain values: 1 is not 1.0, nor 0.0 -0.0."""
    if before is after:
        return True
    if type(before) is not type(after) or (is_node(before) and (parts(before) or parts(after))):
        return False
    return repr(before) == repr(after)


def builds_same(root: Any, *, keeps_sharing: bool) -> Same:
    """Return whether a new value builds what one in the graph does, and is shared as that is.

    Args:
      root: the graph, as it is before.
      keeps_sharing: whether all parameters that hold a node will hold the new one.
    """

    @functools.cache
    def shared() -> set[int]:
        return {id(node.value) for node in nodes(root) if len(node.parents) > 1}

    def same(before: Any, after: Any, *, may_share: bool = keeps_sharing) -> bool:
        if is_same(before, after):
            return True
        if not (
            kind_of(before) is kind_of(after) and is_node(before) and _calls_same(before, after)
        ):
            return False
        if not may_share and id(before) in shared():
            return False
        old, new = dict(children(before)), dict(children(after))
        return old.keys() == new.keys() and all(
            same(one, new[step], may_share=False) for step, one in old.items()
        )

    return same


def _calls_same(before: Any, after: Any) -> bool:
    return not isinstance(before, fdl.Buildable) or (
        fdl.get_callable(before) is fdl.get_callable(after)
        and nonempty_tags(before) == nonempty_tags(after)
    )


def carry_out(planned: Iterable[Planned], *, same: Same = is_same) -> list[Edit]:
    """Set every parameter to its new value; return where that changed something.

    Args:
      planned: the parameters and their values.
      same: whether a new value is no change.

    Raises:
      ConfigError: a value may not be set, and none was.
    """
    planned = list(planned)
    for ref, value in planned:
        if value is not fdl.NO_VALUE:
            ref.check(value)
        elif not isinstance(ref.container, fdl.Buildable | dict):
            raise ConfigError(
                f"{ref.path} is an item of a {type(ref.container).__name__}, and has no default: "
                f"set {ref.above.path if ref.above else ''} whole."
            )
    edits = [Edit(ref.path, ref.value, value) for ref, value in planned]
    edits = [edit for edit in edits if not same(edit.before, edit.after)]
    for ref, value in planned:
        if value is fdl.NO_VALUE:
            ref.unset()
        else:
            ref.write(value)
    return edits


def _changed(root: Any, ref: ParameterRef, sign: str, text: str, parts: Parts) -> Any:
    now = ref.value
    if now is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable):
        made = default_container_of(ref.container, ref.key)
        now = default_of(ref.container, ref.key) if made is None else made
    if sign == "+" and can_be_extended(now):
        return extended(root, ref, now, text, parts)
    with at(f"{ref.path}{sign}={text}"):
        if isinstance(now, fdl.Buildable):
            return _computed(root, ref, now, sign, text)
        is_part = isinstance(ref.container, fdl.Buildable)
        if ref.value is fdl.NO_VALUE and is_part and inherits(root, ref.container, ref.key):
            tags = sorted(fdl.get_tags(ref.container, ref.key), key=str)
            name = f"@{tags[0].__name__}"
            return _formula(root, ref, f"{{{name}}}", {name: TaggedValue(tags=tags)}, sign, text)
        if isinstance(now, bool) or not isinstance(now, int | float):
            raise ConfigError(_no_number(ref, now, sign))
        if says_formula(text, ref.hint):
            return make_formula(root, f"{now!r} {sign} ({text})", place=ref)
        return _number(ref, now, sign, text)


def _no_number(ref: ParameterRef, now: Any, sign: str) -> str:
    if now is fdl.NO_VALUE:
        return "it has no value that could be changed."
    if can_be_extended(now):
        return (
            f"it is {describe(now)}, and {sign}= is for numbers. += adds items to it, and "
            f"set:{ref.path}=... sets it whole."
        )
    if now is None:
        return f"it is None, not a number: set:{ref.path}=... sets it."
    return f"it is {describe(now)}, not a number."


def _number(ref: ParameterRef, now: int | float, sign: str, text: str) -> Any:
    try:
        result = calculate(SIGNS[sign], now, compute(text, {}))
    except UNREADABLE as error:
        if isinstance(error, ConfigError):
            raise
        size = "small" if isinstance(error, FloatingPointError) else "large"
        raise ConfigError(f"the result is too {size} a number.") from None
    asked = as_asked(result, ref.hint)
    stays_whole = type(now) is int and float not in members_of(ref.hint)
    if stays_whole and type(asked) is float and asked.is_integer():
        asked = int(asked)
    if not fits(asked, ref.hint) or (stays_whole and type(asked) is not int):
        takes = name_of(ref.hint) if not fits(asked, ref.hint) else "a whole number"
        raise ConfigError(f"{now!r} {sign} {text} is {result!r}, and it takes {takes}.")
    return asked


def _computed(
    root: Any, ref: ParameterRef, now: fdl.Buildable, sign: str, text: str
) -> fdl.Config[Any]:
    if not is_quantity(now) or not fits(now, int | float):
        raise ConfigError(f"it is {describe(now)}, not a number.")
    if is_formula(now):
        own = set_arguments(clone_part(now))
        return _formula(root, ref, f"({own['text']})", own.get("values") or {}, sign, text)
    return _formula(root, ref, "{before}", {"before": now}, sign, text)


def _formula(
    root: Any, ref: ParameterRef, now: str, values: dict[str, Any], sign: str, text: str
) -> fdl.Config[Any]:
    amount = make_formula(root, text, place=ref)
    is_single = text.replace(".", "").replace("_", "").isalnum()
    made = fdl.Config(formula, text=f"{now} {sign} {text if is_single else f'({text})'}")
    made.values = {**values, **(set_arguments(amount).get("values") or {})}
    return made


def _leading(root: Any, found: list[ParameterRef]) -> list[ParameterRef]:
    """Return the parameters whose values depend on no other of them."""
    selected = {(id(ref.container), ref.key) for ref in found}
    if len(selected) < 2:
        return found
    sources: dict[tuple[int, Key], tuple[int, Key]] = {}
    with contextlib.suppress(ConfigError):  # a conflict is for `bind` to report
        for one in inherit_all(nodes(root), is_whole=False):
            sources[id(one.part), one.key] = (id(one.binding.node.value), one.binding.key)
    return [
        ref
        for ref in found
        if sources.get((id(ref.container), ref.key)) not in selected
        and selected.isdisjoint(_inputs(root, ref.value, sources))
    ]


def _inputs(
    root: Any, value: Any, sources: Mapping[tuple[int, Key], tuple[int, Key]]
) -> Iterator[tuple[int, Key]]:
    """Yield the parameters from which a computed value is computed."""
    for node in parts(value) if is_quantity(value) else ():
        for key in unset_parameters(node.value):
            if source := sources.get((id(node.value), key)):
                yield source
        for name in names_in(set_arguments(node.value)["text"]) if is_formula(node.value) else ():
            with contextlib.suppress(ConfigError):  # a tag, or a path that leads nowhere yet
                ref = find_parameter(root, name)
                yield id(ref.container), ref.key
