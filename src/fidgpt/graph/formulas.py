"""Formulas: values computed from other quantities of the graph."""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph.errors import ConfigError, at, raise_all, suggest
from fidgpt.graph.fiddle import Key, assign, default_of, set_arguments
from fidgpt.graph.hints import fits, hint_of, is_unknown, members_of, name_of
from fidgpt.graph.paths import ParameterRef, describe, find_parameter, parse_path
from fidgpt.graph.selectors import tags_in
from fidgpt.graph.walk import Node, join, nodes

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    ArithmeticError,
    KeyError,
    MemoryError,
    RecursionError,
)
_NUMERAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_ZERO = re.compile(r"[0_.]*(e.*)?", re.IGNORECASE)
_MORE_OPERATORS = {**OPERATORS, ast.Mod: operator.mod}
_FUNCTIONS = {"min": min, "max": max, "round": round, "int": int}
_TAKEN = {  # how many numbers a function takes, at least and at most, and in words
    "min": (2, math.inf, "2 numbers or more"),
    "max": (2, math.inf, "2 numbers or more"),
    "round": (1, 2, "1 or 2 numbers"),
    "int": (1, 1, "1 number"),
}
_NEVER_ZERO = (operator.mul, operator.truediv, operator.pow)  # of what is not zero itself
_MOST_BITS = 1024  # of a power: 9**9**9 would keep the machine busy for hours
_VANISHED = "it is too small a number: as a float it would be 0.0"
_EXACT = 2**53  # below it, a whole float is the number that was written


def parsed(text: str) -> ast.expr:
    """The expression that a text is.

    Raises:
      SyntaxError, ValueError, MemoryError, RecursionError: it is none.
      FloatingPointError: a number in it is so small that only 0.0 is left of it.
    """
    if _NUMERAL.fullmatch(text):  # most are, and there is nothing to warn of
        return ast.parse(text, mode="eval").body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that "\\d" is no escape is not news to who typed it
        expression = ast.parse(text, mode="eval").body
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and type(node.value) is float and not node.value:
            written = ast.get_source_segment(text, node)
            if not _ZERO.fullmatch(written or "0"):  # such as 1e-400
                raise FloatingPointError(_VANISHED)
    return expression


def compute(text: str, numbers: Mapping[str, Any]) -> int | float:
    """What an expression gives, with `numbers` for the names in it.

    Raises:
      ConfigError: it is no arithmetic, divides by zero, or is too large a number.
    """
    try:
        return _evaluate(parsed(text.strip()), numbers)
    except ZeroDivisionError:
        raise ConfigError("it divides by zero.") from None
    except OverflowError:
        raise ConfigError("it is too large a number.") from None
    except FloatingPointError as error:
        raise ConfigError(f"{error}.") from None
    except UNREADABLE as error:
        raise ConfigError(f"it is no arithmetic that a config can do: {_reason(error)}.") from None


def refuse_unreadable(text: str, numbers: Mapping[str, Any]) -> None:
    """Refuses what is no arithmetic, whatever the numbers may turn out to be.

    Raises:
      ConfigError: it is none.
    """
    try:
        _evaluate(parsed(text.strip()), numbers)
    except (ZeroDivisionError, OverflowError):
        return
    except FloatingPointError as error:
        raise ConfigError(f"{error}.") from None
    except UNREADABLE as error:
        raise ConfigError(f"it is no arithmetic that a config can do: {_reason(error)}.") from None


