"""`check`: what is known to be wrong before anything is built, all of it at once."""

import collections
import dataclasses
import types
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, bind, build, check

from .parts import Options, Outer, Part, Size, Square, Width, annotated, pair, product


def mistakes(cfg: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        check(cfg)
    return caught.value.messages


def test_a_graph_without_mistakes_comes_back_as_it_is() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    assert check(cfg) is cfg


def test_all_mistakes_are_found_at_once() -> None:
    cfg = fdl.Config(Outer, width="wide", rate=None, child=[fdl.Config(Part), {1}])
    assert [message.split()[0] for message in mistakes(cfg)] == [
        "width",
        "rate",
        "child[0].width",
    ]


def test_a_value_that_does_not_fit() -> None:
    (message,) = mistakes(fdl.Config(Outer, child=fdl.Config(Part, width=1024.5)))
    assert message.splitlines() == [
        "child.width is 1024.5, and Part takes int.",
        "  Set something that fits:  set:child.width=...",
    ]


def test_a_part_that_does_not_fit() -> None:
    (message,) = mistakes(fdl.Config(annotated, square=fdl.Config(Part, width=1)))
    assert message.startswith("square is the part Part, and annotated takes Square or None.")


def test_a_long_value_is_cut() -> None:
    (message,) = mistakes(fdl.Config(Part, width="x" * 10_000))
    assert len(message) < 200


def test_a_required_argument_that_is_missing() -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(Part)])
    assert mistakes(cfg) == [
        "child[0].width is required by Part and not set: set:child[0].width=<int>."
    ]


def test_missing_in_a_factory_but_not_in_a_partial() -> None:
    assert check(fdl.Partial(Part, child=1))
    cfg = fdl.Partial(Outer, child=fdl.ArgFactory(Part))
    assert "child.width is required by Part" in mistakes(cfg)[0]


def test_an_open_quantity_is_not_missing() -> None:
    assert check(fdl.Config(Outer, child=fdl.Config(Part, width=Width.new())))


def test_the_default_always_fits() -> None:
    def relaxed(width: int = None, names: list[str] = ()) -> None:  # type: ignore # noqa: RUF013
        """As many third parties write it."""

    assert check(bind(fdl.Config(relaxed, width=Width.new(None), names=())))


class TestFactories:
    """An `ArgFactory` is called by a `Partial` or another `ArgFactory`, and by nothing else."""

    @pytest.mark.parametrize("inside", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}])
    def test_under_a_config(self, inside: Any) -> None:
        cfg = fdl.Config(Outer, child=inside(fdl.ArgFactory(Part, width=1)))
        (message,) = mistakes(cfg)
        assert "which only a Partial or another ArgFactory calls: make it a fdl.Config" in message

    @pytest.mark.parametrize("inside", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}])
    @pytest.mark.parametrize("kind", [fdl.Partial, fdl.ArgFactory])
    def test_under_a_factory(self, inside: Any, kind: Any) -> None:
        factory = kind(Outer, child=inside(fdl.ArgFactory(Part, width=1)))
        assert check(fdl.Partial(Outer, child=factory))

    def test_at_the_root(self) -> None:
        assert "the root is an ArgFactory of Part" in mistakes(fdl.ArgFactory(Part, width=1))[0]

    def test_in_one_of_two_places(self) -> None:
        shared = [fdl.ArgFactory(Part, width=1)]
        cfg = fdl.Config(pair, fdl.Partial(Outer, child=shared), fdl.Config(Outer, child=shared))
        assert len(mistakes(cfg)) == 1


@dataclasses.dataclass
class Box:
    """Something that is no part and holds one."""

    content: Any
    parent: Any = None


class MyList(list):  # type: ignore[type-arg]
    """A list of a kind that Fiddle does not know."""


PART = fdl.Config(Part, width=1)
HIDING = {
    "OrderedDict": collections.OrderedDict(a=PART),
    "defaultdict": collections.defaultdict(list, a=PART),
    "list subclass": MyList([PART]),
    "deque": collections.deque([PART]),
    "mapping": types.MappingProxyType({"a": PART}),
    "dataclass": Box(PART),
    "dataclass in a list": [Box(PART)],
    "deep in a dataclass": Box([{"a": (PART,)}]),
    "list in an OrderedDict": collections.OrderedDict(a=[PART]),
    "deque in a dict in a list": [{"a": collections.deque([PART])}],
    "in two of them": MyList([collections.deque([Box(PART)])]),
}


@pytest.mark.parametrize("value", HIDING.values(), ids=HIDING)
def test_parts_that_fiddle_would_not_build(value: Any) -> None:
    cfg = fdl.Config(Outer, child=value)
    assert isinstance(fdl.build(cfg), Outer), "Fiddle says nothing"
    assert "parts are not built: use a plain list" in mistakes(cfg)[0]


def test_and_their_place() -> None:
    cfg = fdl.Config(Outer, child=[1, {"a": collections.deque([PART])}])
    assert mistakes(cfg)[0].startswith("child[1]['a'] is of type deque,")


BUILT = {
    "list": [PART],
    "tuple": (PART,),
    "dict": {"a": [PART]},
    "named tuple": Size(PART, PART),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("value", BUILT.values(), ids=BUILT)
def test_containers_whose_parts_are_built(value: Any) -> None:
    assert "Config" not in repr(build(fdl.Config(Outer, child=value)).child)


def test_a_value_that_holds_itself_is_looked_at_once() -> None:
    box = Box(1)
    box.parent = box
    assert check(fdl.Config(Outer, child=box))


class Untouchable:
    """A collection that must not be read to be checked: a data set, a tensor of no dimensions."""

    def __len__(self) -> int:
        return 10**12

    def __iter__(self) -> Any:
        raise TypeError("iteration over a 0-d tensor")

    def __contains__(self, item: Any) -> bool:
        return False


def test_other_collections_are_not_read() -> None:
    assert check(fdl.Config(Outer, child=Untouchable()))
    assert check(fdl.Config(Outer, child=range(10**12)))


def test_callables_without_annotations_signatures_or_names() -> None:
    assert build(fdl.Config(dict, a=1, b=fdl.Config(Square))).keys() == {"a", "b"}
    assert build(fdl.Config(lambda x: x, 1)) == 1
    assert build(fdl.Config(product, 2, 3)) == 6


def test_a_dataclass_keeps_its_default_factory() -> None:
    one, two = build(fdl.Config(pair, fdl.Config(Options), fdl.Config(Options, width=2)))
    assert one.names == two.names == []
    assert one.names is not two.names
