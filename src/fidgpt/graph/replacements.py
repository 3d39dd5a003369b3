"""New values and components, read from text."""

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, at, listed, suggest
from fidgpt.graph.fiddle import VARIADIC, Key, all_arguments, default_of
from fidgpt.graph.formulas import Call, make_formula, parse_call, says_formula
from fidgpt.graph.hints import (
    can_be_typed,
    element_hint,
    fits,
    hint_of,
    hints_of,
    is_protocol,
    is_unknown,
    members_of,
    name_of,
)
from fidgpt.graph.paths import ParameterRef, describe, inside_of
from fidgpt.graph.values import as_asked, entries_in, items_in, read_key, read_value
from fidgpt.graph.walk import join, parts, step_to, title


def with_arguments(
    root: Any,
    part: fdl.Buildable,
    call: Call,
    read: Callable[[ParameterRef, str], Any],
    *,
    like: Any = fdl.NO_VALUE,
) -> fdl.Buildable:
    """The part with the arguments of a call, each `read` for its place.

    A required parameter that the call leaves out is left open, to be heard, where the parameter
    of that name carries a tag in the part that this one is `like`, or everywhere in the graph.

    Raises:
      ConfigError: an argument is unknown, given twice, or does not fit.
    """
    for name, text in _texts(part, call).items():
        place = ParameterRef(
            part, name, hint_of(part, name), join(title(part), step_to(name)), title(part)
        )
        value = read(place, text)
        place.refuse(value)
        place.fill(value)
    leave_open(root, part, like)
    return part


def leave_open(root: Any, part: fdl.Buildable, like: Any = fdl.NO_VALUE) -> None:
    """Tags required parameters that have no value, as their namesakes are tagged."""
    unset = [
        key
        for key, value in all_arguments(part).items()
        if value is fdl.NO_VALUE and isinstance(key, str) and not fdl.get_tags(part, key)
    ]
    for key in unset:
        for tag in _tags_of_namesakes(root, key, like):
            fdl.add_tag(part, key, tag)


def _tags_of_namesakes(root: Any, key: str, like: Any) -> frozenset[Any]:
    if isinstance(like, fdl.Buildable) and key in all_arguments(like):
        return fdl.get_tags(like, key)
    carried = {
        frozenset(tags) for node in parts(root) if (tags := node.value.__argument_tags__.get(key))
    }
    return carried.pop() if len(carried) == 1 else frozenset()


