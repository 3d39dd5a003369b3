"""What a message tells of a Protocol: what it is, how it is called, and what a part has instead."""

from typing import Any, Protocol

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, check
from fidgpt.graph.requirements import asked


class Listener(Protocol):
    """Hears a word.

    More is written below.
    """

    def hear(self, word: str, /, *, loud: bool = False) -> None: ...


class Deaf:
    """Hears nothing."""


class Short:
    """Hears no word."""

    def hear(self) -> None: ...


class Attentive:
    """Hears all."""

    def hear(self, word: str, *, loud: bool = False) -> None: ...


def made() -> Deaf:
    return Deaf()


def whoever() -> Any:
    return Deaf()


def tell(listener: Listener) -> None:
    """Says something to one."""


CALL = "\n  Listener: Hears a word.\n  It is called as hear(word, *, loud=False)"


@pytest.mark.parametrize(
    ("value", "hint", "told"),
    [
        (fdl.Config(Deaf), Listener, f"{CALL}, and Deaf has no hear."),
        (fdl.Config(made), Listener | None, f"{CALL}, and Deaf has no hear."),
        (fdl.Config(Short), Listener, f"{CALL}, and Short has hear()."),
        (3, Listener, f"{CALL}, and int has no hear."),
        (fdl.Partial(Attentive), Listener, f"{CALL}."),
        (fdl.Config(whoever), Listener, f"{CALL}."),
        (fdl.Config(Deaf), int, ""),
    ],
)
def test_what_is_told(value: Any, hint: Any, told: str) -> None:
    assert asked(value, hint) == told


def test_it_stands_below_the_mistake() -> None:
    with pytest.raises(ConfigError, match="takes Listener.\n  Listener: Hears a word.\n  It is"):
        check(fdl.Config(tell, listener=fdl.Config(Deaf)))
