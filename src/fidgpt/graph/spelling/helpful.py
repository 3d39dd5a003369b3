"""Which fiddlers bring a graph nearer to another, found by trying them."""

from collections.abc import Iterable

from fidgpt.graph.spelling.attempts import Attempts
from fidgpt.graph.spelling.regions import NOWHERE, Region, region_of

_MOST = 4


class Helpful:
    """Chooses among fiddlers.

    What a fiddler changes is remembered, by place: where none of it is a place that differs, it
    is not tried again; and as long as no other fiddler changed any of it, it saves what it did.
    """

    def __init__(self, fiddlers: Iterable[str], attempts: Attempts) -> None:
        self._fiddlers = list(fiddlers)
        self._attempts = attempts
        self._regions: dict[str, Region] = {}

    def added(self, said: list[str], *, saves: int) -> list[str]:
        """Directives with the fiddler that saves most, and the next, while one `saves` so much."""
        saved: dict[str, float] = {}
        for _ in range(_MOST):
            best = self._best(said, saved, saves)
            if best is None:
                break
            said = [*said, best]
            changed = self._regions[best]
            saved = {
                one: much for one, much in saved.items() if not self._regions[one].meets(changed)
            }
        return said

    def _best(self, said: list[str], saved: dict[str, float], saves: float) -> str | None:
        """The first of those that save most; None where none saves enough.

        Args:
          said: directives.
          saved: what fiddlers are known to save; those that are tried are added.
          saves: what is enough.
        """
        now = self._attempts.count(said)
        if now < saves:
            return None
        hopes = {one: self._hope(one, said, now, saved) for one in self._fiddlers}
        best: str | None = None
        for one in sorted(hopes, key=lambda one: -hopes[one]):
            if hopes[one] < saves:
                break
            much = self._saved(one, said, now, saved)
            if much > saves or (much == saves and self._is_earlier(one, best)):
                best, saves = one, much
        return best

    def _is_earlier(self, one: str, other: str | None) -> bool:
        return other is None or self._fiddlers.index(one) < self._fiddlers.index(other)

    def _hope(self, one: str, said: list[str], now: float, saved: dict[str, float]) -> float:
        """What a fiddler saves at most."""
        if one in said:
            return 0
        if one in saved:
            return saved[one]
        region = self._regions.get(one, NOWHERE)
        if region.places and not region.meets(region_of(self._attempts.left(said) or ())):
            return 0
        return now - self._attempts.at_least([*said, one])

    def _saved(self, one: str, said: list[str], now: float, saved: dict[str, float]) -> float:
        """What a fiddler saves; what it changes is remembered."""
        if one not in saved:
            more = [*said, one]
            saved[one] = now - self._attempts.count(more)
            known, found = self._regions.get(one, NOWHERE), self._changed(said, more)
            self._regions[one] = Region(known.places | found.places, known.around | found.around)
        return saved[one]

    def _changed(self, said: list[str], more: list[str]) -> Region:
        """The places at which more directives change how a graph differs from the wanted one."""
        before, after = (
            {str(one): one for one in self._attempts.left(way) or ()} for way in (said, more)
        )
        return region_of({**before, **after}[text] for text in before.keys() ^ after.keys())
