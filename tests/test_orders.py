"""The order of directives does not matter, or is reported, with both directives named."""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import fiddle as fdl
import pytest
from small_models import ARGUMENTS, OF_MIXTURES, tiered

from fidgpt import configs, fiddlers, graph
from fidgpt.compose import report
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose, edits_between
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.model import MoE

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


Graphs = dict[str, fdl.Config | None]  # what a directive makes; None where it is refused


def identity(base: fdl.Config, order: Sequence[str], graphs: Graphs) -> str:
    """The fingerprint of what two directives make; "" if one is refused."""
    first, second = order
    if first not in graphs:
        graphs[first] = None
        with contextlib.suppress(ConfigError):
            graphs[first] = compose([first], catalogue(), base=base).config
    if graphs[first] is not None:
        with contextlib.suppress(ConfigError):
            return fingerprint(compose([second], catalogue(), base=graphs[first]).config)
    return ""


def difference(base: fdl.Config, pair: tuple[str, str], graphs: Graphs) -> str:
    """How both orders of two directives differ without a message that names them; else ""."""
    orders = pair, pair[::-1]
    if len({identity(base, order, graphs) for order in orders}) == 1:
        return ""
    one, other = (Tried(base, order) for order in orders)
    how = _silent(one, other, *pair)
    return how and f"{' and '.join(pair)}: {how}"


def _silent(one: Tried, other: Tried, *moved: str) -> str:
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
        if not ({*moved} <= by or is_named):
            return f"{path} differs, which only {by} change"
    return ""


def related(path: str, other: str) -> bool:
    """Whether one of two paths is inside of the other, up to the indices of items."""
    shorter, longer = sorted((_INDEX.sub("", one) for one in (path, other)), key=len)
    return f"{longer}.".startswith((f"{shorter}.", f"{shorter}["))


def called(name: str) -> str:
    """The directive that calls a fiddler, with the arguments that it needs."""
    given = ARGUMENTS.get(name, {})
    return f"fiddler:{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def is_mixture(directives: Iterable[str]) -> bool:
    """Whether one of some directives changes mixtures of experts."""
    return any(f"fiddler:{name}(" in one for one in directives for name in OF_MIXTURES)


def start_for(family: str, directives: Iterable[str]) -> fdl.Config:
    """The config of a family; a mixture, if one of the directives changes mixtures."""
    cfg = getattr(configs, family)()
    has_mixture = any(fdl.get_callable(node.value) is MoE for node in graph.parts(cfg))
    if is_mixture(directives) and not has_mixture:
        fiddlers.use_moe(cfg)
    return cfg


# A tenth of all pairs is tried on each, by default half of it on one; all pairs are tried on some.
ORDERED_ON = ["base", "gpt2_124m", "qwen2_5_0_5b", "gemma3_270m", "olmo2_1b"]
WHOLE = ["gpt2_124m", "mixtral_8x7b", "deepseek_v3", "gpt_oss_20b"]
# The last one of a line says that it has to be that: its depth follows from the pattern of blocks.
LAST = {"make_tiny"}
ANYWHERE = [name for name in fiddlers.__all__ if name not in LAST]
# What removes every validation on text says so; what is added behind it stays.
REMOVED = {
    frozenset({"use_preferences", "use_validation"}),
    frozenset({"use_hub_preferences", "use_validation"}),
}
NAMES = [pair for pair in itertools.combinations(ANYWHERE, 2) if {*pair} not in REMOVED]
PAIRS = [(called(one), called(other)) for one, other in NAMES]


def assert_reported(family: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Check both orders of pairs on the config of a family, or on the mixture that it becomes."""
    bases: dict[bool, tuple[fdl.Config, Graphs]] = {}
    found = []
    for pair in pairs:
        if (kind := is_mixture(pair)) not in bases:
            bases[kind] = start_for(family, pair), {}
        base, graphs = bases[kind]
        found.append(difference(base, pair, graphs))
    assert not [*filter(None, found)], "\n".join(filter(None, found))


@pytest.mark.parametrize("half", tiered(range(2), {0}))
@pytest.mark.parametrize("family", tiered(ORDERED_ON, {"base"}))
def test_two_fiddlers_in_any_order(family: str, half: int) -> None:
    tenth = PAIRS[ORDERED_ON.index(family) :: 2 * len(ORDERED_ON)]
    assert_reported(family, tenth[half::2])


@pytest.mark.long
@pytest.mark.parametrize("family", WHOLE)
def test_every_two_fiddlers_in_any_order(family: str) -> None:
    assert_reported(family, PAIRS)
