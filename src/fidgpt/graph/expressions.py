"""Texts of directives: literals, arithmetic, calls, and lists with commas."""

import ast
import inspect
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fidgpt.errors import ConfigError, suggest
from fidgpt.graph.fiddle import VARIADIC

UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    ArithmeticError,
    KeyError,
    MemoryError,
    RecursionError,
)
NO_NUMBER: dict[type[Exception], str] = {  # what goes wrong with one that is out of range
    ZeroDivisionError: "divides by zero",
    OverflowError: "is too large a number",
}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
}
_FUNCTIONS = {"min": min, "max": max, "round": round, "int": int}
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_MOST_BITS = 1024  # of a power: 9**9**9 would keep the machine busy for hours
_EXACT = 2**53  # below it, a whole float is the number that was written
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def parsed(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
      SyntaxError, ValueError, MemoryError, RecursionError: it is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whoever typed "\\d" knows that it is no escape
        return ast.parse(text, mode="eval").body


def evaluate(node: ast.expr, numbers: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an expression.

    Args:
      node: the expression.
      numbers: those that names stand for, which allows arithmetic only; None for a literal, in
        which names are words.

    Raises:
      ValueError, TypeError, KeyError, ArithmeticError: it has none.
    """
    is_literal = numbers is None
    match node:
        case ast.BinOp(left, op, right):
            if type(op) not in _OPERATORS or (is_literal and isinstance(op, ast.Mod)):
                raise ValueError(f"there is no {type(op).__name__}")
            sides = evaluate(left, numbers), evaluate(right, numbers)
            return calculate(_OPERATORS[type(op)], *sides)
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, operand):
            factor = -1 if isinstance(sign, ast.USub) else 1
            return calculate(operator.mul, factor, evaluate(operand, numbers))
        case ast.List(items) | ast.Tuple(items) if is_literal:
            values = [evaluate(item) for item in items]
            return values if isinstance(node, ast.List) else tuple(values)
        case ast.Dict(keys, values) if is_literal and None not in keys:
            return {evaluate(k): evaluate(v) for k, v in zip(keys, values, strict=True) if k}
        case ast.Name(name) if is_literal:
            return _WORDS.get(name.lower(), name)
        case ast.Name(name) if numbers and name in numbers:
            return calculate(operator.mul, 1, numbers[name])
        case ast.Call(ast.Name(name), arguments, []) if not is_literal:
            if name not in _FUNCTIONS:
                raise ValueError(f"there is no {name}(), only {', '.join(_FUNCTIONS)}")
            values = [evaluate(argument, numbers) for argument in arguments]
            return finite(_FUNCTIONS[name](*values))
        case ast.Constant(value) if is_literal or type(value) in (int, float):
            return finite(value)
    if is_literal:
        return finite(ast.literal_eval(node))
    raise ValueError(f"{ast.unparse(node):.40} is not a number")


def compute(text: str, numbers: Mapping[str, Any]) -> int | float:
    """Return the result of arithmetic, with `numbers` for the names in it.

    Raises:
      ConfigError: it is not arithmetic, divides by zero, or gives too large a number.
    """
    try:
        return evaluate(parsed(text.strip()), numbers)
    except tuple(NO_NUMBER) as error:
        raise ConfigError(f"it {NO_NUMBER[type(error)]}.") from error
    except UNREADABLE as error:
        reason = error.msg if isinstance(error, SyntaxError) else f"{error!s:.100}"
        reason = reason or "it is too deep"
        raise ConfigError(f"it is not supported arithmetic: {reason}.") from error


def calculate(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operation to two numbers.

    Raises:
      ValueError: one of them is not a number, or the result is not.
      OverflowError: the result is too large, or a power too long to compute.
      ZeroDivisionError: it divides by zero.
    """
    if not all(isinstance(side, int | float) for side in (left, right)):
        raise ValueError("operands must be numbers")
    is_power = operation is operator.pow and type(left) is type(right) is int
    if is_power and left.bit_length() * abs(right) > _MOST_BITS:
        raise OverflowError
    return finite(operation(left, right))


def finite(value: Any) -> Any:
    """Return the value itself.

    Raises:
      ValueError, OverflowError: it is infinite, a complex number or `...`.
    """
    if value is ... or isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def read_float(text: str) -> float:
    """Return the float of a numeral.

    Raises:
      ConfigError: it is too large for a float.
    """
    value = float(text)
    if math.isinf(value):
        raise ConfigError(f"{text:.40} {NO_NUMBER[OverflowError]}.")
    return value


def is_whole(value: Any) -> bool:
    """Whether a float is exactly a whole number."""
    return isinstance(value, float) and value.is_integer() and abs(value) < _EXACT


@dataclass(frozen=True)
class Call:
    """A name and the texts of its arguments."""

    name: str
    positional: list[str]
    named: dict[str, str]

    def texts(
        self, parameters: Iterable[inspect.Parameter], *, is_complete: bool = False
    ) -> dict[str, str]:
        """Return the texts of the arguments by the names of the parameters.

        Args:
          parameters: of the function that is called.
          is_complete: whether all that have no default must be given.

        Raises:
          ConfigError: an argument is unknown, missing, one too many, or given twice.
        """
        takes_any, own = False, []
        for arg in parameters:
            takes_any |= arg.kind is arg.VAR_KEYWORD
            own += [arg.replace(kind=arg.POSITIONAL_OR_KEYWORD)] * (arg.kind not in VARIADIC)
        signature = inspect.Signature(sorted(own, key=lambda arg: arg.default is not arg.empty))
        known = list(signature.parameters)
        more = {name: text for name, text in self.named.items() if name not in known}
        if more and not takes_any:
            raise ConfigError(
                f"{self.name} has no argument {next(iter(more))!r}. "
                f"{suggest(next(iter(more)), known)}"
            )
        named = {name: text for name, text in self.named.items() if name in known}
        bind = signature.bind if is_complete else signature.bind_partial
        try:
            return {**bind(*self.positional, **named).arguments, **more}
        except TypeError as error:
            raise ConfigError(f"{self.name}({', '.join(known)}): {error}.") from None


def parse_call(text: str) -> Call:
    """Split a call into its texts; values are read later, by the function's annotations.

    Raises:
      ConfigError: the parentheses or the commas are wrong.
    """
    name, parenthesis, rest = text.partition("(")
    if not parenthesis:
        return Call(text.strip(), [], {})
    if not rest.rstrip().endswith(")"):
        raise ConfigError(f"{text!r:.80} must end with the closing parenthesis.")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in split_at_commas(rest.rstrip()[:-1]):
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise ConfigError(f"{name.strip()} is given {key.strip()} twice.")
            named[key.strip()] = value.strip()
        elif named:
            raise ConfigError(f"{argument.strip()!r} is positional but follows a named argument.")
        else:
            positional.append(argument.strip())
    return Call(name.strip(), positional, named)


def split_at_commas(text: str) -> list[str]:
    """Return the pieces between commas that are outside brackets and quotes.

    A quote begins where a value does; elsewhere, or where nothing closes it, it is an apostrophe. A
    comma may stand at the end.

    Raises:
      ConfigError: there is nothing between two commas, or a bracket is not closed or not opened.
    """
    pieces, depth, start, at_start, i = [], 0, 0, True, 0
    while i < len(text):
        letter = text[i]
        if at_start and (quoted := _QUOTED.match(text, i)):
            i = quoted.end()
            at_start = False
            continue
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            raise ConfigError(f"{text!r:.80} closes a bracket that is not open: quote the text.")
        if letter == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
        at_start = letter in "([{,;:=" or (at_start and letter.isspace())
        i += 1
    pieces.append(text[start:])
    if not pieces[-1].strip():
        pieces.pop()
    if not all(piece.strip() for piece in pieces):
        raise ConfigError(f"{text!r:.80} has nothing before a comma.")
    if depth > 0:
        raise ConfigError(f"{text!r:.80} has an unclosed bracket.")
    return pieces
