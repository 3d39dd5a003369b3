"""The values of an axis as somebody types them: a list, or `lin`, `log` and `range` in one."""

import math
import re
from decimal import Decimal, DecimalException

from fidgpt.graph import ConfigError

_CALL = re.compile(r"\s*(lin|log|range)\((.*)\)\s*", re.DOTALL)
_FORMS = {
    "lin": "lin(first, last, count)",
    "log": "log(first, last, count)",
    "range": "range(first, end, step)",
}
_MOST = 100_000  # values of an axis: more is a slip of the keyboard


def expanded(text: str) -> list[str]:
    """The texts that a value stands for: many for `lin`, `log` and `range`, else itself.

    `lin(0, 1, 5)` and `log(1e-4, 1e-2, 9)` hold both ends; `range(0, 10, 2)` ends before its
    second number, as Python's does, and goes by ones without a third. Values of `log` are
    rounded to four digits and those of `lin` to six, whole numbers never, so that one can read
    and say them again.

    Raises:
      ConfigError: the numbers make no such values.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return [text.strip()]
    kind, numbers = match[1], _numbers(match[2])
    if kind == "range" and len(numbers) == 2:
        numbers.append(Decimal(1))
    if len(numbers) != 3:
        raise ConfigError(f"{text.strip()} needs three numbers: {_FORMS[kind]}.")
    first, last, third = numbers
    if kind == "range":
        return _range(text.strip(), first, last, third)
    if third != int(third) or not 1 <= third <= _MOST:
        raise ConfigError(f"{text.strip()} makes {third} values: count is a whole number from 1.")
    if kind == "log" and not (first > 0 and last > 0):
        raise ConfigError(f"{text.strip()} goes through 0: log needs numbers above it.")
    shares = [i / max(1, int(third) - 1) for i in range(int(third))]
    if kind == "lin":
        return [_written(float(first) + float(last - first) * share, 6) for share in shares]
    ratio = float(last) / float(first)
    return [_written(float(first) * ratio**share, 4) for share in shares]


def _range(text: str, first: Decimal, end: Decimal, step: Decimal) -> list[str]:
    count = math.ceil((end - first) / step) if step else 0
    if not 1 <= count <= _MOST:
        raise ConfigError(
            f"{text} holds no value, or too many: it goes from its first number by steps of its "
            "third, and ends before its second."
        )
    return [_written(float(first + i * step), 12) for i in range(count)]


def _numbers(text: str) -> list[Decimal]:
    try:
        return [_number(one) for one in text.split(",")]
    except (DecimalException, ValueError):
        raise ConfigError(f"({text}) holds what is no number.") from None


def _number(text: str) -> Decimal:
    """A number as Python writes it, or a power of two whole ones, such as `2**10`."""
    base, power, exponent = text.partition("**")
    if power:
        return Decimal(int(base)) ** int(exponent)
    number = Decimal(text.strip().replace("_", ""))
    if not number.is_finite():
        raise ValueError
    return number


def _written(value: float, digits: int) -> str:
    """A number with some digits; one that is whole but for rounding is written whole."""
    whole = round(value)
    if abs(value - whole) <= 1e-9 * abs(value) and abs(whole) < 10**12:
        return str(whole)
    return repr(float(f"{value:.{digits}g}"))
