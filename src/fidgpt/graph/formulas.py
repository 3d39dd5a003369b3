"""Formulas: values computed from other values of the graph."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.errors import ConfigError, at, raise_all, suggest
from fidgpt.graph import expressions, fiddle, hints, paths, selectors, walk

Number = int | float
_NAME = re.compile(r"\{([^{}]*)\}")
_DOUBLED = re.compile(r"\{\s*\{([^{}]*)\}\s*\}")
_REFERENCE = re.compile(r"\{\s*@?[A-Za-z_\[][^{}:,]*\}")


def formula(
    text: str, values: Mapping[str, Number] | None = None, whole: bool = False
) -> int | float:
    """Return the number that `text` computes from numbers named in braces.

    Args:
      text: arithmetic with `+ - * / // % **`, min, max, round and int.
      values: the number for each name; a bound graph has them all.
      whole: whether the result must be whole; a float that is whole becomes an int.

    Raises:
      ConfigError: the text is not arithmetic, or its result is not whole.
    """
    with at(text):
        result = expressions.compute(*_with_plain_names(text, values or {}))
    if not whole or isinstance(result, int):
        return result
    if not expressions.is_whole(result):
        raise ConfigError(f"{text} is {result!r}, which is not a whole number.")
    return int(result)


def is_formula(part: Any) -> bool:
    """Whether a value is a formula."""
    return isinstance(part, fdl.Buildable) and fdl.get_callable(part) is formula


def as_written(part: fdl.Buildable) -> tuple[str, dict[str, Any]]:
    """Return the text of a formula, and the tags of the names in it that stand for tags."""
    known = fiddle.set_arguments(part)
    tagged = (known.get("values") or {}).items()
    return known["text"], {
        name: fdl.get_tags(one, "value") for name, one in tagged if isinstance(one, TaggedValueCls)
    }


def means_formula(text: str, hint: Any) -> bool:
    """Whether a text means a formula where `hint` applies, rather than a text or a dict."""
    takes_numbers = any(
        hints.is_unknown(member) or member in (int, float) for member in hints.members_of(hint)
    )
    return takes_numbers and _REFERENCE.search(text) is not None


def make_formula(root: Any, text: str, *, ref: paths.ParameterRef | None = None) -> fdl.Config[Any]:
    """Return a formula for a parameter of `root`.

    Raises:
      ConfigError: it is not arithmetic, names a tag that no parameter carries, or the parameter.
    """
    tags: dict[str, Any] = {}
    names = list(dict.fromkeys(names_in(text)))
    for name in names:
        tag = _tag_of(root, name)
        keys = None if tag else paths.parse_path(name)
        if tag is not None:
            tags[name] = TaggedValue(tags=[tag])
        is_own = tag and ref and ref.container is root and tag in fdl.get_tags(root, ref.key)
        if ref and (is_own or keys == paths.parse_path(ref.path)):
            raise ConfigError(
                "it cannot depend on itself. To change its present value, write "
                f"for example {ref.path}*=2."
            )
    with at(text):
        if doubled := _DOUBLED.search(text):
            name = doubled[1].strip()
            raise ConfigError(f"a name is written in single braces: {{{name}}}, not {doubled[0]}.")
        try:  # with numbers that may fail where others do not
            expressions.compute(*_with_plain_names(text, dict.fromkeys(names, 1)))
        except ConfigError as error:
            if not isinstance(error.__cause__, ZeroDivisionError | OverflowError):
                plain = re.compile(r"\b_(\d+)\b")
                message = plain.sub(lambda match: f"{{{names[int(match[1])]}}}", str(error))
                raise ConfigError(message) from None
    made = fdl.Config(formula, text=text.strip())
    if tags:
        made.values = tags
    return made


def names_in(text: str) -> list[str]:
    """Return the names in braces, in order."""
    return [name.strip() for name in _NAME.findall(text)]


def _with_plain_names(text: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text with a plain name for each in braces, and the numbers by plain name."""
    plain = {name: f"_{i}" for i, name in enumerate(dict.fromkeys(names_in(text)))}
    for name in plain:
        if name not in values:
            raise ConfigError(f"{name} has no value before the graph is bound.")
    text = _NAME.sub(lambda match: f" {plain[match[1].strip()]} ", text)
    return text, {plain[name]: value for name, value in values.items() if name in plain}