def calculate(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Two numbers put together.

    Raises:
      ValueError: one of them is no number, or the result is none.
      OverflowError: the result is too large.
      FloatingPointError: the result is so small that only 0.0 is left of it.
      ZeroDivisionError: it divides by zero.
    """
    if not all(isinstance(side, int | float) for side in (left, right)):
        raise ValueError("arithmetic is for numbers")
    is_power = operation is operator.pow and isinstance(left, int) and isinstance(right, int)
    if is_power and left.bit_length() * abs(right) > _MOST_BITS:
        raise FloatingPointError(_VANISHED) if right < 0 else OverflowError("it is too large")
    result = finite(operation(left, right))
    if result == 0 and _is_never_zero(operation, left, right):
        raise FloatingPointError(_VANISHED)
    return result


def _is_never_zero(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    is_by_zero = operation is operator.mul and not right
    return operation in _NEVER_ZERO and bool(left) and not is_by_zero


def finite(value: Any) -> Any:
    """The value itself.

    Raises:
      ValueError, OverflowError: it is an infinity, a complex number or `...`.
    """
    if value is ... or isinstance(value, complex):
        raise ValueError("nothing that a config holds")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError("no float is as large")
    return value


def read_float(text: str) -> float:
    """Return the float of a numeral.

    Raises:
      ConfigError: it is too large or too small for a float.
    """
    value = float(text)
    if math.isinf(value):
        raise ConfigError(f"{text:.40} is too large a number.")
    if not value and not _ZERO.fullmatch(text.lstrip("+-")):
        raise ConfigError(f"{text:.40} is too small a number: as a float it would be 0.0.")
    return value


def is_whole(value: Any) -> bool:
    """Whether a float is exactly a whole number."""
    return isinstance(value, float) and value.is_integer() and abs(value) < _EXACT


def _evaluate(node: ast.expr, numbers: Mapping[str, Any]) -> int | float:
    if isinstance(node, ast.BinOp):
        operation = _MORE_OPERATORS.get(type(node.op))
        if operation is None:
            raise ValueError(f"there is no {type(node.op).__name__}")
        return calculate(operation, _evaluate(node.left, numbers), _evaluate(node.right, numbers))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        return calculate(operator.mul, sign, _evaluate(node.operand, numbers))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, [_evaluate(arg, numbers) for arg in node.args])
    if isinstance(node, ast.Name) and node.id in numbers:
        return calculate(operator.mul, 1, numbers[node.id])
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return finite(node.value)
    raise ValueError(f"{ast.unparse(node):.40} is no number")


def _call(name: str, numbers: list[Any]) -> int | float:
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no {name}(), only {', '.join(_FUNCTIONS)}")
    fewest, most, asked = _TAKEN[name]
    if not fewest <= len(numbers) <= most:
        raise ValueError(f"{name}() takes {asked}, and is given {len(numbers)}")
    return finite(_FUNCTIONS[name](*numbers))


def _reason(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else f"{error!s:.100}" or "it is too deep"


@dataclass(frozen=True)
class Call:
    """A name and the texts of its arguments."""

    name: str
    positional: list[str]
    named: dict[str, str]


def parse_call(text: str) -> Call:
    """Splits a call into its texts; values are read later, by the function's annotations.

    Raises:
      ConfigError: the parentheses or the commas are wrong.
    """
    name, parenthesis, rest = text.partition("(")
    if not parenthesis:
        return Call(text.strip(), [], {})
    if not rest.rstrip().endswith(")"):
        raise ConfigError(f"{text!r:.80} opens a parenthesis and does not end with its other half.")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in split_at_commas(rest.rstrip()[:-1]):
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise ConfigError(f"{name.strip()} is given {key.strip()} twice.")
            named[key.strip()] = value.strip()
        elif named:
            raise ConfigError(f"{argument.strip()!r} has no name and follows one that has.")
        else:
            positional.append(argument.strip())
    return Call(name.strip(), positional, named)


def split_at_commas(text: str, *, quotes: str = "'\"") -> list[str]:
    """Pieces between commas that stand outside of brackets and quotes.

    A quote that is not closed is an apostrophe. A comma may stand at the end.

    Raises:
      ConfigError: there is nothing between two commas.
    """
    pieces, depth, quote, start = [], 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in quotes:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    if quote:
        return split_at_commas(text, quotes=quotes.replace(quote, ""))
    pieces.append(text[start:])
    if not pieces[-1].strip():
        pieces.pop()
    if not all(piece.strip() for piece in pieces):
        raise ConfigError(f"{text!r:.80} has a comma with nothing before it.")
    return pieces


Number = int | float
_NAME = re.compile(r"\{([^{}]*)\}")
_REFERENCE = re.compile(r"\{\s*@?[A-Za-z_\[][^{}:,]*\}")


def formula(
    text: str, values: Mapping[str, Number] | None = None, whole: bool = False
) -> int | float:
    """The number that `text` computes from numbers named in braces.

    Args:
      text: arithmetic with `+ - * / // % **`, min, max, round and int.
      values: the number for each name; a bound graph has them all.
      whole: whether a whole number is asked; a float that is one becomes an int.

    Raises:
      ConfigError: the text is no arithmetic, or what it gives is not whole.
    """
    with at(text):
        result = compute(*_with_plain_names(text, values or {}))
    if not whole or isinstance(result, int):
        return result
    if not is_whole(result):
        raise ConfigError(f"{text} is {result!r}, which is not a whole number.")
    return int(result)


def is_formula(part: Any) -> bool:
    """Whether a value is a formula."""
    return isinstance(part, fdl.Buildable) and fdl.get_callable(part) is formula


def means_formula(text: str, hint: Any) -> bool:
    """Whether a text means a formula where `hint` is asked, rather than a text or a dict."""
    if "{" not in text:
        return False
    members = members_of(hint)
    takes_numbers = any(is_unknown(one) or one in (int, float) for one in members)
    return takes_numbers and _REFERENCE.search(text) is not None


def make_formula(root: Any, text: str, *, ref: ParameterRef | None = None) -> fdl.Config[Any]:
    """A formula that stands somewhere under `root`.

    Raises:
      ConfigError: it is no arithmetic, names a tag that there is not, or the place itself.
    """
    tags: dict[str, Any] = {}
    for name in dict.fromkeys(names_in(text)):
        tag = _tag_of(root, name)
        keys = None if tag else parse_path(name)
        if tag is not None:
            tags[name] = TaggedValue(tags=[tag])
        if ref is not None and _is_itself(root, ref, keys, tag):
            raise ConfigError(
                "it cannot be computed from itself. To change its present value, write "
                f"for example {ref.path}*=2."
            )
    with at(text):
        _refuse_unreadable(text)
    made = fdl.Config(formula, text=text.strip())
    if tags:
        made.values = tags
    return made


def _is_itself(root: Any, place: ParameterRef, keys: list[Key] | None, tag: Any) -> bool:
    """Whether a formula names its own place: by the keys of a path, or by a tag of the root."""
    if tag is None:
        return keys == parse_path(place.path)
    return place.container is root and tag in fdl.get_tags(root, place.key)


def _refuse_unreadable(text: str) -> None:
    names = list(dict.fromkeys(names_in(text)))
    try:
        refuse_unreadable(*_with_plain_names(text, dict.fromkeys(names, 1)))
    except ConfigError as error:
        told = re.sub(r"\b_(\d+)\b", lambda found: f"{{{names[int(found[1])]}}}", str(error))
        raise ConfigError(told) from None


def names_in(text: str) -> list[str]:
    """The names in braces, in order."""
    return [name.strip() for name in _NAME.findall(text)]


def _with_plain_names(text: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text with a plain name for each one in braces, and the numbers by plain name."""
    plain = {name: f"_{i}" for i, name in enumerate(dict.fromkeys(names_in(text)))}
    for name in plain:
        if name not in values:
            raise ConfigError(f"{name} has no value before the graph is bound.")
    text = _NAME.sub(lambda match: f" {plain[match[1].strip()]} ", text)
    return text, {plain[name]: value for name, value in values.items() if name in plain}


def _tag_of(root: Any, name: str) -> Any:
    """The tag that a name in braces stands for; None for a path."""
    known = tags_in(root)
    if name.startswith("@"):
        if name[1:] not in known:
            raise ConfigError(f"no parameter carries the tag {name[1:]}. {suggest(name, known)}")
        return known[name[1:]]
    if name in known and not (isinstance(root, fdl.Buildable) and hasattr(root, name)):
        return known[name]
    return None


def look_up_names(root: Any, found: list[Node]) -> None:
    """Gives each formula among the nodes of a graph that is being bound the values it names.

    Raises:
      ConfigErrors: names that lead nowhere, or to what is no number.
      ConfigError: a formula is computed from itself.
    """
    formulas = [node for node in found if is_formula(node.value)]
    mistakes: list[ConfigError] = []
    for node in formulas:
        known = dict(set_arguments(node.value).get("values") or {})
        for name in names_in(node.value.text):
            try:
                if name not in known:
                    known[name] = _referred(root, name)
            except ConfigError as error:
                told = f"{node.path} is {node.value.text}: {error}"
                mistakes.append(ConfigError(told, place=node.path, sources=[node.path, name]))
        assign(node.value, "values", known)
        if any(_asks_whole(hint) for _, hint in _asked(node)):
            assign(node.value, "whole", True)
    raise_all(mistakes)
    if circle := _circle(formulas):
        steps = [f"{node.path} is {node.value.text}" for node in circle]
        raise ConfigError(
            f"{', and '.join(steps)}: no number can be computed from itself.",
            sources=[node.path for node in circle],
        )
    if formulas:
        nodes(root)  # refuses a circle that leads through other parts


def _referred(root: Any, path: str) -> Any:
    """The value at a path of a graph in which every quantity has been heard."""
    place = find_parameter(root, path)
    value = place.value
    if value is fdl.NO_VALUE:
        value = default_of(place.container, place.key)
    if value is fdl.NO_VALUE:
        raise ConfigError(f"{place.path} has no value.")
    if isinstance(value, bool) or not fits(value, Number):
        raise ConfigError(f"{place.path} is {describe(value)}, and no number.")
    return value


def _circle(formulas: list[Node]) -> list[Node]:
    """The first formulas that are computed from each other in a circle."""
    known = {id(node.value): node for node in formulas}
    done: set[int] = set()
    for node in formulas:
        way: list[Any] = []
        inside: set[int] = set()
        left = [(node.value, 0)]
        while left:
            part, depth = left.pop()
            inside.difference_update(map(id, way[depth:]))
            del way[depth:]
            if id(part) in inside:
                first = next(i for i, passed in enumerate(way) if passed is part)
                return [known[id(one)] for one in way[first:]]
            if id(part) in done:
                continue
            done.add(id(part))
            inside.add(id(part))
            way.append(part)
            left += [(value, depth + 1) for value in part.values.values() if is_formula(value)]
    return []


def wrong_formulas(found: list[Node]) -> Iterator[ConfigError]:
    """What is wrong with the results of formulas whose inputs are all known by now."""
    results: dict[int, Any] = {}
    for node in reversed(found):
        if not is_formula(node.value):
            continue
        try:
            result = _result(node.value, results)
        except ConfigError as error:
            yield ConfigError(f"{node.path}: {error}", place=node.path, sources=_sources(node))
            continue
        results[id(node.value)] = result
        misfit = [asked for asked in _asked(node) if not fits(result, asked[1])]
        if result is not fdl.NO_VALUE and misfit:
            path, hint = misfit[0]
            yield ConfigError(
                f"{path} is {node.value.text} = {result!r}, and takes {name_of(hint)}.",
                place=path,
                sources=_sources(node),
            )


def _sources(node: Node) -> list[str]:
    """The paths of a formula and of all that it names; a tag is heard by an entry of its values."""
    tags = set_arguments(node.value).get("values") or {}
    return [
        node.path,
        *(
            f"{node.path}.values[{name!r}]" if isinstance(tags.get(name), TaggedValueCls) else name
            for name in names_in(node.value.text)
        ),
    ]


def _result(part: fdl.Buildable, results: Mapping[int, Any]) -> Any:
    """What a formula gives; `fdl.NO_VALUE` while an input is not known."""
    arguments = set_arguments(part)
    known: dict[str, Any] = {}
    for name, value in (arguments.get("values") or {}).items():
        if isinstance(value, TaggedValueCls):
            value = set_arguments(value).get("value", fdl.NO_VALUE)
        known[name] = results.get(id(value), fdl.NO_VALUE) if is_formula(value) else value
    is_complete = all(name in known for name in names_in(arguments["text"]))
    if not is_complete or not all(type(value) in (int, float) for value in known.values()):
        return fdl.NO_VALUE
    return formula(arguments["text"], known, arguments.get("whole", False))


def _asked(node: Node) -> Iterator[tuple[str, Any]]:
    """The parameters that hold a formula, each with its annotation."""
    for parent, step in node.parents:
        if isinstance(parent.value, fdl.Buildable) and not isinstance(parent.value, TaggedValueCls):
            key: Key = step[1:] if step.startswith(".") else int(step[1:-1])
            yield join(parent.path, step), hint_of(parent.value, key)


def _asks_whole(hint: Any) -> bool:
    return int in members_of(hint) and float not in members_of(hint)
