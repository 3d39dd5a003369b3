"""Arguments that are set and that no code reads are reported, and no others."""

from typing import Any

import fiddle as fdl
import pytest
from torch import nn

from fidgpt import configs
from fidgpt.graph.unused import unused_arguments


class Ignores:
    def __init__(self, *, size: int, forgotten: int = 0) -> None:
        self.size = size

    def area(self) -> int:
        return self.size**2


class Keeps:
    def __init__(self, *, never_looked_at: int = 0, looked_at: int = 0) -> None:
        self.never_looked_at = never_looked_at
        self.looked_at = looked_at


class Inherits(Keeps):
    def __init__(self, *, mine: int, **others: Any) -> None:
        super().__init__(**others)
        self.half = mine // 2


def looks(kept: Keeps) -> int:
    return kept.looked_at


def counts(*, number: int, unused: int = 0) -> int:
    return sum(number for _ in range(3))


class TakesAll:
    """Keeps all that it was given at once."""

    def __init__(self, kept_at_once: int = 1) -> None:
        self.all = dict(locals())


class Matched:
    """Is looked at in a match."""

    def __init__(self, matched_one: int = 1) -> None:
        self.matched_one = matched_one

    def look(self) -> int:
        match self:
            case Matched(matched_one=one):
                return one


@pytest.mark.parametrize(
    ("root", "name", "owner"),
    [
        (fdl.Config(Ignores, size=3, forgotten=4), "forgotten", "Ignores"),
        (fdl.Config(Keeps, never_looked_at=1, looked_at=2), "never_looked_at", "Keeps"),
        ([fdl.Config(counts, number=2, unused=1)], "[0].unused", "counts"),
    ],
)
def test_what_is_never_read_is_named(root: Any, name: str, owner: str) -> None:
    assert unused_arguments(root) == [f"{name} is set, but {owner} never reads it."]


@pytest.mark.parametrize(
    "root",
    [
        fdl.Config(Ignores, size=3),
        fdl.Config(Inherits, mine=3, never_looked_at=2),  # open-ended: unknown from outside
        fdl.Config(nn.Linear, 3, out_features=4, bias=False),
        fdl.Config(dict, a=1),
        fdl.Config(TakesAll, kept_at_once=3),
        fdl.Config(Matched, matched_one=3),
    ],
    ids=["default", "kwargs", "torch", "builtin", "locals", "match"],
)
def test_what_is_read_or_cannot_be_known_is_not_named(root: fdl.Config) -> None:
    assert unused_arguments(root) == []


@pytest.mark.parametrize("name", configs.__all__)
def test_our_own_configs_set_nothing_in_vain(name: str) -> None:
    assert unused_arguments(getattr(configs, name)()) == []
