"""Formulas: values computed from other values of the graph."""

import graphlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph import expressions, paths, selectors, walk
from fidgpt.graph.errors import ConfigError, at, raise_all, suggest
from fidgpt.graph.fiddle import Key, assign, default_of, set_arguments
from fidgpt.graph.hints import fits, hint_of, is_unknown, members_of, name_of

Number = int | float
_NAME = re.compile(r"\{([^{}]*)\}")
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


def means_formula(text: str, hint: Any) -> bool:
    """Whether a text means a formula where `hint` applies, rather than a text or a dict."""
    takes_numbers = any(is_unknown(one) or one in (int, float) for one in members_of(hint))
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
                "it cannot be computed from itself. To change its present value, write "
                f"for example {ref.path}*=2."
            )
    with at(text):
        try:  # with numbers that may fail where others do not
            expressions.compute(*_with_plain_names(text, dict.fromkeys(names, 1)))
        except ConfigError as error:
            if not isinstance(error.__cause__, ZeroDivisionError | OverflowError):
                plain = re.compile(r"\b_(\d+)\b")
                message = plain.sub(lambda one: f"{{{names[int(one[1])]}}}", str(error))
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


def look_up_names(root: Any, found: list[walk.Node]) -> None:
    """Set the values that each formula of a graph names, while it is being bound.

    Raises:
      ConfigErrors: names that lead nowhere, or to what is not a number.
      ConfigError: a formula is computed from itself.
    """
    formulas = [node for node in found if is_formula(node.value)]
    errors: list[ConfigError] = []
    for node in formulas:
        known = dict(set_arguments(node.value).get("values") or {})
        for name in names_in(node.value.text):
            try:
                if name not in known:
                    known[name] = _number_at(root, name)
            except ConfigError as error:
                message = f"{node.path} is {node.value.text}: {error}"
                errors.append(ConfigError(message, place=node.path, sources=[node.path, name]))
        assign(node.value, "values", known)
        members = [members_of(hint) for _, hint in _holders(node)]
        if any(int in one and float not in one for one in members):
            assign(node.value, "whole", True)
    raise_all(errors)
    by_id = {id(node.value): node for node in formulas}
    inputs = {key: [*map(id, node.value.values.values())] for key, node in by_id.items()}
    try:
        graphlib.TopologicalSorter(inputs).prepare()
    except graphlib.CycleError as error:
        circle = [node for key, node in by_id.items() if key in error.args[1]]
        steps = [f"{node.path} is {node.value.text}" for node in circle]
        raise ConfigError(
            f"{', and '.join(steps)}: a number cannot be computed from itself.",
            sources=[node.path for node in circle],
        ) from None
    if formulas:
        walk.nodes(root)  # raises if a circle leads through other nodes


def _number_at(root: Any, path: str) -> Any:
    """Return the number at a path of a graph in which every parameter has its value."""
    ref = paths.find_parameter(root, path)
    value = ref.value if ref.value is not fdl.NO_VALUE else default_of(ref.container, ref.key)
    if value is fdl.NO_VALUE:
        raise ConfigError(f"{ref.path} has no value.")
    if isinstance(value, bool) or not fits(value, Number):
        raise ConfigError(f"{ref.path} is {paths.describe(value)}, not a number.")
    return value


def wrong_formulas(found: list[walk.Node]) -> Iterator[ConfigError]:
    """Yield what is wrong with the results of formulas whose inputs are all known by now."""
    results: dict[int, Any] = {}
    for node in reversed(found):
        if not is_formula(node.value):
            continue
        try:
            result = results[id(node.value)] = _result(node.value, results)
        except ConfigError as error:
            yield ConfigError(f"{node.path}: {error}", place=node.path, sources=_sources(node))
            continue
        wrong = [one for one in _holders(node) if not fits(result, one[1])]
        if result is not fdl.NO_VALUE and wrong:
            path, hint = wrong[0]
            yield ConfigError(
                f"{path} is {node.value.text} = {result!r}, and takes {name_of(hint)}.",
                place=path,
                sources=_sources(node),
            )


def _sources(node: walk.Node) -> list[str]:
    """Return the paths of a formula and of all that it names; tags are entries of its values."""
    values = set_arguments(node.value).get("values") or {}
    is_tag = {name: isinstance(value, TaggedValueCls) for name, value in values.items()}
    names = names_in(node.value.text)
    return [
        node.path,
        *(f"{node.path}.values[{n!r}]" if is_tag.get(n) else n for n in names),
    ]


def _result(part: fdl.Buildable, results: Mapping[int, Any]) -> Any:
    """Return what a formula gives; `fdl.NO_VALUE` while an input is not known."""
    arguments = set_arguments(part)
    known: dict[str, Any] = {}
    for name, value in (arguments.get("values") or {}).items():
        if isinstance(value, TaggedValueCls):
            value = set_arguments(value).get("value", fdl.NO_VALUE)
        known[name] = results.get(id(value), fdl.NO_VALUE) if is_formula(value) else value
    is_complete = known.keys() >= {*names_in(arguments["text"])}
    if not is_complete or not all(type(value) in (int, float) for value in known.values()):
        return fdl.NO_VALUE
    return formula(arguments["text"], known, arguments.get("whole", False))


def _holders(node: walk.Node) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that hold a formula, each with its annotation."""
    for parent, step in node.parents:
        if isinstance(parent.value, fdl.Buildable) and not isinstance(parent.value, TaggedValueCls):
            key: Key = step[1:] if step.startswith(".") else int(step[1:-1])
            yield walk.join(parent.path, step), hint_of(parent.value, key)
