"""Arithmetic on numbers, as somebody types it: a few operators, a few functions, never `eval`."""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from fidgpt.graph.errors import ConfigError

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
