"""`diff`: the differences between two bound graphs, each at the one place that sets it."""

import random
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import PartAdded, ValueChanged, clone, clone_part, diff, diff_text
from fidgpt.graph.bound import fingerprint
from fidgpt.graph.formulas import make_formula

from .parts import Depth, Outer, Part, Rate, Square, Wide, Width, holding, pair, scaled


def lines(old: Any, new: Any) -> list[str]:
    return diff_text(diff(old, new)).splitlines()


def outer(**arguments: Any) -> fdl.Config:
    """Set a width, which two nodes inherit; one of them is held twice."""
    shared = fdl.Config(Part, Width.new())
    held = {"child": fdl.Config(pair, fdl.Config(Part, Width.new()), shared), "other": shared}
    return fdl.Config(Outer, width=Width.new(3), **(held | arguments))


def items(*held: Any, **arguments: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), child=list(held), **arguments)


def wide(**arguments: Any) -> fdl.Config:
    return fdl.Config(Wide, Width.new(), **arguments)


def assigned(path: str, value: Any) -> Callable[[Any], None]:
    *way, last = path.split(".")

    def change(cfg: Any) -> None:
        for name in way:
            cfg = getattr(cfg, name)
        setattr(cfg, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (assigned("depth", 0), "no difference"),
        (assigned("width", 4), "~ width: 3 -> 4, inherited by 2 parameters"),
        (assigned("child.first.width", 8), "~ child.first.width: 3 (inherited from width) -> 8"),
        (
            assigned("child.first.other", fdl.Config(Wide, Width.new(), child=fdl.Config(Square))),
            "+ child.first.other: Wide(width=Width, child=Square())",
        ),
        (assigned("child.first", None), "- child.first: Part(width=Width), now None"),
        (lambda cfg: fdl.update_callable(cfg.child.first, Wide), "~ child.first: Part -> Wide"),
        (
            lambda cfg: setattr(cfg, "other", clone_part(cfg.other)),
            "& other: shared with child.second -> an equal Part of its own",
        ),
        (
            lambda cfg: (fdl.remove_tag(cfg, "rate", Rate), fdl.add_tag(cfg, "depth", Depth)),
            "~ depth: tagged Depth\n~ rate: no longer tagged Rate",
        ),
        (
            lambda cfg: setattr(cfg, "depth", make_formula(cfg, "{width} * 2")),
            "~ depth: 0 -> {width} * 2",
        ),
    ],
)
def test_a_change_is_one_line(change: Callable[[Any], None], expected: str) -> None:
    old = outer(depth=0)
    fdl.add_tag(old, "rate", Rate)
    old.rate = 0.0
    new = clone(old)
    change(new)
    assert diff_text(diff(old, new)).startswith(f"{expected}\n")


def test_changes_hold_values_paths_and_nodes_of_both_graphs() -> None:
    old, new = outer(), outer()
    new.width = 4
    new.child.first.other = wide()
    value, added = diff(old, new)
    assert isinstance(value, ValueChanged)
    assert (value.old.value, value.new.value) == (3, 4)
    assert sorted(value.inherited_by)[:2] == ["child.first.other.width", "child.first.width"]
    assert added.new.value is new.child.first.other
    assert (added.old.path, added.new.path) == ("child.first.other", "child.first.other")


def nested(**arguments: Any) -> fdl.Config:
    """Set a width around a node that inherits it and sets it again for another."""
    inner = fdl.Config(Outer, Width.new(**arguments), child=fdl.Config(Part, Width.new()))
    return fdl.Config(Outer, Width.new(3), child=inner)


def entries(**held: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), other=held)


def heirs(*widths: int) -> fdl.Config:
    """Hold nodes of which each sets what it inherits unless it sets its own width."""
    held = [fdl.Config(Part, Width.new(), other=Width.new(3)) for _ in widths]
    for part, width in zip(held, widths, strict=True):
        if width:
            part.width = width
    return fdl.Config(Outer, child=held)


def computed(ratio: float) -> fdl.Config:
    width = Width.new(fdl.Config(scaled, number=10, ratio=ratio))
    return fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new()))


def layer(table: Any) -> fdl.Partial:
    return fdl.Partial(Wide, Width.new(), child=fdl.ArgFactory(Outer, child=table))


