"""New values and nodes, read from the text of a directive."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, at, listed, suggest
from fidgpt.graph.fiddle import (
    VARIADIC,
    Key,
    all_arguments,
    default_of,
    nonempty_tags,
    parameters_of,
)
from fidgpt.graph.formulas import Call, make_formula, parse_call, says_formula
from fidgpt.graph.hints import (
    can_be_typed,
    element_hint,
    fits,
    hints_of,
    is_protocol,
    is_unknown,
    members_of,
    name_of,
)
from fidgpt.graph.paths import ParameterRef, describe
from fidgpt.graph.values import as_asked, entries_in, items_in, read_key, read_value
from fidgpt.graph.walk import parts as parts_of

Parts = Mapping[str, Callable[..., Any]]  # constructors and functions that a text may name
_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
_PLAIN = (int, float, bool, str, type(None))


def read(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    """Return what a text means for a parameter: a plain value, a formula or a new node.

    Raises:
      ConfigError: nothing that fits there.
    """
    try:
        return _read(root, ref, text, parts)
    except ConfigError as error:
        if error.place.startswith((f"{ref.path}[", f"{ref.path}.")):  # has the path of an inner one
            raise
        raise ConfigError(f"{ref.path}: {error}", place=ref.path) from error


def read_part(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    """Return the node, or function, that a text names; `fdl.NO_VALUE` if none of it fits.

    Raises:
      ConfigError: an argument does not fit.
    """
    call = parse_call(text)
    function = part_named(call.name, ref.hint, parts)
    assert function is not None  # the caller has checked
    # A class is called first where a Protocol is asked: its instances may do what that asks.
    is_answer = isinstance(function, type) and any(map(is_protocol, members_of(ref.hint)))
    is_bare = "(" not in text and not is_answer
    if is_bare and _takes_function(ref) and fits(function, ref.hint):
        return function
    for kind in sorted(_kinds(ref), key=lambda kind: is_answer and kind is fdl.Partial):
        part = kind(function)
        if fits(part, ref.hint):
            return with_arguments(root, ref, part, call, parts)
    return fdl.NO_VALUE


def with_arguments(
    root: Any, ref: ParameterRef, part: fdl.Buildable, call: Call, parts: Parts
) -> fdl.Buildable:
    """Set the arguments of a call on a node that is about to replace the value of `ref`.

    Required parameters without a value get the tags of the parameters of that name, to inherit.

    Raises:
      ConfigError: an argument is unknown, given twice, or does not fit.
    """
    for name, text in _argument_texts(part, call).items():
        argument = ParameterRef(part, name, ref)
        argument.set(read(root, argument, text, parts))
    for key, value in all_arguments(part).items():
        if value is fdl.NO_VALUE and isinstance(key, str) and not fdl.get_tags(part, key):
            for tag in _tags_of_namesakes(root, key, ref.value):
                fdl.add_tag(part, key, tag)
    return part


def _tags_of_namesakes(root: Any, key: str, old: Any) -> frozenset[Any]:
    """Return the tags of a parameter in the node replaced, or of all of that name in the graph."""
    if isinstance(old, fdl.Buildable) and key in all_arguments(old):
        return fdl.get_tags(old, key)
    carried = {tags for node in parts_of(root) if (tags := nonempty_tags(node.value).get(key))}
    return carried.pop() if len(carried) == 1 else frozenset()


def _argument_texts(part: fdl.Buildable, call: Call) -> dict[str, str]:
    """Return the texts of a call's arguments by parameter."""
    parameters = parameters_of(part)
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


