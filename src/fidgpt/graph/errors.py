"""What a user reads when a config is wrong."""

import difflib
from collections.abc import Iterable

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


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known names, or with all of them when none is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, one, name).ratio() for one in near]
    if near:
        nearest = [
            one for one, like in zip(near, likeness, strict=True) if like > likeness[0] - 0.1
        ]
        return f"Did you mean {' or '.join(nearest)}?"
    if not names:
        return "There is none."
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"There {'is' if len(names) == 1 else 'are'} {', '.join(names[:_LISTED])}{more}."
