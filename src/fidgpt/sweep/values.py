"""Axes of a sweep and their values."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from fidgpt.compose.directives import assignment
from fidgpt.compose.spelling import KINDS, split_directive
from fidgpt.graph import ConfigError
from fidgpt.graph.formulas import split_at_commas

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


ASSIGNED = ("set", "tag", "use", "tie")  # kinds of directives that have a value after a sign
NUMBERS = ("set", "tag")  # those of which it may be a number
_REPEAT = "--repeat="


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
      directives: those that say it; none where something is left out.
      label: what it is called, where its directives alone would not say.
    """

    directives: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True)
class Axis:
    """One thing that varies, in the place where its directives belong among the others.

    Attributes:
      text: how it was said, for messages.
      choices: its values.
    """

    text: str
    choices: tuple[Choice, ...]

    @property
    def is_repeat(self) -> bool:
        """Whether it is there to run the same again with other seeds."""
        return self.text.startswith(_REPEAT)


Item = str | Axis  # a directive, or something that varies in its place


def axis(text: str, values: Iterable[object] | None = None) -> Axis:
    """An axis of one directive: `tag:LearningRate=1e-4,3e-4`, `fiddler:use_rope,use_alibi`.

    Args:
      text: the directive with its values, or without them: `tag:LearningRate`.
      values: the values, where the text has none.

    Raises:
      ConfigError: the axis has no values.
    """
    if values is not None:
        separator = "=" if split_directive(text)[0] in ASSIGNED else ""
        separator = "" if text.endswith((":", "=")) else separator or ":"
        text += separator + ",".join(map(str, values))
    return Axis(f"--sweep={text}", tuple(Choice((one,)) for one in axis_values(text)))


def pairs(text: str) -> Axis:
    """Several directives that change together: `set:a=1,2;tag:B=3,4` is (1, 3) and (2, 4).

    Raises:
      ConfigError: one of them has no values, or not as many as the others.
    """
    columns = {one: axis_values(one, flag="--zip") for one in _pieces(text)}
    counts = {len(column) for column in columns.values()}
    if len(columns) < 2:
        raise ConfigError(f"--zip={text} pairs nothing: put a ; between two axes, and quote them.")
    if len(counts) > 1:
        told = "\n".join(f"  {len(values)} values: {one}" for one, values in columns.items())
        raise ConfigError(f"--zip pairs axes of one length, and these differ:\n{told}")
    rows = zip(*columns.values(), strict=True)
    return Axis(f"--zip={text}", tuple(Choice(row) for row in rows))


def repeat(text: str) -> Axis:
    """The same runs with other seeds: `seed:3` is the seed of the config, and the next two.

    Raises:
      ConfigError: there is no count.
    """
    what, _, count = text.rpartition(":")
    if not what or not count.strip().isdecimal() or int(count) < 1:
        raise ConfigError(f"--repeat={text} says not what, or how often: write --repeat=seed:3.")
    directive = what if split_directive(what)[0] else f"set:{what}"
    choices = tuple(Choice((f"{directive}+={i}",)) for i in range(int(count)))
    return Axis(f"{_REPEAT}{text}", choices)


def ablation(text: str) -> Axis:
    """All of some directives, then all but one of them, for each: `fiddler:use_gqa,use_moe`.

    Directives of several kinds stand with a `;` between them. A run with none of them is not
    among the values: an ablation asks what each one adds to the others.

    Raises:
      ConfigError: there is nothing to leave out.
    """
    every = tuple(one for piece in _pieces(text) for one in axis_values(piece, flag="--ablate"))
    if not every:
        raise ConfigError(f"--ablate={text} leaves nothing out: write --ablate=fiddler:A,B.")
    if len(set(every)) < len(every):
        raise ConfigError(f"--ablate={text} names one directive twice.")
    without = [
        Choice(every[:i] + every[i + 1 :], f"without {split_directive(one)[1].strip()}")
        for i, one in enumerate(every)
    ]
    return Axis(f"--ablate={text}", (Choice(every, "all"), *without))


def axis_values(text: str, *, flag: str = "--sweep") -> list[str]:
    """The directives that an axis of one directive stands for: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind, rest = split_directive(text)
    if kind not in KINDS:
        raise ConfigError(
            f"{flag}={text} says not which kind of directive it is: write, for example, "
            "tag:LearningRate=1e-3,3e-3 or fiddler:use_rope,use_alibi."
        )
    no_values = f"{flag}={text} has no values: write KIND:NAME=VALUE,VALUE."
    try:
        right = assignment(rest, text)[2] if kind in ASSIGNED else rest
    except ConfigError:
        raise ConfigError(no_values) from None
    values = [value.strip() for value in split_at_commas(right)]
    if not values:
        raise ConfigError(no_values)
    if kind in NUMBERS:
        values = [one for value in values for one in expanded(value)]
    prefix = f"{kind}:{rest.removesuffix(right)}"
    return [prefix + value for value in values]


def _pieces(text: str) -> list[str]:
    """What stands between semicolons, outside of brackets and quotes."""
    swapped = text.translate(str.maketrans(",;", ";,"))
    return [
        piece.translate(str.maketrans(",;", ";,")).strip() for piece in split_at_commas(swapped)
    ]
