"""Where a directive says anew what an earlier one had said, so that the earlier word is in vain."""

from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

import fiddle as fdl

from fidgpt.cli.directives.changes import assignment
from fidgpt.cli.directives.effects import Composed, Effect, edits_between
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.graph import ConfigError, clone
from fidgpt.graph.edits.edit import carry_out
from fidgpt.graph.history.sayings import Saying
from fidgpt.graph.history.story import sayings_at
from fidgpt.graph.selecting.paths import find_place


def overruled(made: Composed) -> Iterator[str]:
    """A sentence for each place of which a directive says what an earlier one had said otherwise.

    To keep a value in another place, or to change it by what it is, is not to overrule it.
    """
    said: dict[str, Effect] = {}
    for effect in made.effects:
        for edit in effect.edits:
            earlier = said.get(edit.path)
            if earlier is not None and _overrules(effect, earlier, made.root, edit.path):
                yield (
                    f"{effect.directive} (directive {effect.number}) overrules what "
                    f"{earlier.directive} (directive {earlier.number}) said of {edit.path}."
                )
            said[edit.path] = effect


def _overrules(effect: Effect, earlier: Effect, root: Any, path: str) -> bool:
    try:
        sayings = sayings_at(find_place(root, path))
        since = _from(sayings, effect)
        before = _past(since, effect)
        if not since or not before or before[0].by != earlier.speaker:
            return False
        return not _is_relative(effect, path, _past(before, earlier))
    except ConfigError:  # the place is gone, or the directive needs what the earlier one had done
        return False


def _from(sayings: list[Saying], effect: Effect) -> list[Saying]:
    """Sayings, newest first, from those of a directive on."""
    return list(dropwhile(lambda one: one.by != effect.speaker, sayings))


def _past(sayings: list[Saying], effect: Effect) -> list[Saying]:
    """Sayings without those of a directive, with which they begin."""
    return list(dropwhile(lambda one: one.by == effect.speaker, sayings))


def _is_relative(effect: Effect, path: str, before: list[Saying]) -> bool:
    """Whether what a directive says of a place goes by what is there.

    Args:
      effect: the directive, and what it changed.
      path: the place.
      before: what was said there before the word that it may have gone by.

    Raises:
      ConfigError: the directive cannot do without that word.
    """
    kind, text = split_directive(effect.directive)
    if effect.rerun is None:
        return kind in ("set", "tag") and bool(assignment(text, effect.directive)[1])

    def take_back(root: Any) -> None:
        value = clone(before[0].value) if before else fdl.NO_VALUE
        carry_out([(find_place(root, path), value)])

    inside = (f"{path}.", f"{path}[")
    differences = edits_between(effect.rerun(lambda _: None), effect.rerun(take_back))
    return any(one.path == path or one.path.startswith(inside) for one in differences)
