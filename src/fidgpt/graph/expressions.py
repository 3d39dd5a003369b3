"""Texts of directives: literals, arithmetic, calls and lists, and values as annotations ask."""

import ast
import contextlib
import enum
import inspect
import math
import operator
import pathlib
import re
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fidgpt.errors import ConfigError, suggest
from fidgpt.graph import hints
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


def item_texts(text: str, hint: Any) -> dict[Any, str]:
    """Return the texts of the items of a list, tuple or dict by key, where one may stand; else {}.

    Brackets may be left out where there are several: `a, b`.
    """
    inner = text.strip()
    brackets = inner[:1] + inner[-1:]
    if brackets == "{}" and _takes(dict, hint):
        entries = [entry.partition(":") for entry in split_at_commas(inner[1:-1])]
        is_dict = all(colon for _, colon, _ in entries)
        return {_read_key(key, hint): entry.strip() for key, _, entry in entries} if is_dict else {}
    if not (_takes(list, hint) or _takes(tuple, hint)):
        return {}
    items = split_at_commas(inner)
    if len(items) == 1 and brackets in ("[]", "()"):
        items = split_at_commas(inner[1:-1])
    is_list = brackets == "[]" or len(items) > 1 or inner.endswith(",)")
    return {i: item.strip() for i, item in enumerate(items)} if is_list else {}


def read_items(text: str, hint: Any, read: Callable[[Any, str], Any]) -> Any:
    """Return the container whose items a text has, each as `read` makes of its key and text."""
    items = {key: read(key, item_text) for key, item_text in item_texts(text, hint).items()}
    if text.lstrip()[:1] == "{":
        return items
    return as_asked((tuple if text.lstrip()[:1] == "(" else list)(items.values()), hint)


def _takes(kind: type, hint: Any) -> bool:
    """Whether a container of Python's own may stand where a hint applies, whatever is in it."""

    def is_one(member: Any) -> bool:
        origin = typing.get_origin(member) or member
        if hints.is_unknown(member):
            return True
        is_own = getattr(origin, "__module__", "") in ("builtins", "collections.abc")
        return is_own and inspect.isclass(origin) and issubclass(kind, origin)

    return any(map(is_one, hints.members_of(hint)))


def read_value(text: str, hint: Any) -> Any:
    """The value that `text` means where `hint` is asked.

    Numbers may be written 1e3, 1_024 or 2**10; a string needs no quotes, names of enums, Literals
    and dtypes neither; None, True, False, lists, tuples and dicts are written as in Python. A
    whole number is read as an int where an int is asked, however it is written; nothing else is
    converted.

    Raises:
      ConfigError: the text means nothing that fits.
    """
    try:
        for reading in _readings(text, hint):
            value = as_asked(reading, hint)
            if hints.fits(value, hint):
                return value
    except tuple(NO_NUMBER) as error:
        raise ConfigError(f"{text!r:.60} {NO_NUMBER[type(error)]}.") from None
    asked = {key: hints.element_hint(hint, key) for key in item_texts(text, hint)}
    if asked and not any(map(hints.is_unknown, asked.values())):
        value = read_items(text, hint, lambda key, item: read_value(item, asked[key]))
        if hints.fits(value, hint):
            return value
    raise ConfigError(_no_such_value(text, hint))


def _readings(text: str, hint: Any) -> list[Any]:
    """What a text may mean, the likeliest first."""
    members, choices, word = hints.members_of(hint), choices_of(hint), text.strip()
    if word in choices:
        return [choices[word]]
    if any(hints.is_torch(member, "device") for member in members):
        with contextlib.suppress(RuntimeError):  # it is not the name of one
            return [sys.modules["torch"].device(word)]
    is_quoted = word[:1] in ("'", '"') and word[:1] == word[-1:] and len(word) > 1
    if members == (str,) and not is_quoted:
        if word == "None":
            raise ConfigError("None is not a str: for the word, write it in quotes: 'None'.")
        return [text]
    takes_path = any(inspect.isclass(t) and issubclass(t, pathlib.Path) for t in members)
    others: list[Any] = [pathlib.Path(word)] if takes_path and word else []
    if float in members and word.lower() in ("inf", "+inf", "-inf"):
        return [float(word), text]
    try:
        # Python ends a quoted text at the end of a line; on a command line it may have several.
        value = evaluate(parsed(word.replace("\n", "\\n") if is_quoted else word))
    except UNREADABLE as error:
        if type(error) in NO_NUMBER and str not in members:
            raise
        return [text, *others]
    if isinstance(value, str) and is_quoted:
        named = [choices[value]] if value in choices else []
        return [value, *named, *([pathlib.Path(value)] if takes_path else [])]
    if isinstance(value, str):
        return [text, *others]  # a bare word, from which Python would drop () and the text after #
    return [value, text, *others]


def _read_key(text: str, hint: Any) -> Any:
    """Return the key of a dict; a bare word may be the name of one."""
    text, asked = text.strip(), hints.key_hint(hint)
    key = as_asked(read_value(text, Any), asked)
    return read_value(text, asked) if isinstance(key, str) and not hints.fits(key, asked) else key


def as_asked(value: Any, hint: Any) -> Any:
    """1e3 where an int is asked, [1, 2] where a tuple is, and an int where only a float is."""
    members = hints.members_of(hint)
    if is_whole(value):
        return int(value) if int in members and float not in members else value
    if type(value) is int and float in members and int not in members:
        return float(value)
    if isinstance(value, dict):
        keys = {key: as_asked(key, hints.key_hint(hint)) for key in value}
        return {
            keys[key]: as_asked(item, hints.element_hint(hint, keys[key]))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [as_asked(item, hints.element_hint(hint, i)) for i, item in enumerate(value)]
        origins = {typing.get_origin(member) or member for member in members}
        asked = [kind for kind in (type(value), list, tuple) if kind in origins]
        return asked[0](items) if asked else type(value)(items)
    return value


def choices_of(hint: Any) -> dict[str, Any]:
    """The names that enums, Literals and dtypes among the members of a hint offer."""
    choices: dict[str, Any] = {}
    for member in hints.members_of(hint):
        if typing.get_origin(member) is typing.Literal:
            choices |= {str(value): value for value in typing.get_args(member)}
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            choices |= {item.name: item for item in member}
        elif hints.is_torch(member, "dtype"):
            known = vars(sys.modules["torch"])
            named = {name: value for name, value in known.items() if isinstance(value, member)}
            choices |= named | {f"torch.{name}": value for name, value in named.items()}
    return choices


def _no_such_value(text: str, hint: Any) -> str:
    name = hints.name_of(hint)
    article = f"{'an' if name[:1] in 'aeiou' else 'a'} " if name.isidentifier() else ""
    if not text.strip():
        return f"nothing follows the '='; it takes {article}{name}."
    message = f"{text!r:.60} is not {article}{name}."
    if choices := choices_of(hint):
        return f"{message} {suggest(text, choices)}"
    element = hints.element_hint(hint, 0)
    if not hints.is_unknown(element) and hints.fits(text, element):
        return f"{message} Write {[text]!r:.60}."
    if not hints.can_be_typed(hint):
        return f"{message} It takes a component, which cannot be typed: use a fiddler to set it."
    return message
