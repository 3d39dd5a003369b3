"""Composing many lists of directives that begin alike: what they have in common is made once."""

from collections.abc import Sequence
from dataclasses import dataclass

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives.directives import composed
from fidgpt.graph import ConfigError


@dataclass(frozen=True)
class Draft:
    """The graph after some directives, and what was wrong with them.

    Attributes:
      root: the graph; None where it cannot even begin.
      mistakes: a message for each directive that is wrong.
    """

    root: fdl.Config | None
    mistakes: tuple[str, ...] = ()


class Composer:
    """Makes the graphs of points; fast where each is asked for beside those that resemble it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._way: list[tuple[str, Draft]] = []

    def compose(self, directives: Sequence[str]) -> Draft:
        """The graph of some directives, not to be changed; all that is wrong with them is told."""
        known = 0
        for (directive, _), asked in zip(self._way, directives, strict=False):
            if directive != asked:
                break
            known += 1
        del self._way[known:]
        draft = self._way[-1][1] if self._way else None
        for number, directive in enumerate(directives[known:], start=known + 1):
            draft = self._next(draft, number, directive)
            self._way.append((directive, draft))
        return draft or self._begun([])

    def _next(self, draft: Draft | None, number: int, directive: str) -> Draft:
        if draft is None:
            return self._begun([directive])
        if draft.root is None:  # all that follows would fail for this reason alone
            return draft
        try:
            made = composed([directive], self._catalogue, base=draft.root, first=number)
        except ConfigError as error:
            return Draft(draft.root, (*draft.mistakes, str(error)))
        return Draft(made.root, draft.mistakes)

    def _begun(self, directives: list[str]) -> Draft:
        """The graph of a first directive; where that alone is wrong, the base it was said of."""
        try:
            return Draft(composed(directives, self._catalogue).root)
        except ConfigError as error:
            if not directives:
                return Draft(None, (str(error),))
            kind = directives[0].partition(":")[0].strip()
            base = None if kind.startswith("config") else self._begun([]).root
            return Draft(base, (str(error),))
