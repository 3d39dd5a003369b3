"""Reports of changes: without effect, overruled, and attributed to directives."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose.directives import assignment, blamed, indented, pointed
from fidgpt.compose.effects import Composed, Effect, edits_between
from fidgpt.compose.spelling import BASES, is_base, is_by_machine, split_directive
from fidgpt.graph import ConfigError, ConfigErrors, Source, check_and_bind, clone, resolve
from fidgpt.graph.assignments import Assignment, assignments_of
from fidgpt.graph.constraints import Constraint
from fidgpt.graph.edits import carry_out
from fidgpt.graph.errors import listed, raise_all
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, find_parameter, follow, parse_path
from fidgpt.graph.provenance import assignments_at
from fidgpt.graph.walk import title

_ITEM = re.compile(r"\[\d+\]")


class Culprits:
    """Finds the directives behind the mistakes of a graph, by the places that they come from.

    Args:
      root: the graph as the directives made it.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._heard: dict[tuple[int, Any], list[Assignment]] = {}
        with contextlib.suppress(ConfigError):  # what cannot be bound is among the mistakes
            for one in resolve(root):
                said = assignments_of(one.binding.node.value, one.binding.key)
                self._heard[id(one.part), one.key] = said

    def told(self, error: ConfigError) -> list[str]:
        """Every mistake, with the directives that said what it is about, where some did."""
        return _blocks([(one, self.behind(one)) for one in error.mistakes])

    def told_of_directives(self, error: ConfigError) -> list[str]:
        """The same of those mistakes only that have a directive behind them."""
        found = [(one, self.behind(one)) for one in error.mistakes]
        return _blocks([(mistake, directives) for mistake, directives in found if directives])

    def behind(self, mistake: ConfigError) -> dict[int, str]:
        """The directives, by number, that said the values from which a mistake comes.

        The config that the graph began with said all the rest, and is none of them.
        """
        places = filter(None, map(self._nearest, mistake.sources))
        said = [one for one in map(self._speaker, places) if one and _is_of_now(one)]
        return {one.number: one.text for one in sorted(said, key=lambda one: one.number)}

    def _nearest(self, path: str) -> ParameterRef | None:
        """The place at a path, or where none is yet, as before binding, the nearest above it."""
        with contextlib.suppress(ConfigError):
            keys = parse_path(path)
            for end in range(len(keys), 0, -1):
                with contextlib.suppress(ConfigError):
                    return follow(self._root, keys[:end], path)
        return None

    def _speaker(self, place: ParameterRef) -> Source | None:
        """Who spoke last of a place: of its value, or of what holds it."""
        nearest: ParameterRef | None = place
        while nearest is not None:
            heard = self._heard.get((id(nearest.container), nearest.key), [])
            if said := assignments_at(nearest) or heard:
                newest = heard[0] if heard and said[0].value is fdl.NO_VALUE else said[0]
                return newest.by
            nearest = nearest.above
        return None


def _is_of_now(said: Source) -> bool:
    """Whether it was a directive of this command, and one that changed the graph."""
    return said.kind == "directive" and said.run is None and not is_base(said.text)


def grouped(mistakes: Iterable[ConfigError]) -> list[str]:
    """One message for all mistakes that differ only in which item of a list they are about."""
    alike: dict[str, list[ConfigError]] = {}
    for mistake in mistakes:
        alike.setdefault(_without_items(mistake), []).append(mistake)
    return [_as_one(*group) for group in alike.values()]


def _without_items(mistake: ConfigError) -> str:
    return _ITEM.sub("[]", str(mistake))


def _as_one(first: ConfigError, *others: ConfigError) -> str:
    places = [one.place for one in others if one.place]
    return f"{first}\nThe same at {listed(places, most=2)}." if places else str(first)


def _blocks(found: Iterable[tuple[ConfigError, dict[int, str]]]) -> list[str]:
    """One text for all that the same directives made."""
    blocks: dict[Any, tuple[dict[int, str], list[ConfigError]]] = {}
    for mistake, directives in found:
        key = tuple(directives) or _without_items(mistake)
        blocks.setdefault(key, (directives, []))[1].append(mistake)
    return [_told("\n".join(grouped(mistakes)), by) for by, mistakes in blocks.values()]


def _told(message: str, directives: dict[int, str]) -> str:
    if not directives:
        return message
    if len(directives) == 1:
        ((number, directive),) = directives.items()
        return blamed(number, directive, message)
    *others, last = map(str, directives)
    shown = [pointed(directive, message) for directive in directives.values()]
    first = f"directives {', '.join(others)} and {last} do not go together:"
    return "\n".join([first, *shown, indented(message)])


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
        sayings = assignments_at(find_parameter(root, path))
        since = _from(sayings, effect)
        before = _past(since, effect)
        if not since or not before or before[0].by != earlier.speaker:
            return False
        return not _is_relative(effect, path, _past(before, earlier))
    except ConfigError:  # the place is gone, or the directive needs what the earlier one had done
        return False


def _from(sayings: list[Assignment], effect: Effect) -> list[Assignment]:
    """Sayings, newest first, from those of a directive on."""
    return list(dropwhile(lambda one: one.by != effect.speaker, sayings))


def _past(sayings: list[Assignment], effect: Effect) -> list[Assignment]:
    """Sayings without those of a directive, with which they begin."""
    return list(dropwhile(lambda one: one.by == effect.speaker, sayings))


def _is_relative(effect: Effect, path: str, before: list[Assignment]) -> bool:
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
        carry_out([(find_parameter(root, path), value)])

    inside = (f"{path}.", f"{path}[")
    differences = edits_between(effect.rerun(lambda _: None), effect.rerun(take_back))
    return any(one.path == path or one.path.startswith(inside) for one in differences)


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
        check_and_bind(made.root, constraints=constraints)
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
    heard = Counter(one.binding.path for one in resolve(made.root))
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
        text += f",{which} inherited by {_counted(sum(followers), 'parameter')}"
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
