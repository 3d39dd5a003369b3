"""What directives came to, in lines for a person: effects, what was in vain, what was overruled."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import fiddle as fdl

from fidgpt.cli.directives.culprits import Culprits
from fidgpt.cli.directives.effects import Composed, Effect
from fidgpt.cli.directives.overruled import overruled
from fidgpt.cli.directives.spelling import BASES, is_base, is_by_machine, split_directive
from fidgpt.graph import ConfigError, ConfigErrors, checked, resolve
from fidgpt.graph.checking.constraints import Constraint
from fidgpt.graph.errors import raise_all
from fidgpt.graph.structure.walk import title
from fidgpt.graph.views.outline import leaf_text

# Directives that name a value may name the one that stands; the others ask for a change.
_VALUES = ("set", "tag", "del")


@contextlib.contextmanager
def naming_directives(made: Composed, *, allow_noop: bool = False) -> Iterator[None]:
    """Names the directives behind what is found wrong inside, and those that were in vain.

    Raises:
      ConfigErrors: something was found, and this is all of it.
    """
    try:
        yield
    except ConfigError as error:
        told = Culprits(made.root).told(error)
        raise ConfigErrors([*told, *_vain(made, allow_noop)]) from error


def wrong_beside(
    made: Composed, *, constraints: Iterable[Constraint] = (), allow_noop: bool = False
) -> list[str]:
    """What is wrong with what some directives made while others of them are wrong by themselves.

    What no directive is behind may be what a wrong one was to mend, and is left out.
    """
    try:
        checked(made.root, constraints=constraints)
    except ConfigError as error:
        return [*Culprits(made.root).told_of_directives(error), *_vain(made, allow_noop)]
    return _vain(made, allow_noop)


def _vain(made: Composed, allow_noop: bool) -> list[str]:
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is told anyway
        return [] if allow_noop else in_vain(made)
    return []


class Report(NamedTuple):
    """What came of directives, in lines.

    Attributes:
      changes: what each of them changed.
      warnings: those that a later one overruled, and those that say what is so already.
    """

    changes: list[str]
    warnings: list[str]


def report(made: Composed, *, verbose: bool = False, allow_noop: bool = False) -> Report:
    """What each directive changed, and what a user may not have meant.

    Args:
      made: a graph and the directives that made it.
      verbose: whether every change is told, with its values.
      allow_noop: whether a directive that changes nothing is no mistake.

    Raises:
      ConfigErrors: a directive that asks for a change made none; all of them are named.
    """
    effects = [one for one in made.effects if not is_base(one.directive)]
    if not effects:
        return Report([], [])
    raise_all([] if allow_noop else in_vain(made))
    heard = Counter(one.said.path for one in resolve(made.root))
    changes = [line for one in effects if one.edits for line in _changes(one, heard, verbose)]
    idle = [
        f"{one.directive} changes nothing: it is so already." for one in effects if not one.edits
    ]
    return Report(changes, [*idle, *overruled(made)])


def in_vain(made: Composed) -> list[str]:
    """A message for each directive that asks for a change and made none.

    Raises:
      ConfigErrors: what a fiddler changed is not known, as the graph cannot be bound.
    """
    return [_in_vain(one) for one in made.effects if _asks_in_vain(one)]


def _changes(effect: Effect, heard: Mapping[str, int], verbose: bool) -> Iterator[str]:
    count = len(effect.edits)
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
    is_asked = _kind(effect) not in (*_VALUES, *BASES) and not is_by_machine(effect.directive)
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
