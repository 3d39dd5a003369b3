"""What a user reads when a config is wrong."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence

_LISTED = 24  # names in a message; more would bury what it says


class ConfigError(ValueError):
    """A mistake in a config: a message of a few lines that names the place and the remedy."""


class ConfigErrors(ConfigError):
    """Several mistakes, found in one go."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = list(messages)
        super().__init__("\n\n".join(self.messages))


def raise_all(messages: list[str]) -> None:
    """Raises what was collected, if anything was.

    Raises:
      ConfigErrors: there is at least one message.
    """
    if messages:
        raise ConfigErrors(messages)


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
    """Puts the name of a place before the message of a mistake that is found inside.

    Raises:
      ConfigError: what was raised, with its place.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that one may have meant, the likeliest first."""
    bare = _bare(name)
    if alike := [one for one in sorted(set(known)) if bare and _bare(one) == bare]:
        return alike
    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.6)
    likeness = {one: difflib.SequenceMatcher(None, one, name).ratio() for one in near}
    return [one for one in near if likeness[one] > likeness[near[0]] - 0.1]


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
