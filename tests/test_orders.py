"""The order of directives does not matter, or is reported, with both directives named."""

import contextlib
import functools
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fiddle as fdl
import pytest
from drawn_directives import ALL_FAMILIES, called, draw_directives, is_mixture, start_for
from small_models import tiered

from fidgpt import fiddlers
from fidgpt.compose import report
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose, edits_between
from fidgpt.graph import ConfigError, fingerprint

pytestmark = pytest.mark.slow
catalogue = functools.cache(own_catalogue)
_INDEX = re.compile(r"\[\d+\]")


class Tried:
    """Directives in one order: the graph, what each of them changed, and the reports."""

    def __init__(self, base: fdl.Config, order: Sequence[str]) -> None:
        self.order, self.cfg, self.paths, self.errors, self.warnings = order, None, {}, "", []
        self.copied: set[str] = set()
        try:
            made = compose(order, catalogue(), base=base)
            self.warnings = report.report(made, allow_noop=True).warnings
            self.cfg = made.config
            self.paths = {one.text: [edit.path for edit in one.edits] for one in made.effects}
            edits = [edit for one in made.effects for edit in one.edits]
            self.copied = {edit.path for edit in edits if edit.before is fdl.NO_VALUE}
        except ConfigError as error:
            self.errors = str(error)

    def names(self, *words: str) -> bool:
        """Whether an error or one of the warnings names all of these, up to indices of items."""
        lines = [_INDEX.sub("", line) for line in [self.errors, *self.warnings]]
        return any(all(_INDEX.sub("", one) in line for one in words) for line in lines)


class Orders:
    """Directives applied to a graph in all orders, each beginning of them once.

    Args:
      base: the graph.
      directives: what is applied to it.
      graphs: what beginnings of orders made, which is kept here; None where they are refused.
    """

    def __init__(
        self,
        base: fdl.Config,
        directives: Sequence[str],
        graphs: dict[tuple[str, ...], fdl.Config | None] | None = None,
    ) -> None:
        self.base, self.directives = base, directives
        self._tried: dict[tuple[str, ...], Tried] = {}
        self._graphs = {} if graphs is None else graphs

    def differences(self) -> list[str]:
        """How orders differ without a message that names the two that change places."""
        orders = [*itertools.permutations(self.directives)]
        identities = {order: self._identity(order) for order in orders}
        if len({*identities.values()}) == 1:
            return []
        found = []
        for order, place in itertools.product(orders, range(len(self.directives) - 1)):
            one, two = order[place : place + 2]
            other = (*order[:place], two, one, *order[place + 2 :])
            if order < other and identities[order] != identities[other]:
                tried = self._try(order), self._try(other)
                if how := _silent(*tried, one, two, following=order[place + 2 :]):
                    found.append(f"{' '.join(order)}: {one} and {two}: {how}")
        return found

    def _identity(self, order: tuple[str, ...]) -> str:
        """The fingerprint of what an order makes; "" if it is refused."""
        try:
            cfg = self._graph(order)
            return "" if cfg is None else fingerprint(cfg)
        except ConfigError:
            return ""

    def _graph(self, order: tuple[str, ...]) -> fdl.Config | None:
        if not order or order in self._graphs:
            return self._graphs[order] if order else self.base
        before = self._graph(order[:-1])
        made = None
        if before is not None:
            with contextlib.suppress(ConfigError):
                made = compose(order[-1:], catalogue(), base=before).config
        if len(order) < len(self.directives):
            self._graphs[order] = made
        return made

    def _try(self, order: tuple[str, ...]) -> Tried:
        if order not in self._tried:
            self._tried[order] = Tried(self.base, order)
        return self._tried[order]


def _silent(one: Tried, other: Tried, *moved: str, following: Sequence[str]) -> str:
    """How two orders differ without a message that names those that changed places; else ""."""
    if failed := [order for order in (one, other) if order.errors]:
        silent = [order.errors for order in failed if not order.names(*moved)]
        return silent[0] if silent else ""
    paths = [edit.path for edit in edits_between(one.cfg, other.cfg)]
    # A norm or a block that a fiddler copies has what the copied one had then.
    copied = tuple(f"{_INDEX.sub('', new)}." for new in one.copied & other.copied)
    paths = [path for path in paths if not _INDEX.sub("", path).startswith(copied)]
    if paths and not any(order.names(*moved) for order in (one, other)):
        return f"{paths} differ"
    # What differs was changed by both of them: nothing follows from what only one has changed.
    known = {text: [*one.paths[text], *other.paths[text]] for text in one.paths}
    for path in paths:
        by = {text for text in known if any(related(path, changed) for changed in known[text])}
        is_named = any(order.names(*moved, path) for order in (one, other))
        if not ({*moved} <= by or by & {*following} or is_named):
            return f"{path} differs, which only {by} change"
    return ""


def related(path: str, other: str) -> bool:
    """Whether one of two paths is inside of the other, up to the indices of items."""
    shorter, longer = sorted((_INDEX.sub("", one) for one in (path, other)), key=len)
    return f"{longer}.".startswith((f"{shorter}.", f"{shorter}["))


def assert_reported(cases: Iterable[Orders]) -> None:
    found = [line for case in cases for line in case.differences()]
    assert not found, "\n".join(found)


# A tenth of all pairs is tried on each, by default half of it on one; all pairs are tried on some.
ORDERED_ON = ["base", "gpt2_124m", "qwen2_5_0_5b", "gemma3_270m", "olmo2_1b"]
WHOLE = ["gpt2_124m", "mixtral_8x7b", "deepseek_v3", "gpt_oss_20b"]
# The last one of a line says that it has to be that: its depth follows from the pattern of blocks.
LAST = {"make_tiny"}
ANYWHERE = [name for name in fiddlers.__all__ if name not in LAST]
# What removes every validation on text says so; one that is added behind it stays.
REMOVED = {
    frozenset({name, "use_validation"}) for name in ("use_preferences", "use_hub_preferences")
}
NAMES = [pair for pair in itertools.combinations(ANYWHERE, 2) if {*pair} not in REMOVED]
PAIRS = [(called(one), called(other)) for one, other in NAMES]


def on(family: str, pairs: Iterable[tuple[str, str]]) -> Iterator[Orders]:
    """Pairs of directives on the config of a family, or on the mixture that it becomes."""
    bases: dict[bool, tuple[fdl.Config, dict[Any, Any]]] = {}
    for pair in pairs:
        if (kind := is_mixture(pair)) not in bases:
            bases[kind] = start_for(family, [*pair]), {}
        base, graphs = bases[kind]
        yield Orders(base, pair, graphs)


@pytest.mark.parametrize("half", tiered(range(2), {0}))
@pytest.mark.parametrize("family", tiered(ORDERED_ON, {"base"}))
def test_two_fiddlers_in_any_order(family: str, half: int) -> None:
    tenth = PAIRS[ORDERED_ON.index(family) :: 2 * len(ORDERED_ON)]
    assert_reported(on(family, tenth[half::2]))


@pytest.mark.long
@pytest.mark.parametrize("family", WHOLE)
def test_every_two_fiddlers_in_any_order(family: str) -> None:
    assert_reported(on(family, PAIRS))


def drawn(seed: int) -> Orders:
    """Three directives at random, on a family at random."""
    draw = random.Random(seed)
    family = draw.choice(ALL_FAMILIES)
    directives = draw_directives(draw, start_for(family, []), 3)
    return Orders(start_for(family, directives), directives)


@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 3000), marks=pytest.mark.long)], ids=len
)
def test_three_directives_in_any_order(seeds: range) -> None:
    assert_reported(map(drawn, seeds))