def _tag_of(root: Any, name: str) -> Any:
    """Return the tag that a name in braces stands for; None for a path."""
    known = selectors.tags_in(root)
    if name.startswith("@"):
        if name[1:] not in known:
            raise ConfigError(f"no parameter carries the tag {name[1:]}. {suggest(name, known)}")
        return known[name[1:]]
    is_parameter = isinstance(root, fdl.Buildable) and hasattr(root, name)
    return None if is_parameter else known.get(name)


def look_up_names(root: Any, graph_nodes: list[walk.Node]) -> None:
    """Set the values that each formula of a graph names, while it is being bound.

    Raises:
      ConfigErrors: names that lead nowhere, or to a value that is not a number.
      ConfigError: a formula is computed from itself.
    """
    formulas = [node for node in graph_nodes if is_formula(node.value)]
    errors: list[ConfigError] = []
    for node in formulas:
        known = dict(fiddle.set_arguments(node.value).get("values") or {})
        for name in names_in(node.value.text):
            try:
                if name not in known:
                    known[name] = _number_at(root, name)
            except ConfigError as error:
                message = f"{node.path} is {node.value.text}: {error}"
                errors.append(ConfigError(message, place=node.path, sources=[node.path, name]))
        fiddle.assign(node.value, "values", known)
        members = [hints.members_of(hint) for _, hint in _holders(node)]
        if any(int in member and float not in member for member in members):
            fiddle.assign(node.value, "whole", True)
    raise_all(errors)
    try:
        walk.nodes(root if formulas else None)  # raises if one is computed from itself
    except ConfigError as error:
        named = re.compile(r"[^\s,]*\.values\[(['\"])(.*?)\1\]")
        text, *sources = (named.sub(r"\2", part) for part in (str(error), *error.sources))
        sources += re.findall(r"\.values\[['\"](.*?)['\"]\]", str(error))
        raise ConfigError(text, place=error.place, sources=sources) from None


def _number_at(root: Any, path: str) -> Any:
    """Return the number at a path of a graph in which every parameter has its value."""
    ref = paths.find_parameter(root, path)
    value = (
        ref.value if ref.value is not fdl.NO_VALUE else fiddle.default_of(ref.container, ref.key)
    )
    if value is fdl.NO_VALUE:
        raise ConfigError(f"{ref.path} has no value.")
    if isinstance(value, bool) or not hints.fits(value, Number):
        raise ConfigError(f"{ref.path} is {paths.describe(value)}, not a number.")
    return value


def is_at(root: Any, name: str, value: Any) -> bool:
    """Whether a name in a formula is the path of a value in a bound graph."""
    try:
        return paths.find_parameter(root, name).value is value
    except ConfigError:  # a tag, or the value before a change
        return False


def inputs_of(part: fdl.Buildable, path: str) -> list[str]:
    """Return the paths of what a formula at a path is computed from."""
    tagged = fiddle.set_arguments(part).get("values") or {}
    return [
        f"{path}.values[{name!r}]" if isinstance(tagged.get(name), TaggedValueCls) else name
        for name in names_in(fiddle.set_arguments(part)["text"])
    ]


def _holders(node: walk.Node) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that hold a formula, each with its annotation."""
    for parent, step in node.parents:
        if isinstance(parent.value, fdl.Buildable) and not isinstance(parent.value, TaggedValueCls):
            key: fiddle.Key = step[1:] if step.startswith(".") else int(step[1:-1])
            yield walk.join(parent.path, step), hints.hint_of(parent.value, key)
