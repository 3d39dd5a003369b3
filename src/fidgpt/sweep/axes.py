"""Axes of a sweep: their values, and the names of what varies."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fidgpt.compose import directives as registry
from fidgpt.compose.messages import Written, directive_error
from fidgpt.errors import ConfigError, at
from fidgpt.graph.expressions import compute, split_at_commas
from fidgpt.graph.outlines import leaf_text

__all__ = ["Axis", "Choice", "ablation", "axis", "axis_values", "pairs", "repeat"]

_COUNTED = re.compile(r"\s*(-?\d+)\.\.(-?\d+)\s*")
_CALL = re.compile(r"\s*(lin|log|range)\((.*)\)\s*", re.DOTALL)
_FORMS = {
    "lin": "lin(first, last, count)",
    "log": "log(first, last, count), of numbers above 0",
    "range": "range(first, end, step), whose step leads from the first to the end",
}
_MOST = 100_000  # values of an axis; more are a typing error
_REPEAT = "--repeat="
_LAST = re.compile(r"([A-Za-z_]\w*)\W*$")


class Parsed(NamedTuple):
    """The pieces of a directive.

    Attributes:
      kind: such as `set`; "" if there is none.
      name: the parameter assigned; "" if the directive is not an assignment.
      sign: of a relative assignment, such as `*`.
      value: all that follows.
    """

    kind: str
    name: str
    sign: str
    value: str

    @property
    def subject(self) -> str:
        """What the directive is about: what it assigns, or its kind."""
        return self.name or self.kind


def parsed(directive: str) -> Parsed:
    """Split a directive.

    Raises:
      ConfigError: an assignment has no `=`.
    """
    kind, rest = registry.split_directive(directive)
    pieces = (
        registry.split_assignment(rest, directive) if registry.assigns(kind) else ("", "", rest)
    )
    return Parsed(kind, *pieces)


def split_value(directive: str) -> tuple[str, str]:
    """Split a directive into all before its value, and the value."""
    value = parsed(directive).value
    return directive.removesuffix(value), value


def expanded(text: str) -> list[str]:
    """Return the values that a text stands for: many for `lin`, `log` and `range`, else itself.

    `1..5` are the whole numbers from 1 to 5. `lin(0, 1, 5)` and `log(1e-4, 1e-2, 9)` include both
    ends; `range(0, 10, 2)` excludes its second number, as Python's does, and steps by 1 without
    a third.
    Values of `log` are rounded to four digits and values of `lin` to six, except whole numbers.

    Raises:
      ConfigError: the numbers make no such values.
    """
    if counted := _COUNTED.fullmatch(text):
        first, last = map(int, counted.groups())
        if not 0 <= last - first < _MOST:
            raise ConfigError(f"{text.strip()} must count up, to at most {_MOST:,} values.")
        return [str(number) for number in range(first, last + 1)]
    match = _CALL.fullmatch(text)
    if match is None:
        return [text.strip()]
    text, kind = text.strip(), match[1]
    with at(text):
        numbers = [compute(number, {}) for number in match[2].split(",")]
    if kind == "range" and len(numbers) == 2:
        numbers.append(1)
    first, last, third = numbers if len(numbers) == 3 else (0, 0, 0)
    count = third
    if kind == "range" and third:
        count = math.ceil(round((last - first) / third, 9))
    is_positive = kind != "log" or (first > 0 and last > 0)
    if count != int(count) or not 1 <= count <= _MOST or not is_positive:
        raise ConfigError(f"{text} has no values, or too many: write {_FORMS[kind]}.")
    if kind == "range":
        return [written(first + i * third, 12) for i in range(int(count))]
    if kind == "lin":
        return [written(value, 6) for value in np.linspace(first, last, int(count)).tolist()]
    return [written(value, 4) for value in np.geomspace(first, last, int(count)).tolist()]


def written(value: float, digits: int) -> str:
    """Write a number with some digits; as a whole number if it is one but for rounding."""
    if isinstance(value, int):  # which a range counts exactly
        return str(value)
    whole = round(value)
    if abs(value - whole) <= 1e-9 * abs(value) and abs(whole) < 10**12:
        return str(whole)
    return repr(float(f"{value:.{digits}g}"))


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
      directives: what makes it; empty where something is left out.
      label: its name, if the directives do not show it.
    """

    directives: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True)
