"""The directives of points, and names for them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.directives import assignment, composed
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import ConfigError, find_parameters, resolve
from fidgpt.graph.edits import Edit
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.walk import is_node
from fidgpt.sweep.values import ASSIGNED, NUMBERS, Axis, Choice, Item


def moves(samples: Sequence["Sample"], axes: Sequence[Axis]) -> list[str]:
    """A line for each thing that varies: how many parameters of the graph it moves, at most."""
    chosen = [one for axis in axes for choice in axis.choices for one in choice.directives]
    counts = {_what(one): 0 for one in chosen if not split_directive(one)[0].startswith("config")}
    for sample in samples:
        for number, (directive, owner) in enumerate(sample.directives, start=1):
            if owner is not None and (what := _what(directive)) in counts:
                counts[what] = max(counts[what], sample.moved(number))
    return [
        f"{what} moves {count} parameter{'' if count == 1 else 's'}"
        for what, count in counts.items()
    ]


def overwritten(samples: Sequence["Sample"]) -> list[str]:
    """A message for each directive that overwrites what an axis chose.

    A directive of another axis may do so as long as it leaves something of it, or changes what is
    there.
    """
    found: dict[str, str] = {}
    for sample in samples:
        for number, (directive, owner) in enumerate(sample.directives, start=1):
            for loss in sample.lost(number):
                if owner is None:
                    told = f"{directive} (directive {number})"
                    found.setdefault(told + loss.axis.text, _overwrites(told, loss))
                elif loss.is_whole and _is_absolute(directive):
                    found.setdefault(owner.text + loss.axis.text, _says_again(owner, loss))
    return list(found.values())


def _overwrites(told: str, loss: "Loss") -> str:
    return (
        f"{told} overwrites what {loss.axis.text} chose of {loss.path}.\n"
        "  Say it before the axis, or leave one of them out."
    )


def _says_again(axis: Axis, loss: "Loss") -> str:
    if axis is loss.axis:
        return f"{axis.text} says {loss.path} twice: leave one of them out."
    return (
        f"{loss.axis.text} says {loss.path} in vain, as {axis.text} says it again: leave one of "
        "them out."
    )


def vain(axes: Sequence[Axis], identities: Mapping[tuple[int, ...], str]) -> list[str]:
    """A message for each axis whose values all make the same runs, whatever the others are.

    Args:
      axes: all of them.
      identities: the fingerprint of each point, by the numbers of what its axes chose.
    """
    mistakes: list[str] = []
    for i, axis in enumerate(axes):
        runs: dict[tuple[int, ...], list[str]] = {}
        for numbers, identity in identities.items():
            runs.setdefault((*numbers[:i], *numbers[i + 1 :]), []).append(identity)
        if all(len(found) > 1 and len(set(found)) == 1 for found in runs.values()):
            mistakes.append(
                f"{axis.text} changes nothing: all its values make the same run, because it is "
                "so already, or a later directive overrules it."
            )
    return mistakes


class Loss(NamedTuple):
    """What a directive takes away of what an axis had set.

    Attributes:
      axis: whose it was.
      path: where, or the first of such places.
      is_whole: whether nothing is left of the axis's directive.
    """

    axis: Axis
    path: str
    is_whole: bool


class Sample:
    """One point, composed with what each of its directives changed.

    Attributes:
      directives: each with the axis that it belongs to; None for one outside of the axes.
    """

    def __init__(self, directives: list[tuple[str, Axis | None]], catalogue: Catalogue) -> None:
        self.directives = directives
        made = composed([directive for directive, _ in directives], catalogue)
        self._root = made.root
        self._effects = {one.number: one for one in made.effects}

    def moved(self, number: int) -> int:
        """How many parameters a directive moves: those that it sets, and those that hear them."""
        said = self._edits(number)
        return len(said) + sum(self._heard[edit.path] for edit in said)

    def lost(self, number: int) -> Iterator[Loss]:
        """What a directive takes away of what those of axes before it had set."""
        mine = [edit.path for edit in self._edits(number)]
        for earlier, (_, axis) in enumerate(self.directives[: number - 1], start=1):
            if axis is None or not mine:
                continue
            theirs = self._edits(earlier)
            gone = [edit.path for edit in theirs if self._is_gone(edit, mine)]
            if gone:
                yield Loss(axis, gone[0], is_whole=len(gone) == len(theirs))

    def _is_gone(self, edit: Edit, later: Sequence[str]) -> bool:
        """Whether what an edit had put somewhere is overwritten at some of the later paths."""
        inside = any(edit.path.startswith((f"{path}.", f"{path}[")) for path in later)
        return edit.path in later or (inside and not self._stands(edit))

    def _stands(self, edit: Edit) -> bool:
        """Whether the graph holds in the end what an edit had put there."""
        try:
            value = find_parameters(self._root, edit.path)[0].value
        except ConfigError:
            return False
        return is_node(value) or value == edit.after

    def _edits(self, number: int) -> list[Edit]:
        try:
            return self._effects[number].edits if number in self._effects else []
        except ConfigError:  # half of the way, a graph need not hang together
            return []

    @cached_property
    def _heard(self) -> Counter[str]:
        return Counter(one.binding.path for one in resolve(self._root))


def samples_of(items: Sequence[Item], catalogue: Catalogue) -> Iterator[Sample]:
    """A point for each choice that may move other parameters, the other axes at their first."""
    axes = [one for one in items if isinstance(one, Axis)]
    seen: set[tuple[str, ...]] = set()
    for varying in axes or [None]:
        for i in range(_most_different(varying) if varying else 1):
            directives = [
                (directive, item if isinstance(item, Axis) else None)
                for item in items
                for directive in _said(item, i if item is varying else 0)
            ]
            if (key := tuple(directive for directive, _ in directives)) not in seen:
                seen.add(key)
                yield Sample(directives, catalogue)


def _said(item: Item, number: int) -> tuple[str, ...]:
    return item.choices[number].directives if isinstance(item, Axis) else (item,)


def _most_different(axis: Axis) -> int:
    """How many choices to look at: where they differ in a number only, one may be what it was."""
    kinds = {split_directive(one)[0] for choice in axis.choices for one in choice.directives}
    return min(2, len(axis.choices)) if kinds <= set(NUMBERS) else len(axis.choices)


def _is_absolute(directive: str) -> bool:
    """Whether a directive says a value, whatever was there."""
    kind, rest = split_directive(directive)
    return kind in ASSIGNED and not assignment(rest, directive)[1]


def _what(directive: str) -> str:
    kind, rest = split_directive(directive)
    if kind not in ASSIGNED:
        return directive
    return f"{kind}:{assignment(rest, directive)[0]}"


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
        return leaf_text(find_parameters(bound, f"@{left}" if kind == "tag" else left)[0].value)
    except ConfigError:
        return f"{sign}{right.strip()}"
