"""What a user reads when a config is wrong."""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

_LISTED = 24  # names in a message; more would bury the message
MOST_MISTAKES = 50  # in a message; what finds them one by one need not look for more


class ConfigError(ValueError):
    """A mistake in a config: a message of a few lines that names the place and the remedy.

    Attributes:
      place: the path of the parameter or part that is wrong; "" for the root, or for none.
      sources: the paths of the values that make it wrong, wherever they stand; the place itself
        unless others are known.
    """

    def __init__(self, message: str, *, place: str = "", sources: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.place = place
        self.sources = tuple(dict.fromkeys(sources)) or ((place,) if place else ())

    @property
    def mistakes(self) -> "list[ConfigError]":
        """Each mistake by itself."""
        return [self]


class MissingEntry(ConfigError):
    """A list, tuple or dict of the graph, which `place` leads to, has no such entry."""


class ConfigErrors(ConfigError):
    """Several mistakes, found in one go.

    Args:
      mistakes: errors, or their texts where no place of a graph is meant.
    """

    def __init__(self, mistakes: Iterable[ConfigError | str]) -> None:
        self._mistakes = [
            one if isinstance(one, ConfigError) else ConfigError(one) for one in mistakes
        ]
        sources = (path for mistake in self._mistakes for path in mistake.sources)
        shown = self.messages
        if len(shown) > MOST_MISTAKES + 1:  # one more takes no more room than this line
            shown[MOST_MISTAKES:] = [f"and {len(shown) - MOST_MISTAKES:,} more mistakes."]
        super().__init__("\n\n".join(shown), sources=sources)

    @property
    def mistakes(self) -> list[ConfigError]:
        """Each mistake by itself."""
        return self._mistakes

    @property
    def messages(self) -> list[str]:
        """The text of each mistake."""
        return [str(mistake) for mistake in self._mistakes]


def run_command(main: Callable[[list[str]], int]) -> NoReturn:
    """End the process with the status of a command, or with 2 and the message of a user's error.

    `--help` prints the docstring of the command's module.
    """
    if "--help" in sys.argv[1:]:
        print((sys.modules["__main__"].__doc__ or "").rstrip())
        sys.exit()
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception as error:
        if not is_user_error(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def is_user_error(error: BaseException) -> bool:
    """Whether fidgpt defines an error, whose message alone is shown to the user then."""
    return any(base.__module__.startswith("fidgpt.") for base in type(error).__mro__)


def raise_all(mistakes: Sequence[ConfigError | str]) -> None:
    """Raises what was collected, if anything was.

    Raises:
      ConfigErrors: there is at least one mistake.
    """
    if mistakes:
        raise ConfigErrors(mistakes)


@contextlib.contextmanager
def at(name: str, *, place: str = "") -> Iterator[None]:
    """Puts a name before the message of a mistake that is found inside.

    Args:
      name: of a file, a flag or a place.
      place: the path in the graph that is meant, where it is one and nothing inside knows better.

    Raises:
      ConfigError: what was raised, with its name.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{name}: {error}", place=error.place or place, sources=error.sources
        ) from error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that one may have meant, the likeliest first."""
    bare = _bare(name)
    if alike := [name for name in sorted(set(known)) if bare and _bare(name) == bare]:
        return alike
    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.6)
    likeness = {key: difflib.SequenceMatcher(None, key, name).ratio() for key in near}
    return [candidate for candidate in near if likeness[candidate] > likeness[near[0]] - 0.1]


def _bare(name: str) -> str:
    """A name without what one easily writes otherwise: hidden_dim, HiddenDim, hidden-dim."""
    return name.replace("_", "").replace("-", "").lower()


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known names, or with all of them when none is near."""
    names = sorted(set(known))
    if near := nearest(name, names):
        return f"Did you mean {' or '.join(near)}?"
    if not names:
        return "There is none."
    return f"There {'is' if len(names) == 1 else 'are'} {listed(names, most=_LISTED)}."


def listed(names: Sequence[str], *, most: int) -> str:
    """Names with commas between them, no more than `most`, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