class Axis:
    """One thing that varies, in the place of its directives among the others.

    Attributes:
      text: the flag, for messages.
      choices: its values.
    """

    text: str
    choices: tuple[Choice, ...]

    @property
    def is_repeat(self) -> bool:
        """Whether it repeats runs with other seeds."""
        return self.text.startswith(_REPEAT)

    @property
    def names(self) -> list[str]:
        """The full names of what it changes."""
        first = self.choices[0]
        if first.label is not None:
            return [self.text.removeprefix("--").partition("=")[0]]
        return [parsed(directive).subject for directive in first.directives]

    @property
    def identity(self) -> list[str]:
        """What makes it another axis: the names of what it changes; of an ablation, all of it.

        The run that leaves nothing out is another one for each ablation.
        """
        return [self.text] if self.choices[0].label is not None else self.names


Item = str | Axis  # a directive, or what varies in its place


def axis(text: str, values: Iterable[object] | None = None) -> Axis:
    """Return an axis of one directive: `tag:LearningRate=1e-4,3e-4`, `fiddler:use_rope,use_alibi`.

    Args:
      text: the directive with its values, or without them: `tag:LearningRate`.
      values: the values, if the text has none.

    Raises:
      ConfigError: the axis has no values.
    """
    if values is not None:
        separator = "=" if registry.assigns(registry.split_directive(text)[0]) else ":"
        text += ("" if text.endswith((":", "=")) else separator) + ",".join(map(str, values))
    return Axis(f"--sweep={text}", tuple(Choice((value,)) for value in axis_values(text)))


def pairs(text: str) -> Axis:
    """Return directives that change together: `set:a=1,2;tag:B=3,4` is (1, 3) and (2, 4).

    Raises:
      ConfigError: one of them has no values, or not as many as the others.
    """
    columns = {piece: axis_values(piece, flag="--zip") for piece in _pieces(text)}
    if len(columns) < 2:  # a shell ends the command at a ; without quotes
        raise ConfigError(f"--zip={text} pairs nothing: put a ; between two axes, and quote them.")
    if len({len(column) for column in columns.values()}) > 1:
        counts = "\n".join(f"  {len(values)} values: {piece}" for piece, values in columns.items())
        raise ConfigError(f"--zip pairs axes of one length, and these differ:\n{counts}")
    rows = zip(*columns.values(), strict=True)
    return Axis(f"--zip={text}", tuple(Choice(row) for row in rows))


def repeat(text: str) -> Axis:
    """Return the same run with other seeds: `seed:3` is the config's seed, and the next two.

    Raises:
      ConfigError: there is no count.
    """
    what, _, count = text.rpartition(":")
    if not what or not count.strip().isdecimal() or int(count) < 1:
        raise ConfigError(f"--repeat={text} needs a name and a count: write --repeat=seed:3.")
    directive = what if registry.split_directive(what)[0] else f"set:{what}"
    choices = tuple(Choice((f"{directive}+={i}",)) for i in range(int(count)))
    return Axis(f"{_REPEAT}{text}", choices)


def ablation(text: str) -> Axis:
    """Return all of some directives, then all but one of them, for each: `fiddler:use_gqa,use_moe`.

    A `;` separates directives of several kinds. A run with none of them is not among the values:
    an ablation measures what each one adds to the others.

    Raises:
      ConfigError: there is nothing to leave out.
    """
    every = tuple(value for piece in _pieces(text) for value in axis_values(piece, flag="--ablate"))
    if not every:
        raise ConfigError(f"--ablate={text} leaves nothing out: write --ablate=fiddler:A,B.")
    without = [
        Choice(every[:i] + every[i + 1 :], f"without {registry.split_directive(value)[1].strip()}")
        for i, value in enumerate(every)
    ]
    return Axis(f"--ablate={text}", (Choice(every, "all"), *without))


MAKERS: Mapping[str, Callable[[str], Axis]] = {
    "sweep": axis,
    "zip": pairs,
    "repeat": repeat,
    "ablate": ablation,
}


def with_files_read(items: Iterable[Any], makers: Mapping[str, Any] = MAKERS) -> Iterator[Any]:
    """Yield items, and in place of a file its directives and the axes of its `sweep:` section.

    Args:
      items: directives, and axes or spaces in their places among them.
      makers: what makes an axis or a space of a text, by the flag that takes such texts.

    Raises:
      ConfigError: a file cannot be read, or its content is wrong; the line is shown.
    """
    for item in items:
        file = registry.read_file(item) if isinstance(item, str) else None
        if file is None:
            yield _fixed(item)
            continue
        yield from map(_fixed, file.directives)
        for flag, text in file.axes:
            try:
                if flag not in makers:
                    raise ConfigError(f"{flag}: has no effect with --search: remove it.")
                yield _fixed(makers[flag](text), text)
            except ConfigError as error:
                raise ConfigError(directive_error(0, text, str(error))) from error


