"""What directives came to, in lines for a person: effects, what was in vain, what was overruled."""

from collections import Counter
from collections.abc import Iterator, Mapping

import fiddle as fdl

from fidgpt.cli.directives.directives import is_by_machine, split_directive
from fidgpt.cli.directives.effects import Composed, Effect
from fidgpt.cli.directives.overruled import overruled
from fidgpt.graph import resolve
from fidgpt.graph.errors import raise_all
from fidgpt.graph.structure.walk import title
from fidgpt.graph.views.outline import leaf_text

# Directives that name a value may name the one that stands; the others ask for a change.
_VALUES = ("set", "tag", "del")
_BASES = ("config", "config_file", "config_str")


def report(made: Composed, *, verbose: bool = False, allow_noop: bool = False) -> list[str]:
    """The lines that tell what each directive changed, and warnings.

    Args:
      made: a graph and the directives that made it.
      verbose: whether every change is told, with its values.
      allow_noop: whether a directive that changes nothing is no mistake.

    Raises:
      ConfigErrors: a directive that asks for a change made none; all of them are named.
    """
    changes = [one for one in made.effects if _kind(one) not in _BASES]
    if not changes:
        return []
    raise_all([] if allow_noop else [_in_vain(one) for one in changes if _asks_in_vain(one)])
    heard = Counter(one.said.path for one in resolve(made.root))
    lines = [line for one in changes for line in _told(one, heard, verbose)]
    return [*lines, *(f"warning: {line}" for line in overruled(made))]


def _told(effect: Effect, heard: Mapping[str, int], verbose: bool) -> Iterator[str]:
    count = len(effect.edits)
    if not count:
        yield f"warning: {effect.directive} changes nothing: it is so already."
        return
    followers = [heard[edit.path] for edit in effect.edits if heard.get(edit.path)]
    text = f"{effect.directive}: {_counted(count, 'value')}"
    if followers:
        which = "" if len(followers) == count == 1 else f" {len(followers)}"
        text += f",{which} heard by {_counted(sum(followers), 'parameter')}"
    yield text
    if verbose:
        for edit in effect.edits:
            yield f"  {edit.path}: {_described(edit.before)} -> {_described(edit.after)}"


def _asks_in_vain(effect: Effect) -> bool:
    is_asked = _kind(effect) not in _VALUES and not is_by_machine(effect.directive)
    return is_asked and not effect.edits


def _kind(effect: Effect) -> str:
    return split_directive(effect.directive)[0]


def _in_vain(effect: Effect) -> str:
    return (
        f"{effect.directive} (directive {effect.number}) changes nothing: the config is so "
        "already.\n  Leave it out, or say --allow_noop where a script cannot know."
    )


def _described(value: object) -> str:
    if value is fdl.NO_VALUE:
        return "open or by default"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