def _texts(part: fdl.Buildable, call: Call) -> dict[str, str]:
    """The texts of a call's arguments by parameter."""
    parameters = part.__signature_info__.parameters
    names = [name for name, one in parameters.items() if one.kind not in VARIADIC]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    positional = [
        name
        for name, one in parameters.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(call.positional) > len(positional):
        raise ConfigError(
            f"{call.name} takes {len(positional)} arguments without their names, and is given "
            f"{len(call.positional)}. {suggest('', names)}"
        )
    texts = dict(zip(positional, call.positional, strict=False))
    for name, text in call.named.items():
        if name not in names and not takes_any:
            raise ConfigError(f"{call.name} has no argument {name!r}. {suggest(name, names)}")
        if name in texts:
            raise ConfigError(f"{call.name} is given {name} twice.")
        texts[name] = text
    return texts


Parts = Mapping[str, Callable[..., Any]]
_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
_PLAIN = (int, float, bool, str, type(None))


class Reader:
    """Reads one text for many places of a graph; a part is made anew for each of them.

    Args:
      root: the graph, whose parts show which parameters are heard.
      text: what somebody typed.
      parts: constructors and functions that may be named.
    """

    def __init__(self, root: Any, text: str, parts: Parts) -> None:
        self._root = root
        self._text = text
        self._parts = parts
        self._plain: dict[int, Any] = {}

    def read(self, place: ParameterRef) -> Any:
        """What the text means in a place.

        Raises:
          ConfigError: nothing that fits there.
        """
        if id(place.hint) in self._plain:
            return self._plain[id(place.hint)]
        try:
            value = self._read(place)
        except ConfigError as error:
            if error.place.startswith(f"{place.path}["):  # an item is wrong, and is named already
                raise
            raise ConfigError(f"{place.path}: {error}", place=place.path) from error
        if isinstance(value, _PLAIN):  # such a value may stand in many places
            self._plain[id(place.hint)] = value
        return value

    def named(self, place: ParameterRef) -> Any:
        """The part that the text names, which is one; `fdl.NO_VALUE` if none of it fits the place.

        Raises:
          ConfigError: an argument does not fit.
        """
        with at(place.path):
            return self._named(place)

    def _read(self, place: ParameterRef) -> Any:
        if says_formula(self._text, place.hint) and not self._calls_part():
            return make_formula(self._root, self._text, place=place)
        takes_part = any(one not in _PLAIN for one in members_of(place.hint))
        name = self._name_of_part(place.hint) if takes_part else ""
        if name and (named := self._named(place)) is not fdl.NO_VALUE:
            return named
        try:
            return read_value(self._text, place.hint)
        except ConfigError as error:
            if takes_part and self._parts:
                if items := items_in(self._text, place.hint):
                    return self._filled(place, [fdl.NO_VALUE] * len(items), enumerate(items))
                if entries := entries_in(self._text, place.hint):
                    texts = {read_key(key, place.hint): one for key, one in entries.items()}
                    return self._filled(place, dict.fromkeys(texts), texts.items())
            raise ConfigError(self._why_not(place, takes_part) or str(error)) from None

    def _calls_part(self) -> bool:
        """Whether the text is a call of a known part, whatever its arguments name in braces."""
        call = _CALL.fullmatch(self._text)
        return call is not None and call[2] is not None and call[1] in self._parts

    def _name_of_part(self, hint: Any) -> str:
        """The part that the text names; "" where it means something else."""
        call = _CALL.fullmatch(self._text)
        if call is None or not self._parts:
            return ""
        is_text = str in members_of(hint)
        is_bare = call[2] is None
        if is_bare and (is_text or ("." in call[1] and any(map(is_unknown, members_of(hint))))):
            return ""  # a word, which is as good a text as a name
        try:
            if part_named(call[1], hint, self._parts) is not None:
                return call[1]
        except ConfigError:
            if is_bare and can_be_typed(hint):
                return ""  # a value whose name has dots, such as torch.float32
            raise
        if is_bare or is_text:
            return ""
        raise ConfigError(f"there is no part {call[1]!r}. {suggest(call[1], self._parts)}")

    def _named(self, place: ParameterRef) -> Any:
        """The part, or the function itself, that a name stands for; NO_VALUE if it cannot fit."""
        call = parse_call(self._text)
        function = part_named(call.name, place.hint, self._parts)
        assert function is not None  # who calls this has asked
        is_bare = "(" not in self._text and not _is_answer(function, place.hint)
        if is_bare and _is_function_wanted(place) and fits(function, place.hint):
            return function
        for kind in _in_turn(_kinds(place), function, place.hint):
            part = kind(function)
            if fits(part, place.hint):
                return with_arguments(self._root, part, call, self._read_inner, like=place.value)
        return fdl.NO_VALUE

    def _filled(self, place: ParameterRef, values: Any, texts: Iterable[tuple[Key, str]]) -> Any:
        """A list, tuple or dict whose items are read one by one, as some of them are parts."""
        for key, text in texts:
            hint = element_hint(place.hint, key)
            path = f"{place.path}[{key!r}]"
            item = ParameterRef(values, key, hint, path, place.path, inside_of(place, key))
            values[key] = self._read_inner(item, text)
        is_tuple = self._text.lstrip()[:1] == "("
        return as_asked(tuple(values) if is_tuple else values, place.hint)

    def _read_inner(self, place: ParameterRef, text: str) -> Any:
        return Reader(self._root, text, self._parts).read(place)

    def _why_not(self, place: ParameterRef, takes_part: bool) -> str:
        """What is better to be told than that a text is no value; "" for nothing."""
        if not takes_part or not self._parts:
            return ""
        if can_be_typed(place.hint):
            return ""
        return f"{self._text!r:.60} is no {name_of(place.hint)}. {self.which_fit(place)}"

    def which_fit(self, place: ParameterRef) -> str:
        """A sentence with parts that fit, first those that take most of what stands there now."""
        for empty, key, example in (([], 0, "[...]"), ({}, "", "{name: ...}")):
            inner = element_hint(place.hint, key)
            if not can_be_typed(inner) and any(fits(empty, one) for one in members_of(place.hint)):
                item = ParameterRef([None], 0, inner, place.path, place.holder)
                return f"Write {example}. {self.which_fit(item)}"
        now = set(all_arguments(place.value)) if isinstance(place.value, fdl.Buildable) else set()
        kind = _kinds(place)[0]
        fitting: list[tuple[int, str]] = []
        for name, function in (_classes_asked(place.hint) | dict(self._parts)).items():
            part, made = kind(function), _class_made_by(function)
            if _is_function_wanted(place):
                is_fitting = _is_told(_returned(function)) and fits(function, place.hint)
            else:
                is_fitting = made and fits(part if kind is fdl.Partial else kind(made), place.hint)
            if is_fitting:
                fitting.append((-len(now & set(all_arguments(part))), name))
        if not fitting:
            return "It takes a part, and none that has a name fits: a fiddler puts it there."
        return f"Name a part that fits, such as {listed([n for _, n in sorted(fitting)], most=6)}."


def part_named(name: str, hint: Any, parts: Parts) -> Callable[..., Any] | None:
    """What a name stands for where `hint` is asked: a class that it asks for, or a known part."""
    asked = _classes_asked(hint)
    if name not in asked and name in parts:
        return parts[name]
    return asked.get(name)


def _classes_asked(hint: Any) -> dict[str, Callable[..., Any]]:
    """The classes of which a hint asks an instance, by name."""
    classes = [one for one in members_of(hint) if inspect.isclass(one) and not is_protocol(one)]
    made = [one for one in classes if not (inspect.isabstract(one) or can_be_typed(one))]
    others = ("builtins", "torch")  # whose classes are known, or are no parts
    return {one.__name__: one for one in made if one.__module__.partition(".")[0] not in others}


def _is_function_wanted(place: ParameterRef) -> bool:
    """Whether a place holds a function itself, rather than what one returns."""
    now = place.value
    if now is fdl.NO_VALUE and isinstance(place.container, fdl.Buildable):
        now = default_of(place.container, place.key)
    return inspect.isroutine(now)


def _returned(function: Any) -> Any:
    """What a function is annotated to return; a class makes its own."""
    return function if isinstance(function, type) else hints_of(function).get("return", Any)


def _class_made_by(function: Any) -> Any:
    """A class itself, or the one that a function is annotated with; None where it is unknown."""
    made = _returned(function)
    is_made = isinstance(made, type) and made is not type(None)
    return made if is_made and _is_told(made) else None


def _is_told(returned: Any) -> bool:
    """Whether an annotation tells what comes, rather than what it can do."""
    return not (is_unknown(returned) or is_protocol(returned))


def _in_turn(kinds: list[Any], function: Any, hint: Any) -> list[Any]:
    """The kinds in which to try a part: what may answer a Protocol is made first, not called."""
    is_answer = _is_answer(function, hint)
    return sorted(kinds, key=lambda kind: is_answer and kind is fdl.Partial)


def _is_answer(function: Any, hint: Any) -> bool:
    """Whether a Protocol is asked and a class given, whose instances may do what it asks."""
    return isinstance(function, type) and any(map(is_protocol, members_of(hint)))


def _kinds(place: ParameterRef) -> list[Any]:
    """The kinds of part that may stand in a place, the likeliest first.

    In the place of another part one of its kind; inside of a factory one that is made anew at
    every call, because nothing shall be shared by mistake.
    """
    holder = place.within[0] if place.within else place.container
    made = fdl.ArgFactory if isinstance(holder, fdl.Partial | fdl.ArgFactory) else fdl.Config
    is_callable = any(typing.get_origin(one) is Callable for one in members_of(place.hint))
    kinds = (
        [fdl.Partial, made] if is_callable or _is_function_wanted(place) else [made, fdl.Partial]
    )
    is_part = isinstance(place.value, fdl.Buildable)
    return [type(place.value), *kinds] if is_part else kinds


_EXAMPLES = {list: "[...]", tuple: "(..., ...)", dict: "{name: ...}"}


def can_be_extended(value: Any) -> bool:
    """Whether a value may get more items."""
    return type(value) in _EXAMPLES


def extended(root: Any, place: ParameterRef, now: Any, text: str, parts: Parts) -> Any:
    """What a place holds, and behind that the items that a text says; the same where it says none.

    Raises:
      ConfigError: the text says no items, one that does not fit, or an entry that is there.
    """
    items = dict(now) if isinstance(now, dict) else dict(enumerate(now))
    added = dict(_added(place, now, text))
    if not added:
        return now
    items |= added
    for key, one in added.items():
        hint, path = element_hint(place.hint, key), f"{place.path}[{key!r}]"
        item = ParameterRef({key: None}, key, hint, path, place.path, inside_of(place, key))
        items[key] = Reader(root, one, parts).read(item)
        item.refuse(items[key])
    return items if isinstance(now, dict) else type(now)(items.values())


def _added(place: ParameterRef, now: Any, text: str) -> Iterator[tuple[Key, str]]:
    """The texts of new items, by the keys that they get."""
    if text in ("[]", "()", "{}"):
        return
    with at(f"{place.path}+={text}"):
        if not isinstance(now, dict):
            items = items_in(text, place.hint)
            _require(items, now)
            yield from enumerate(items, len(now))
            return
        entries = entries_in(text, place.hint)
        _require(entries, now)
        for key, one in entries.items():
            if (name := read_key(key, place.hint)) in now:
                raise ConfigError(
                    f"there is an entry {name!r} already: set:{place.path}[{name!r}]=... sets it."
                )
            yield name, one


def _require(found: Any, now: Any) -> None:
    if not found:
        raise ConfigError(
            f"it is {describe(now)}, to which += adds items: write +={_EXAMPLES[type(now)]}."
        )