def _fixed(item: Any, line: Written | None = None) -> Any:
    """Return an item with the environment variables that it names, and where it was written."""
    if isinstance(item, str):
        meant = registry.with_environment(item)
        return item.alike(meant) if isinstance(item, Written) else meant
    if not isinstance(item, Axis):
        return item
    line, choices = line or Written.in_flag(item.text), []
    for choice in item.choices:
        meant = (line.alike(directive) for directive in choice.directives)
        choices.append(replace(choice, directives=tuple(map(_fixed, meant))))
    return replace(item, choices=tuple(choices))


def axis_values(text: str, *, flag: str = "--sweep") -> list[str]:
    """Return the directives of an axis of one directive: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind = registry.split_directive(text)[0]
    if kind not in registry.DIRECTIVES or registry.DIRECTIVES[kind].sweep is None:
        raise ConfigError(
            f"{flag}={text} lacks a kind of directive that has values: write, for example, "
            "tag:LearningRate=1e-3,3e-3 or fiddler:use_rope,use_alibi."
        )
    try:
        prefix, right = split_value(text)
    except ConfigError:
        right = prefix = ""
    values = [value.strip() for value in split_at_commas(right)]
    if other := next(
        (value for value in values if registry.split_directive(value)[0] in registry.DIRECTIVES),
        None,
    ):
        raise ConfigError(
            f"{flag}={text}: {other} is no value, but a directive: give it a flag of its own, or "
            "in --zip and --ablate put a ; before it."
        )
    if not values:
        raise ConfigError(f"{flag}={text} has no values: write KIND:NAME=VALUE,VALUE.")
    if registry.takes_numbers(kind):
        with at(f"{flag}={text}"):
            values = [item for value in values for item in expanded(value)]
    return [prefix.lstrip() + value for value in values]


def _pieces(text: str) -> list[str]:
    """Split at semicolons outside of brackets and quotes."""
    swap = str.maketrans(",;", ";,")
    return [piece.translate(swap).strip() for piece in split_at_commas(text.translate(swap))]


class Names:
    """Labels of the axes of a sweep, and the values and names of its points.

    Args:
      axes: all of them.

    Attributes:
      labels: of each axis, the short names of what it changes; several for a zipped one.
    """

    def __init__(self, axes: Sequence[Axis]) -> None:
        columns = [axis.names for axis in axes]
        count = Counter(map(_last, {name for column in columns for name in column}))
        seen: Counter[str] = Counter()

        def label(name: str) -> str:
            name = _last(name) if count[_last(name)] == 1 else name
            seen[name] += 1
            return name if seen[name] == 1 else f"{name}_{seen[name]}"

        self.labels = [list(map(label, column)) for column in columns]
        varies = [len(axis.choices) > 1 for axis in axes]
        self._varies = varies if any(varies) else [True] * len(axes)

    def values(self, choices: Sequence[Choice], value_of: Callable[[str], Any]) -> dict[str, str]:
        """Return the value of a point on each axis, by its label.

        Args:
          choices: of each axis.
          value_of: returns the value that a selector matches in the point's bound graph.
        """
        values: dict[str, str] = {}
        for labels, choice in zip(self.labels, choices, strict=True):
            label = choice.label
            texts = [_value(d, value_of) for d in choice.directives] if label is None else [label]
            values |= dict(zip(labels, texts, strict=True))
        return values

    def name(self, choices: Sequence[Choice], values: dict[str, str]) -> str:
        """Return the name of a point: `LearningRate=1e-3 use_alibi seed=0`."""
        words = []
        for labels, choice, varies in zip(self.labels, choices, self._varies, strict=True):
            is_plain = choice.label is not None or not parsed(choice.directives[0]).name
            if varies:
                words += [values[name] if is_plain else f"{name}={values[name]}" for name in labels]
        return " ".join(words) or "base"


def _last(name: str) -> str:
    match = _LAST.search(name)
    return match[1] if match else name


def _value(directive: str, value_of: Callable[[str], Any]) -> str:
    """Return the value of a directive; of a relative one, what it results in."""
    kind, name, sign, value = parsed(directive)
    if not sign:
        return value.strip()
    try:
        return leaf_text(value_of(f"@{name}" if kind == "tag" else name))
    except ConfigError:
        return f"{sign}{value.strip()}"
