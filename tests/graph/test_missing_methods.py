"""A message on a Protocol: what it is, how it is called, and what a node has instead."""

from typing import Any, Protocol

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, check
from fidgpt.graph.hints import missing_methods


class Reader(Protocol):
    """Reads a line.

    More is written below.
    """

    def read(self, line: str, /, *, strict: bool = False) -> None: ...


class Blind:
    """Has no such method."""


class Short:
    """Takes no line."""

    def read(self) -> None: ...


class Fitting:
    """Takes a line."""

    def read(self, line: str, *, strict: bool = False) -> None: ...


def made() -> Blind:
    return Blind()


def unknown() -> Any:
    return Blind()


def uses(reader: Reader) -> None:
    """Takes a reader."""


CALL = "\n  Reader: Reads a line.\n  It is called as read(line, *, strict=False)"


@pytest.mark.parametrize(
    ("value", "hint", "lines"),
    [
        (fdl.Config(Blind), Reader, f"{CALL}, and Blind has no read."),
        (fdl.Config(made), Reader | None, f"{CALL}, and Blind has no read."),
        (fdl.Config(Short), Reader, f"{CALL}, and Short has read()."),
        (3, Reader, f"{CALL}, and int has no read."),
        (fdl.Partial(Fitting), Reader, f"{CALL}."),
        (fdl.Config(unknown), Reader, f"{CALL}."),
        (fdl.Config(Blind), int, ""),
    ],
)
def test_the_methods_that_are_missing(value: Any, hint: Any, lines: str) -> None:
    assert missing_methods(value, hint) == lines


def test_they_follow_the_error() -> None:
    with pytest.raises(ConfigError, match="takes Reader.\n  Reader: Reads a line.\n  It is"):
        check(fdl.Config(uses, reader=fdl.Config(Blind)))
