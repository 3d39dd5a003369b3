"""Ways to a graph: lists of directives that make it, found by trying."""

from collections.abc import Callable, Iterable
from typing import Any

from fidgpt.graph.spelling.attempts import Attempts
from fidgpt.graph.spelling.helpful import Helpful

_ROUNDS = 4  # a part that is put shows what is still to be said inside of it
_MOST_TRIED = 60


class Search:
    """Looks for the fewest directives that make a graph."""

    def __init__(
        self, attempts: Attempts, fiddlers: Iterable[str], part_name: Callable[[Any], str]
    ) -> None:
        """Begins a search.

        Args:
          attempts: what comes of directives.
          fiddlers: directives to try for what they save.
          part_name: how a directive calls a constructor.
        """
        self._attempts = attempts
        self._helpful = Helpful(fiddlers, attempts)
        self._part_name = part_name

    def ways(self, first: list[str]) -> list[list[str]]:
        """Lists of directives that make the graph, or come near it, in the order of the search.

        Fiddlers come first, or where a fiddler goes by what was set before it, after that. Only
        where neither makes the graph, lists with parts in them are written out.
        """
        ways = [self._with_words(self._helpful.added(first, saves=2))]
        if not self._attempts.is_same(ways[0]):
            begun = (ways[0], self._with_words(first))
            ways += [self._with_more(said) for said in begun]
        if not any(map(self._attempts.is_same, ways)):
            ways += [self._with_words(way, lists=True) for way in (*ways, first)]
        return [self.without_needless(way) for way in self._nearest(ways)]

    def price(self, said: list[str]) -> tuple[bool, float, int]:
        """By which the best way is found: the least."""
        return not self._attempts.is_same(said), self._attempts.count(said), len(said)

    def without_needless(self, said: list[str]) -> list[str]:
        """Leaves out each directive that the others imply, where there are not too many to try."""
        if len(said) > _MOST_TRIED:
            return said
        is_same = self._attempts.is_same(said)
        for i in range(len(said) - 1, 0, -1):
            fewer = [*said[:i], *said[i + 1 :]]
            if self._attempts.is_same(fewer) if is_same else self._is_as_near(fewer, said):
                said = fewer
        return said

    def _is_as_near(self, said: list[str], other: list[str]) -> bool:
        count = self._attempts.count(other)
        return self._attempts.at_least(said) <= count and self._attempts.count(said) <= count

    def _nearest(self, ways: list[list[str]]) -> list[list[str]]:
        """The ways that make the graph, each once; where none does, those that come nearest."""
        distances = [self.price(way)[:2] for way in ways]
        near = [way for way, far in zip(ways, distances, strict=True) if far == min(distances)]
        return [way for i, way in enumerate(near) if way not in near[:i]]

    def _with_words(self, said: list[str], *, lists: bool = False) -> list[str]:
        """Adds what the differences say, as long as that leaves fewer."""
        from fidgpt.graph.spelling.sayable import words  # late, as it knows all kinds of changes

        left = self._attempts.left(said)
        for _ in range(_ROUNDS):
            if not left:
                break
            root, name = self._attempts.graph(said), self._part_name
            groups = words(root, self._attempts.root, left, part_name=name, lists=lists)
            tried = self._said(said, groups)
            now = self._attempts.left(tried)
            if now is None or tried == said or str(now) == str(left):
                break
            said, left = tried, now
        return said

    def _with_more(self, said: list[str]) -> list[str]:
        """Adds fiddlers and what they leave to be said, in turn."""
        for _ in range(_ROUNDS):
            more = self._with_words(self._helpful.added(said, saves=1))
            if more == said or self._attempts.count(more) >= self._attempts.count(said):
                break
            said = more
        return said

    def _said(self, said: list[str], groups: list[list[str]]) -> list[str]:
        """The directives with one of each group, or all of a group, as far as they can be done."""
        whole = [*said, *(group[0] for group in groups)]
        if self._attempts.can_be_made(whole):
            return whole
        for group in groups:
            for more in (group[:1], group[1:]):
                if more and self._attempts.can_be_made([*said, *more]):
                    said = [*said, *more]
                    break
        return said
