"""Assignments to the parameters that a selector matches."""

import contextlib
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue

from fidgpt.graph.binding import inherits, resolve
from fidgpt.graph.cloning import clone_part, own_value
from fidgpt.graph.edits import Edit, Remaking, carry_out
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import Key, default_container_of, default_of, set_arguments
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
from fidgpt.graph.paths import ParameterRef, describe, find_parameter, nobody_carries
from fidgpt.graph.replacements import Parts, Reader, can_be_extended, extended
from fidgpt.graph.selectors import find_parameters, places_of_tag, tags_in
from fidgpt.graph.values import as_asked
from fidgpt.graph.walk import parts, title

NO_PARTS: Mapping[str, Any] = MappingProxyType({})


def set_text(root: Any, selector: str, text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Sets what a text means, by the annotation, at every place that a selector names.

    Args:
      root: the graph.
      selector: a path or a selector of many places.
      text: a value, a formula with names in braces, or a part such as `RoPE(theta=5e5)`.
      parts: constructors that the text may name.

    Returns:
      What changed; nothing where all places held that value.

    Raises:
      ConfigError: the selector names nothing, or the text means nothing that fits in one of its
        places; the graph is as it was.
    """
    return _set_text(root, find_parameters(root, selector), text, parts)


def set_value(root: Any, selector: str, value: Any) -> list[Edit]:
    """Sets a value at every place that a selector names.

    A part is held by all of them; of a list or dict each of them gets its own.

    Returns:
      What changed.

    Raises:
      ConfigError: the selector names nothing, or the value does not fit; the graph is as it was.
    """
    return carry_out((place, own_value(value)) for place in find_parameters(root, selector))


def tag_text(root: Any, tag: type[fdl.Tag], text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Says a quantity anew wherever it is said; where nobody says it, where it would be heard.

    Returns:
      What changed.

    Raises:
      ConfigError: no parameter carries the tag, or the text does not fit; the graph is as it was.
    """
    return _set_text(root, carriers(root, tag), text, parts)


def delete(root: Any, selector: str) -> list[Edit]:
    """Takes values away: a default stands again, an open quantity is heard again.

    An entry of a dict is taken out of it; an item of a list cannot be, because those that follow
    would have other names from then on.

    Returns:
      What changed; nothing where nothing was set.

    Raises:
      ConfigError: the selector names nothing, or an item of a list or tuple.
    """
    return carry_out((place, fdl.NO_VALUE) for place in find_parameters(root, selector))


def carriers(root: Any, tag: type[fdl.Tag]) -> list[ParameterRef]:
    """The places where a quantity is said, or else would be heard.

    Raises:
      ConfigError: there is none.
    """
    if found := places_of_tag(root, tag):
        return found
    raise ConfigError(nobody_carries(tag, tags_in(root).values(), where=title(root)))


def _set_text(root: Any, found: list[ParameterRef], text: str, parts: Parts) -> list[Edit]:
    reader = Reader(root, text, parts)
    planned = [(place, reader.read(place)) for place in found]
    return carry_out(planned, same=Remaking(root, keeps_sharing=False).is_same)


SIGNS = {"*": operator.mul, "+": operator.add, "-": operator.sub}


def change_by(
    root: Any, selector: str, sign: str, text: str, *, parts: Parts = NO_PARTS
) -> list[Edit]:
    """Multiplies, adds to or subtracts from the number at every place that a selector names.

    A number that is set, or a default, becomes another number; what is heard or computed becomes
    a formula of what it was. What hears, or is a formula of, another selected place follows that
    one, and is not changed a second time. To a list, tuple or dict, `+` adds items.

    Args:
      root: the graph.
      selector: a path or a selector of many places.
      sign: `*`, `+` or `-`.
      text: by how much: a number, arithmetic, or a formula; or what is added: `[1, 2]`.
      parts: constructors that items may name.

    Returns:
      What changed.

    Raises:
      ConfigError: there is no number and no list, or the result does not fit; the graph is as it
        was.
    """
    found = find_parameters(root, selector)
    return _change(root, _leading(root, found) or found, sign, text.strip(), parts)


def change_tag_by(
    root: Any, tag: type[fdl.Tag], sign: str, text: str, *, parts: Parts = NO_PARTS
) -> list[Edit]:
    """Does the same wherever a quantity is said.

    What is computed from the same quantity around it follows, and is not changed a second time.

    Returns:
      What changed.

    Raises:
      ConfigError: no parameter carries the tag; and as `change_by` does.
    """
    found = carriers(root, tag)
    leading = [place for place in found if not _follows(place.value, tag)]
    return _change(root, leading or found, sign, text.strip(), parts)


def _change(root: Any, found: list[ParameterRef], sign: str, text: str, parts: Parts) -> list[Edit]:
    planned = []
    for place in found:
        now = _set_or_default(place)
        if sign == "+" and can_be_extended(now):
            planned.append((place, extended(root, place, now, text, parts)))
            continue
        with at(f"{place.path}{sign}={text}"):
            planned.append((place, _changed(root, place, sign, text)))
    return carry_out(planned)


def _set_or_default(place: ParameterRef) -> Any:
    part, key = place.container, place.key
    if place.value is not fdl.NO_VALUE or not isinstance(part, fdl.Buildable):
        return place.value
    made = default_container_of(part, key)
    return default_of(part, key) if made is None else made


def _changed(root: Any, place: ParameterRef, sign: str, text: str) -> Any:
    now = place.value
    if isinstance(now, fdl.Buildable):
        return _computed(root, place, now, sign, text)
    if now is fdl.NO_VALUE and isinstance(place.container, fdl.Buildable):
        if inherits(root, place.container, place.key):
            return _heard(root, place, sign, text)
        now = default_of(place.container, place.key)
    if now is fdl.NO_VALUE:
        raise ConfigError("it has no value that could be changed.")
    if can_be_extended(now):
        raise ConfigError(
            f"it is {describe(now)}, and {sign}= is for numbers. += adds items to it, and "
            f"set:{place.path}=... sets it whole."
        )
    if now is None:
        raise ConfigError(f"it is None, and no number: set:{place.path}=... sets it.")
    if isinstance(now, bool) or not isinstance(now, int | float):
        raise ConfigError(f"it is {describe(now)}, and no number.")
    if says_formula(text, place.hint):
        return make_formula(root, f"{now!r} {sign} ({text})", place=place)
    return _number(place, now, sign, text)


def _number(place: ParameterRef, now: int | float, sign: str, text: str) -> Any:
    try:
        result = calculate(SIGNS[sign], now, compute(text, {}))
    except UNREADABLE as error:
        if isinstance(error, ConfigError):
            raise
        size = "small" if isinstance(error, FloatingPointError) else "large"
        raise ConfigError(f"the result is too {size} a number.") from None
    asked = as_asked(result, place.hint)
    stays_whole = type(now) is int and float not in members_of(place.hint)
    if stays_whole and type(asked) is float and asked.is_integer():
        asked = int(asked)
    if not fits(asked, place.hint) or (stays_whole and type(asked) is not int):
        takes = name_of(place.hint) if not fits(asked, place.hint) else "a whole number"
        raise ConfigError(f"{now!r} {sign} {text} is {result!r}, and it takes {takes}.")
    return asked


def _heard(root: Any, place: ParameterRef, sign: str, text: str) -> fdl.Config[Any]:
    """A formula of what an open parameter would have heard."""
    tags = sorted(fdl.get_tags(place.container, place.key), key=str)
    name = f"@{tags[0].__name__}"
    return _formula(root, place, f"{{{name}}}", {name: TaggedValue(tags=tags)}, sign, text)


def _computed(
    root: Any, place: ParameterRef, now: fdl.Buildable, sign: str, text: str
) -> fdl.Config[Any]:
    if not is_quantity(now) or not fits(now, int | float):
        raise ConfigError(f"it is {describe(now)}, and no number.")
    if is_formula(now):
        own = set_arguments(clone_part(now))
        return _formula(root, place, f"({own['text']})", own.get("values") or {}, sign, text)
    return _formula(root, place, "{before}", {"before": now}, sign, text)


def _formula(
    root: Any, place: ParameterRef, now: str, values: dict[str, Any], sign: str, text: str
) -> fdl.Config[Any]:
    amount = make_formula(root, text, place=place)
    is_single = text.replace(".", "").replace("_", "").isalnum()
    made = fdl.Config(formula, text=f"{now} {sign} {text if is_single else f'({text})'}")
    made.values = {**values, **(set_arguments(amount).get("values") or {})}
    return made


def _leading(root: Any, found: list[ParameterRef]) -> list[ParameterRef]:
    """The places that follow no other of them."""
    selected = {(id(place.container), place.key) for place in found}
    if len(selected) < 2:
        return found
    heard: dict[tuple[int, Key], tuple[int, Key]] = {}
    with contextlib.suppress(ConfigError):  # what nobody says is for `bind` to tell
        for one in resolve(root):
            heard[id(one.part), one.key] = (id(one.said.node.value), one.said.key)
    return [
        place
        for place in found
        if heard.get((id(place.container), place.key)) not in selected
        and selected.isdisjoint(_named_in(root, place.value))
    ]


def _named_in(root: Any, value: Any) -> set[tuple[int, Key]]:
    """The places that a formula names by their paths."""
    named: set[tuple[int, Key]] = set()
    for name in names_in(set_arguments(value)["text"]) if is_formula(value) else ():
        with contextlib.suppress(ConfigError):  # a tag, or a path that leads nowhere yet
            place = find_parameter(root, name)
            named.add((id(place.container), place.key))
    return named


def _follows(value: Any, tag: type[fdl.Tag]) -> bool:
    """Whether a value is computed from the quantity that a place around says."""
    return any(
        issubclass(own, tag)
        for node in parts(value)
        for key, tags in node.value.__argument_tags__.items()
        if key not in node.value.__arguments__
        for own in tags
    )
