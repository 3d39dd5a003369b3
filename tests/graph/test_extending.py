"""`+=` on lists, tuples and dicts: items come behind those that are there, or nothing changes."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, bind
from fidgpt.graph.edits import Edit, change_by

from .edited import PARTS, Settings
from .parts import Outer, Part, Size, Square, Width, annotated, holding


def plus(root: Any, selector: str, text: str, sign: str = "+") -> list[Edit]:
    return change_by(root, selector, sign, text, parts=PARTS)


@pytest.mark.parametrize(
    ("root", "name", "text", "expected"),
    [
        (fdl.Config(annotated, names=["a"]), "names", "[b, 'c d']", ["a", "b", "c d"]),
        (fdl.Config(annotated, names=("a",)), "names", "b, c", ("a", "b", "c")),
        (fdl.Config(annotated), "names", "[b]", ("b",)),
        (fdl.Config(annotated), "names", "(b,)", ("b",)),
        (fdl.Config(annotated, by_name={"a": 1}), "by_name", "{b: 1e3}", {"a": 1, "b": 1000}),
        (fdl.Config(Settings), "names", "[b]", ["b"]),
        (fdl.Config(Outer, child=[1]), "child", "[2, [3]]", [1, 2, [3]]),
        (fdl.Config(Outer, child=[[1], 5]), "child[0]", "[2]", [[1, 2], 5]),
        (fdl.Config(holding, [1]), "items", "[2]", [1, 2]),
    ],
)
def test_items_come_behind(root: Any, name: str, text: str, expected: Any) -> None:
    (edit,) = plus(root, name, text)
    assert getattr(root, name.partition("[")[0]) == expected
    assert edit.path == name
    assert edit.after != edit.before


def test_parts_are_made_anew_for_each_place_and_those_that_are_there_stay() -> None:
    first = fdl.Config(Square, width=1)
    root = fdl.Config(Outer, child=[first], other=fdl.Config(Outer, child=[first]))
    plus(root, "**.child", "[Square(width={rate})]")
    assert root.child[0] is root.other.child[0] is first
    assert root.child[1] is not root.other.child[1]
    inside = fdl.Partial(Outer, child=[])
    plus(inside, "child", "[Square]")
    assert type(inside.child[0]) is fdl.ArgFactory


def test_a_formula_and_an_open_quantity_in_it_are_heard() -> None:
    root = fdl.Config(Outer, width=Width.new(3), child=[fdl.Config(Part, width=Width.new())])
    plus(root, "child", "[Part, {width} * 2]")
    bound = bind(root)
    assert bound.child[1].width == 3
    assert fdl.build(bound.child[2]) == 6


def test_a_quantity_that_is_a_list_is_extended_wherever_it_is_said() -> None:
    root = fdl.Config(Outer, child=Width.new([1]))
    change_by(root, Width, "+", "[2]", parts=PARTS)
    assert root.child == [1, 2]


@pytest.mark.parametrize("text", ["[]", "()", "{}", " [] "])
def test_to_add_nothing_is_no_change(text: str) -> None:
    root = fdl.Config(Outer, child=[fdl.Config(Square)])
    assert plus(root, "child", text) == []


@pytest.mark.parametrize(
    ("root", "selector", "sign", "text", "message"),
    [
        (fdl.Config(annotated, names=["a"]), "names", "+", "b",
         "names+=b: it is ['a'] (list), to which += adds items: write +=[...]."),
        (fdl.Config(annotated, names=["a"]), "names", "+", "",
         "names+=: it is ['a'] (list), to which += adds items: write +=[...]."),
        (fdl.Config(annotated, by_name={"a": 1}), "by_name", "+", "[b]",
         "by_name+=[b]: it is {'a': 1} (dict), to which += adds items: write +={name: ...}."),
        (fdl.Config(annotated, by_name={"a": 1}), "by_name", "+", "{a: 2}",
         "by_name+={a: 2}: there is an entry 'a' already: set:by_name['a']=... sets it."),
        (fdl.Config(annotated, by_name={"a": 1}), "by_name", "+", "{b: x}",
         "by_name['b']: 'x' is not an int."),
        (fdl.Config(annotated, numbers=(1, 2)), "numbers", "+", "[3]",
         "numbers takes tuple[int, int], not (1, 2, 3) (tuple)."),
        (fdl.Config(annotated), "functions", "+", "[double]",
         "functions[0]: 'double' is not a Callable[[], Part]. Name a part that fits, such as Part, "
         "Wide."),
        (fdl.Config(annotated), "by_name", "+", "{b: 1}",
         "by_name+={b: 1}: it is None, not a number: set:by_name=... sets it."),
        (fdl.Config(annotated, names=["a"]), "names", "-", "[a]",
         "names-=[a]: it is ['a'] (list), and -= is for numbers. += adds items to it, and "
         "set:names=... sets it whole."),
        (fdl.Config(annotated, names=["a"]), "names", "*", "2",
         "names*=2: it is ['a'] (list), and *= is for numbers. += adds items to it, and "
         "set:names=... sets it whole."),
        (fdl.Config(Outer, child=Size(1, 2)), "child", "+", "[3]",
         "child+=[3]: it is Size(width=1, depth=2) (Size), not a number."),
    ],
)  # fmt: skip
def test_what_cannot_be_added(root: Any, selector: str, sign: str, text: str, message: str) -> None:
    before = repr(root)
    with pytest.raises(ConfigError) as caught:
        plus(root, selector, text, sign)
    assert str(caught.value) == message
    assert repr(root) == before