ONE, TWO, NUMBER = fdl.Config(Square, 1), fdl.Config(Square, 2), fdl.Config(scaled, number=10)
TIED, UNTIED, APART = outer(), outer(), outer()
UNTIED.other, APART.other = (clone_part(one.other) for one in (UNTIED, APART))
APART.other.other = 1
PLAIN = outer(child=fdl.Config(Part, Width.new()), other=None)
FIVE = [wide(other=i) for i in range(5)]
MIXED = [wide(other=1), fdl.Config(Square), wide(other=2)]


def test_what_is_inherited_or_comes_with_another_call() -> None:
    line = "~ child.width: 3 (inherited from width) -> 5, inherited by 1 parameter"
    assert lines(nested(), nested(default=5)) == [line]
    line = "~ child[2].width: 3 (inherited from child[2].other) -> 4"  # not from equal child[0]
    assert lines(heirs(0, 0, 0), heirs(0, 3, 4)) == [line]
    assert lines(computed(0.5), computed(0.2)) == ["~ width.ratio: 0.5 -> 0.2"]
    line = "+ width: scaled(number=10, ratio=0.2), instead of 3"
    assert lines(PLAIN, computed(0.2)) == [line]
    other = outer(child=fdl.Config(scaled, Width.new(), ratio=0.1), other=None)
    assert lines(PLAIN, other) == ["~ child: Part -> scaled", "~ child.ratio: not set -> 0.1"]
    assert lines(PLAIN, outer(child=fdl.Config(Square), other=None)) == [
        "~ child: Part -> Square",
        "~ child.width: no longer tagged Width",
        "~ child.width: 3 (inherited from width) -> 1 (default)",
    ]


def test_sharing_is_compared_place_by_place() -> None:
    line = "& other: an equal Part of its own -> shared with child.second"
    assert lines(UNTIED, TIED) == [line]
    assert lines(TIED, APART) == [
        "& other: shared with child.second -> a Part of its own",
        "~ other.other: None (default) -> 1",
    ]
    assert lines(entries(a=ONE, b=TWO, c=TWO), entries(a=ONE, b=ONE, c=None)) == [
        "& other['b']: shared with other['c'] -> shared with other['a']",
        "& other['c']: shared with other['b'] -> None",
    ]
    assert lines(entries(a=None, b=None), entries(a=ONE, b=ONE)) == [
        "+ other['a']: Square(width=1)",
        "& other['b']: None -> shared with other['a']",
    ]


def test_items_that_come_go_and_move() -> None:
    longer = items(fdl.Config(Square), *FIVE)
    assert lines(items(*FIVE), longer) == ["+ child[0]: Square()"]
    assert lines(longer, items(*FIVE)) == ["- child[0]: Square()"]
    moved = lines(items(*MIXED), items(*MIXED[1:], MIXED[0]))
    assert [line[:10] for line in moved] == ["- child[0]", "+ child[2]"]
    changed = items(wide(other=1), fdl.Config(Square, width=2), wide(other=3))
    expected = ["~ child[1].width: 1 (default) -> 2", "~ child[2].other: 2 -> 3"]
    assert lines(items(*MIXED), changed) == expected
    assert lines(items(ONE), outer(child=(ONE,), other=None)) == ["~ child: list -> tuple"]
    default, two = fdl.Config(Square), fdl.Config(Square, 2)
    assert lines(entries(a=clone(default), b=default), entries(c=default, b=two)) == [
        "- other['a']: Square()",
        "~ other['b'].width: 1 (default) -> 2",
        "+ other['c']: Square()",
    ]


def test_items_that_share_less_than_the_one_they_resemble() -> None:
    """Two layers with a table each, where one was for all."""
    like = "+ child[1]: Wide like child[0]"
    own = "& child[1].child.child: an equal Square of its own, not child[0].child.child"
    assert lines(items(layer(NUMBER)), items(layer(NUMBER), layer(clone(NUMBER)))) == [like]
    assert lines(items(layer(ONE)), items(layer(ONE), layer(ONE))) == [like]
    assert lines(items(layer(ONE)), items(layer(ONE), layer(clone(ONE)))) == [like, own]


def test_items_that_resemble_another_are_compared_with_it() -> None:
    new = items(wide(other=1), wide(other=1), wide(other=2), wide(other=1))
    found = diff(items(wide(other=1)), new)
    assert diff_text(found).splitlines() == [
        "+ child[1-3]: Wide like child[0]",
        "~ child[2].other: 1 -> 2",
    ]
    assert [one.new.value for one in found if isinstance(one, PartAdded)] == new.child[1:]


