"""Which item is blamed where a list, tuple or dict does not fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, check


class Leaf:
    """A part to be held."""


class Holder:
    def __init__(
        self,
        *,
        parts: Sequence[Leaf] = (),
        numbers: Sequence[int] | None = None,
        pair: tuple[int, str] = (1, "a"),
        table: Mapping[str, list[float]] | None = None,
        either: list[int] | str = "",
    ) -> None:
        self.held = (parts, numbers, pair, table, either)


def message(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(fdl.Config(Holder, **arguments))
    return str(caught.value).splitlines()[0]


def test_a_part_among_many() -> None:
    parts: list[Any] = [fdl.Config(Leaf) for _ in range(24)]
    parts[7] = fdl.Config(Holder)
    assert message(parts=parts) == "parts[7] is the part Holder, and Holder takes Leaf there."


def test_what_is_no_part_among_parts() -> None:
    told = message(parts=[fdl.Config(Leaf), 3])
    assert told == "parts[1] is 3, and Holder takes Leaf there."


def test_the_first_of_several() -> None:
    told = message(numbers=[1, "a", 2, "b", None])
    assert told == "numbers[1] is 'a', and Holder takes int there. 2 more do not fit either."


def test_an_item_of_an_item() -> None:
    told = message(table={"a": [1.0], "b": [1.0, "x"]})
    assert told == "table['b'][1] is 'x', and Holder takes float there."


def test_an_item_of_one_of_several_annotations() -> None:
    assert message(either=[1, 2.5]) == "either[1] is 2.5, and Holder takes int there."


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"pair": (1, "a", 2)}, "pair is (1, 'a', 2), and Holder takes tuple[int, str]."),
        ({"table": {3: [1.0]}}, "table is {3: [1.0]}, and Holder takes Mapping[str, list[float]]"),
        ({"numbers": {"a": 1}}, "numbers is {'a': 1}, and Holder takes Sequence[int] or None."),
        ({"parts": fdl.Config(Leaf)}, "parts is the part Leaf, and Holder takes Sequence[Leaf]."),
    ],
)
def test_the_whole_where_no_item_is_to_blame(arguments: dict[str, Any], told: str) -> None:
    assert message(**arguments).startswith(told)


def test_a_long_list_of_parts_is_told_on_one_line() -> None:
    told = message(pair=[fdl.Config(Leaf) for _ in range(9)])
    assert told.startswith("pair is [<Config[Leaf(")
    assert told.endswith(", and Holder takes tuple[int, str].")
