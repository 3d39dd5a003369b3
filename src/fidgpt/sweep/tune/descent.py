"""Where a run of a population comes from: itself, or another one at a step, with other values."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Descent:
    """The identity of a run of a population.

    Attributes:
      fingerprint: of the directives, the member, and all that it descends from.
      member: the number of the one whose run it is.
      parent: the fingerprint of the run that it is a clone of; None of a first one.
      step: after which it was cloned.
      directives: all that make its config.
      values: of the spaces, by name.
    """

    fingerprint: str
    member: int
    parent: str | None
    step: int
    directives: Sequence[str]
    values: Mapping[str, Any]

    @staticmethod
    def first(directives: Sequence[str], *, member: int, values: Mapping[str, Any]) -> "Descent":
        """A run from the first step."""
        fingerprint = _hash(directives, member, None, 0)
        return Descent(fingerprint, member, None, 0, list(directives), dict(values))

    def cloned(
        self, directives: Sequence[str], *, member: int, step: int, values: Mapping[str, Any]
    ) -> "Descent":
        """A clone of this run, for another member."""
        parent = self.fingerprint
        fingerprint = _hash(directives, member, parent, step)
        return Descent(fingerprint, member, parent, step, list(directives), dict(values))

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name its run directory."""
        return short(self.fingerprint)

    def row(self) -> dict[str, Any]:
        """The same in plain values."""
        return asdict(self)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> "Descent":
        """What a row says, which may hold more than that."""
        return Descent(**{name: row[name] for name in Descent.__dataclass_fields__})


def short(fingerprint: str) -> str:
    """The name of the run directory of a fingerprint."""
    return fingerprint[:12]


def _hash(directives: Sequence[str], member: int, parent: str | None, step: int) -> str:
    text = json.dumps([list(directives), member, parent, step])
    return hashlib.sha256(text.encode()).hexdigest()
