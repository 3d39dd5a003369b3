"""On whose behalf a value is said: a directive, a fiddler, or whatever somebody calls it."""

import re
from typing import NamedTuple

_WRITTEN = re.compile(
    r"(?:(?P<run>.+?): )??(?P<kind>directive|fiddler) (?P<number>\d+): (?P<text>.+)", re.DOTALL
)


class Speaker(NamedTuple):
    """Who said a value.

    Attributes:
      text: its words: a directive as it was typed, the name of a fiddler, or any others.
      kind: `directive` or `fiddler`; "" where it is neither.
      number: which one of its kind it was, counted from 1; 0 where it is neither.
      run: the earlier run, or file, that it spoke in; None for now.
    """

    text: str
    kind: str = ""
    number: int = 0
    run: str | None = None

    def __str__(self) -> str:
        own = f"{self.kind} {self.number}: {self.text}" if self.kind else self.text
        return f"{self.run}: {own}" if self.run else own

    @classmethod
    def read(cls, written: str) -> "Speaker":
        """The one of whom `str` wrote this; all of it is the text of one that has no kind."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            return cls(written)
        return cls(found["text"], found["kind"], int(found["number"]), found["run"])