def test_changes_that_items_have_in_common_are_one_line() -> None:
    old = items(*(wide(child=[wide(), wide()]) for _ in range(4)))
    new = clone(old)
    for i in (0, 1, 2):
        new.child[i].child[1].other = 7
    assert lines(old, new) == ["~ child[0-2].child[1].other: None (default) -> 7"]
    new.child[3].child[0].other = 7
    assert len(lines(old, new)) == 4
    keys = ("a[]", "x[1]", "x[2]")  # whose brackets are no index
    old, new = (items({key: fdl.Config(Square, one) for key in keys}) for one in (2, 3))
    assert lines(old, new) == [f"~ child[0][{key!r}].width: 2 -> 3" for key in keys]


def random_graph(rng: random.Random, num_parts: int = 6) -> fdl.Config:
    """Return a graph in which anything may hold and share anything that was made before."""
    made: list[Any] = [fdl.Config(Square, rng.randint(1, 2))]
    for _ in range(num_parts):
        held = [rng.choice(made) for _ in range(rng.randint(1, 3))]
        kind = rng.choice([fdl.Config, fdl.Partial])
        match rng.randint(0, 3):
            case 0:
                made.append(kind(holding, held))
            case 1:
                made.append(kind(pair, *held[:2]))
            case 2:
                made.append(fdl.Config(Outer, child=held[0], other={"a": held[-1], "b": 1}))
            case _:
                made.append(fdl.Config(rng.choice([Part, Wide]), Width.new(), child=held[0]))
    return fdl.Config(Outer, width=Width.new(rng.randint(1, 2)), child=made[-1], other=made[-2])


def change_something(rng: random.Random, part: Any) -> None:
    """Change a value, a node, a tag or what is shared; sometimes nothing."""
    name = rng.choice([key for key in fdl.ordered_arguments(part) if isinstance(key, str)])
    match rng.randint(0, 4):
        case 0 if fdl.get_callable(part) is not holding:
            setattr(part, name, 5)
        case 1:
            fdl.add_tag(part, name, Rate)
        case 2 if isinstance(getattr(part, name), fdl.Buildable):
            setattr(part, name, clone(getattr(part, name)))
        case 3 if isinstance(getattr(part, name), list):
            getattr(part, name).reverse()
        case _:
            pass


@pytest.mark.parametrize("seed", range(10))
def test_graphs_that_differ_from_one_another_differ_in_their_lines(seed: int) -> None:
    rng = random.Random(seed)
    old, found = random_graph(rng, 5), dict[str, str]()
    for _ in range(20):
        new = clone(old)
        held = [one for one in (new, new.child) if isinstance(one, fdl.Buildable)]
        for part in rng.choices(held, k=3):
            change_something(rng, part)
        text = diff_text(diff(old, new))
        assert found.setdefault(text, fingerprint(new)) == fingerprint(new), text


class TestFormulas:
    """A formula is a value, as its text has it; what it looks up is no difference of its own."""

    @staticmethod
    def outer(depth: Any = None, **arguments: Any) -> fdl.Config:
        cfg = fdl.Config(Outer, width=Width.new(3), rate=2.0, **arguments)
        cfg.child = fdl.Config(Part, Width.new())
        cfg.depth = make_formula(cfg, depth) if isinstance(depth, str) else depth
        return cfg

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("{width} * 2", "{width} * 3", ["~ depth: {width} * 2 -> {width} * 3"]),
            ("{width}", 5, ["~ depth: {width} -> 5"]),
            (NUMBER, "{width}", ["~ depth: scaled(number=10) -> {width}"]),
        ],
    )
    def test_it_is_shown_as_it_is_written(self, old: Any, new: Any, expected: list[str]) -> None:
        assert lines(self.outer(old), self.outer(new)) == expected

    def test_one_that_others_inherit_or_share(self) -> None:
        old, new = self.outer(), self.outer()
        old.width, new.width = (make_formula(old, f"{{rate}} * {n}") for n in (2, 3))
        changed = "~ width: {rate} * 2 -> {rate} * 3, inherited by 1 parameter"
        assert lines(old, new) == [changed]
        new = self.outer("{rate} * 2")
        new.other = new.depth
        assert lines(self.outer(5, other=5), new) == [
            "~ depth: 5 -> {rate} * 2",
            "& other: 5 -> shared with depth",
        ]
