"""What each directive changed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import fiddle as fdl

from fidgpt.graph import bind, parts
from fidgpt.graph.assignments import Source
from fidgpt.graph.edits import Edit
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.walk import join

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Side


Rerun = Callable[[Callable[[Any], Any]], Any]


class Effect:
    """One directive and what it changed.

    Attributes:
      number: which one it was, counted from 1; 0 for a base that nobody named.
      directive: its text.
      rerun: of code, such as a fiddler: what it makes of the graph that it was given, once a
        function has changed a copy of that.
    """

    def __init__(
        self,
        number: int,
        directive: str,
        edits: Callable[[], list[Edit]],
        rerun: Rerun | None = None,
    ) -> None:
        self.number = number
        self.directive = directive
        self.rerun = rerun
        self._found = edits

    @cached_property
    def edits(self) -> list[Edit]:
        """Every place that it changed; none where it made the graph, or changed nothing.

        Of code, such as a fiddler, they are found by comparing, when first asked for.

        Raises:
          ConfigErrors: the graph before or after could not be compared, as it cannot be bound.
        """
        return self._found()

    @property
    def speaker(self) -> Source:
        """On whose behalf its assignments were recorded."""
        return speaker(self.number, self.directive)

    def __repr__(self) -> str:
        return f"Effect({self.number}, {self.directive!r})"


def speaker(number: int, directive: str) -> Source:
    """A directive as who says what it assigns."""
    return Source(directive, "directive", number)


@dataclass(frozen=True)
class Composed:
    """A graph and the directives that made it, in order."""

    root: fdl.Config
    effects: list[Effect]


def edits_between(before: Any, after: Any) -> list[Edit]:
    """The differences of two graphs as edits, one for each place.

    Where only tags differ, the values of an edit are alike.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    from fidgpt.graph import (
        TagsChanged,  # late: most directives know what they change
        diff,  # late: most directives know what they change
    )

    edits: dict[str, Edit] = {}
    for change in diff(before, after):
        if not (isinstance(change, TagsChanged) and change.path in edits):
            edits[change.path] = Edit(change.path, _set_in(change.old), _set_in(change.new))
    return list(edits.values())


def _set_in(side: "Side") -> Any:
    return fdl.NO_VALUE if side.is_default else side.value


def spare_blocks(root: Any) -> list[str]:
    """A sentence for each model with more blocks than layers, such as one unrolled too early.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    models = [node for node in parts(bind(root)) if is_model(node.value)]
    return [line for node in models if (line := _spare(node.path, node.value))]


def is_model(part: fdl.Buildable) -> bool:
    """Whether a part makes a model of blocks."""
    from fidgpt.model import Transformer  # late: most directives need no torch

    called = fdl.get_callable(part)
    return isinstance(called, type) and issubclass(called, Transformer)


def _spare(path: str, model: fdl.Buildable) -> str:
    """What to say of one model; "" where each of its blocks is in use."""
    depth, blocks = model.num_layers, model.blocks
    if is_formula(depth):
        depth = fdl.build(depth)
    if not isinstance(depth, int) or not isinstance(blocks, list | tuple) or len(blocks) <= depth:
        return ""
    name, last = join(path, ".blocks"), len(blocks) - 1
    spare = f"{name}[{depth}]" if depth == last else f"{name}[{depth}] to [{last}]"
    return (
        f"{spare} {'makes' if depth == last else 'make'} no layer: {name} has {len(blocks)} "
        f"entries, and {join(path, '.num_layers')} is {depth}. Say the depth before fiddler:unroll."
    )
