"""Names of points, made of what varies between them."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fidgpt.cli.directives.changes import assignment
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.graph import ConfigError, places
from fidgpt.graph.views.outline import leaf_text
from fidgpt.sweep.points.axes import ASSIGNED, Axis, Choice

_LAST = re.compile(r"([A-Za-z_]\w*)\W*$")


class Names:
    """What the axes of a sweep are called, and what a point has on each of them."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        columns = [axis_names(axis) for axis in axes]
        count = Counter(_last(one) for one in {one for column in columns for one in column})
        short = [
            [_last(one) if count[_last(one)] == 1 else one for one in column] for column in columns
        ]
        self._labels = _distinct(short)
        self._varies = [len(axis.choices) > 1 for axis in axes]
        if not any(self._varies):
            self._varies = [True] * len(axes)

    @property
    def labels(self) -> list[str]:
        """The names of the axes; of a zipped one, those of all that it changes."""
        return [one for labels in self._labels for one in labels]

    def values(self, choices: Sequence[Choice], bound: Any) -> dict[str, str]:
        """What a point has on each axis, by its name; `bound` is its graph."""
        return {
            label: value
            for labels, choice in zip(self._labels, choices, strict=True)
            for label, value in zip(labels, _values(choice, bound), strict=True)
        }

    def name(self, choices: Sequence[Choice], bound: Any) -> str:
        """What a point is called: `LearningRate=1e-3 use_alibi seed=0`."""
        texts = [
            f"{label}={value}" if _is_assigned(choice) else value
            for labels, choice, varies in zip(self._labels, choices, self._varies, strict=True)
            for label, value in zip(labels, _values(choice, bound), strict=True)
            if varies
        ]
        return " ".join(texts) or "base"


def axis_names(axis: Axis) -> list[str]:
    """The names of what an axis changes, in full."""
    first = axis.choices[0]
    if first.label is not None:
        return [axis.text.removeprefix("--").partition("=")[0]]
    return [_left(directive) for directive in first.directives]


def _left(directive: str) -> str:
    kind, rest = split_directive(directive)
    return assignment(rest, directive)[0] if kind in ASSIGNED else kind


def _last(name: str) -> str:
    match = _LAST.search(name)
    return match[1] if match else name


def _distinct(columns: list[list[str]]) -> list[list[str]]:
    """Names of which the second, third, ... of one kind has a number: fiddler, fiddler_2."""
    seen: Counter[str] = Counter()
    numbered: list[list[str]] = []
    for column in columns:
        numbered.append([])
        for name in column:
            seen[name] += 1
            numbered[-1].append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return numbered


def _is_assigned(choice: Choice) -> bool:
    return choice.label is None and split_directive(choice.directives[0])[0] in ASSIGNED


def _values(choice: Choice, bound: Any) -> list[str]:
    if choice.label is not None:
        return [choice.label]
    return [_value(directive, bound) for directive in choice.directives]


def _value(directive: str, bound: Any) -> str:
    """What a directive says; of one that changes what is there, what came of it."""
    kind, rest = split_directive(directive)
    if kind not in ASSIGNED:
        return rest.strip()
    left, sign, right = assignment(rest, directive)
    if not sign:
        return right.strip()
    try:
        return leaf_text(places(bound, f"@{left}" if kind == "tag" else left)[0].value)
    except ConfigError:
        return f"{sign}{right.strip()}"