def _read(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    hint = ref.hint
    call = _CALL.fullmatch(text)
    if says_formula(text, hint) and not (call and call[2] and call[1] in parts):
        return make_formula(root, text, place=ref)
    takes_part = bool(parts) and any(one not in _PLAIN for one in members_of(hint))
    if takes_part and call and _names_part(call, hint, parts):
        part = read_part(root, ref, text, parts)
        if part is not fdl.NO_VALUE:
            return part
    try:
        return read_value(text, hint)
    except ConfigError:
        if not takes_part:
            raise
        if texts := _item_texts(text, hint):
            items = _read_items(root, ref, texts, parts)
            is_list = items_in(text, hint)
            kind = tuple if text.lstrip()[:1] == "(" else list
            return as_asked(kind(items.values()) if is_list else items, hint)
        if can_be_typed(hint):
            raise
        raise ConfigError(
            f"{text!r:.60} is not a {name_of(hint)}. {which_fit(ref, parts)}"
        ) from None


def _names_part(call: re.Match[str], hint: Any, parts: Parts) -> bool:
    """Whether a text is the name or the call of a known part, rather than anything else.

    Raises:
      ConfigError: it is a call, and no part has that name.
    """
    is_text, is_bare = str in members_of(hint), call[2] is None
    if is_bare and (is_text or ("." in call[1] and any(map(is_unknown, members_of(hint))))):
        return False  # a word, which is as good a text as a name
    try:
        if part_named(call[1], hint, parts) is not None:
            return True
    except ConfigError:
        if is_bare and can_be_typed(hint):
            return False  # a value whose name has dots, such as torch.float32
        raise
    if is_bare or is_text:
        return False
    raise ConfigError(f"there is no part {call[1]!r}. {suggest(call[1], parts)}")


def _item_texts(text: str, hint: Any) -> dict[Key, str]:
    """Return the texts of the items of a list, tuple or dict by key; empty for other texts."""
    if items := items_in(text, hint):
        return dict(enumerate(items))
    return {read_key(key, hint): one for key, one in entries_in(text, hint).items()}


def _read_items(
    root: Any, ref: ParameterRef, texts: Mapping[Key, str], parts: Parts
) -> dict[Key, Any]:
    """Return what the texts of items mean, each by its own annotation."""
    refs = {key: ParameterRef({key: None}, key, ref) for key in texts}
    return {key: read(root, refs[key], text, parts) for key, text in texts.items()}


def which_fit(ref: ParameterRef, parts: Parts) -> str:
    """Return a sentence with parts that fit, those like the present one first."""
    hint = ref.hint
    for empty, key, example in (([], 0, "[...]"), ({}, "", "{name: ...}")):
        takes_items = any(fits(empty, one) for one in members_of(hint))
        if takes_items and not can_be_typed(element_hint(hint, key)):
            return f"Write {example}. {which_fit(ParameterRef({key: None}, key, ref), parts)}"
    now = set(all_arguments(ref.value)) if isinstance(ref.value, fdl.Buildable) else set()
    kind = _kinds(ref)[0]
    fitting: list[tuple[int, str]] = []
    for name, function in (_classes_asked(hint) | dict(parts)).items():
        part, made = kind(function), _returned(function)
        is_known = not (is_unknown(made) or is_protocol(made))
        if _takes_function(ref):
            is_fitting = is_known and fits(function, hint)
        else:
            is_made = is_known and isinstance(made, type) and made is not type(None)
            is_fitting = is_made and fits(part if kind is fdl.Partial else kind(made), hint)
        if is_fitting:
            fitting.append((-len(now & set(all_arguments(part))), name))
    if not fitting:
        return "It takes a part, and none that has a name fits: use a fiddler to set it."
    return f"Name a part that fits, such as {listed([n for _, n in sorted(fitting)], most=6)}."


def part_named(name: str, hint: Any, parts: Parts) -> Callable[..., Any] | None:
    """Return what a name stands for where `hint` applies: a class of the hint, or a known part."""
    asked = _classes_asked(hint)
    if name not in asked and name in parts:
        return parts[name]
    return asked.get(name)


def _classes_asked(hint: Any) -> dict[str, Callable[..., Any]]:
    """Return the classes in a hint that can be constructed, by name."""
    classes = [one for one in members_of(hint) if inspect.isclass(one) and not is_protocol(one)]
    made = [one for one in classes if not (inspect.isabstract(one) or can_be_typed(one))]
    others = ("builtins", "torch")  # whose classes are known, or are no parts
    return {one.__name__: one for one in made if one.__module__.partition(".")[0] not in others}


def _takes_function(ref: ParameterRef) -> bool:
    """Whether a parameter holds a function itself, rather than what one returns."""
    now = ref.value
    if now is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable):
        now = default_of(ref.container, ref.key)
    return inspect.isroutine(now)


def _returned(function: Any) -> Any:
    """Return the annotation of what a function returns; a class returns its instances."""
    return function if isinstance(function, type) else hints_of(function).get("return", Any)


def _kinds(ref: ParameterRef) -> list[Any]:
    """Return the kinds of node that a parameter may hold, the likeliest first.

    A new node is of the same kind as the one it replaces. In a factory it is created for each
    call, so that nothing is shared by mistake.
    """
    holder = ref.owner[0] if ref.owner else None
    made = fdl.ArgFactory if isinstance(holder, fdl.Partial | fdl.ArgFactory) else fdl.Config
    is_callable = any(typing.get_origin(one) is Callable for one in members_of(ref.hint))
    kinds = [fdl.Partial, made] if is_callable or _takes_function(ref) else [made, fdl.Partial]
    return [type(ref.value), *kinds] if isinstance(ref.value, fdl.Buildable) else kinds


_EXAMPLES = {list: "[...]", tuple: "(..., ...)", dict: "{name: ...}"}


def can_be_extended(value: Any) -> bool:
    """Whether items can be added to a value."""
    return type(value) in _EXAMPLES


def extended(root: Any, ref: ParameterRef, now: Any, text: str, parts: Parts) -> Any:
    """Return the present items and those of a text; the same object if the text has none.

    Raises:
      ConfigError: the text has no form of items, an item does not fit, or an entry exists already.
    """
    if text in ("[]", "()", "{}"):
        return now
    items: dict[Key, Any] = dict(now) if isinstance(now, dict) else dict(enumerate(now))
    with at(f"{ref.path}+={text}"):
        texts = _item_texts(text, ref.hint)
        if not texts or isinstance(now, dict) == bool(items_in(text, ref.hint)):
            raise ConfigError(
                f"it is {describe(now)}, to which += adds items: write +={_EXAMPLES[type(now)]}."
            )
        if not isinstance(now, dict):
            texts = dict[Key, str](enumerate(texts.values(), len(now)))
        if present := [key for key in texts if key in now and isinstance(now, dict)]:
            raise ConfigError(
                f"there is an entry {present[0]!r} already: set:{ref.path}[{present[0]!r}]=... "
                "sets it."
            )
    added = _read_items(root, ref, texts, parts)
    for key, value in added.items():
        ParameterRef({key: None}, key, ref).check(value)
    items |= added
    return items if isinstance(now, dict) else type(now)(items.values())
