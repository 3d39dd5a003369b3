"""How directives are spelled: their kinds, and on whose behalf a value is recorded as said."""

import re
from typing import NamedTuple

DEFAULT_CONFIG = "base"
BASES = ("config", "config_file", "config_str")  # where a graph begins
_BY_MACHINE = "for_hardware"  # what it does elsewhere, nobody knows here
_SPEAKER = re.compile(r"(?:(.+?): )??directive (\d+): (.+)", re.DOTALL)


class Speaker(NamedTuple):
    """A directive on whose behalf something was said.

    Attributes:
      run: the earlier run, or file, of which it was a directive; None for this command.
      number: which one it was, counted from 1.
      directive: its text.
    """

    run: str | None
    number: int
    directive: str


def split_directive(directive: str) -> tuple[str, str]:
    """The kind of a directive, "" where it has none, and the rest."""
    kind, colon, rest = directive.partition(":")
    return (kind.strip(), rest) if colon else ("", directive)


def is_base(directive: str) -> bool:
    """Whether a directive says where a graph begins."""
    return split_directive(directive)[0] in BASES


def is_by_machine(directive: str) -> bool:
    """Whether a directive is a fiddler that does, on each machine, what that machine needs."""
    kind, rest = split_directive(directive)
    return kind == "fiddler" and rest.partition("(")[0].strip().split(".")[-1] == _BY_MACHINE


def speaker(number: int, directive: str) -> str:
    """On whose behalf a directive's assignments are recorded."""
    return f"directive {number}: {directive}"


def speaker_in(by: str | None) -> Speaker | None:
    """The directive on whose behalf something was recorded; None where it was none."""
    found = _SPEAKER.fullmatch(by or "")
    return Speaker(found[1], int(found[2]), found[3]) if found else None
