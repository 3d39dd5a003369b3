"""`check`: what is wrong before anything is built, and arguments that no code reads."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt.graph import ConfigErrors, build, check, fingerprint
from fidgpt.graph.building import check_and_bind
from fidgpt.graph.formulas import make_formula

from .edited import message_of
from .parts import Outer, Part, annotated


def mistakes(cfg: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        check(cfg)
    return caught.value.messages


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
        "child.width is 1024.5 (float), and Part takes int.",
        "  Set a value of that type:  set:child.width=...",
    ]


def test_a_text_in_place_of_a_formula() -> None:
    text = "{child.width} * 2"
    (message,) = mistakes(cfg := fdl.Config(Outer, width=text, child=fdl.Config(Part, width=4)))
    first, remedy = message.splitlines()
    assert first == f"width is '{text}' (str), and Outer takes int."
    assert remedy.endswith(f"fidgpt.graph.formulas.make_formula(cfg, '{text}')")
    cfg.width = make_formula(cfg, text)
    assert build(check(cfg)).width == 8


def made_on() -> torch.device:
    return torch.empty(1).device


def pair_of(one: Any, other: Any) -> tuple[Any, Any]:
    return one, other


def test_an_argument_is_built_within_its_context_and_takes_along_what_it_shares() -> None:
    within, shared = {"other": torch.device("meta")}, fdl.Config(made_on)
    cfg = fdl.Config(pair_of, one=fdl.Config(made_on), other=[shared])
    one, (other,) = build(cfg, within=within)
    assert (one.type, other.type) == ("cpu", "meta")
    cfg.one = {"again": shared}
    one, (other,) = build(cfg, within=within)
    assert one["again"] is other
    assert other.type == "meta"


def test_a_part_that_does_not_fit() -> None:
    (message,) = mistakes(fdl.Config(annotated, square=fdl.Config(Part, width=1)))
    assert message.startswith("square is the component Part, and annotated takes Square or None.")


def test_missing_in_a_factory_but_not_in_a_partial() -> None:
    assert check(fdl.Partial(Part, child=1))
    cfg = fdl.Partial(Outer, child=fdl.ArgFactory(Part))
    assert "child.width is required by Part" in mistakes(cfg)[0]


class TestFactories:
    """An `ArgFactory` is called by a `Partial` or another `ArgFactory`, and by nothing else."""

    @pytest.mark.parametrize("inside", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}])
    def test_under_a_config(self, inside: Any) -> None:
        cfg = fdl.Config(Outer, child=inside(fdl.ArgFactory(Part, width=1)))
        (message,) = mistakes(cfg)
        assert "which only a Partial or another ArgFactory calls: make it a fdl.Config" in message

    def test_at_the_root(self) -> None:
        assert "the root is an ArgFactory of Part" in mistakes(fdl.ArgFactory(Part, width=1))[0]


@dataclasses.dataclass
class Box:
    """Something that is no part and holds one."""

    content: Any
    parent: Any = None


PART = fdl.Config(Part, width=1)
HIDING = {
    "dataclass": Box(PART),
}


@pytest.mark.parametrize("value", HIDING.values(), ids=HIDING)
def test_parts_that_fiddle_would_not_build(value: Any) -> None:
    cfg = fdl.Config(Outer, child=value)
    assert isinstance(fdl.build(cfg), Outer), "Fiddle reports nothing"
    assert "components are not built: use a plain list" in mistakes(cfg)[0]


def takes(*widths: int, depth: int) -> Part:
    """Makes a part of any number of widths."""
    return Part(sum(widths) + depth)


def named(*, width: int) -> Part:
    """May be called by name, which no Callable describes."""
    return Part(width)


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"parts": [PART, 3]}, "parts[0] is the component Part, and Holder takes Leaf there."),
        ({"numbers": [1, "a", "b"]}, "numbers[1] is 'a' (str), and Holder takes int there."),
        ({"table": {"b": [1.0, "x"]}}, "table['b'][1] is 'x' (str), and Holder takes float there."),
        ({"pair": (1, "a", 2)}, "pair is (1, 'a', 2) (tuple), and Holder takes tuple[int, str]."),
    ],
)
def test_the_item_or_the_whole_that_does_not_fit(arguments: dict[str, Any], text: str) -> None:
    assert (
        message_of(lambda: check(fdl.Config(Holder, **arguments))).splitlines()[0].startswith(text)
    )


class Blind:
    """Has no such method."""


def made() -> Blind:
    return Blind()


def takes_any(**parts: Any) -> Any:
    return parts


@pytest.mark.parametrize("in_lists", [False, True])
def test_a_factory_in_two_places_is_refused_as_on_the_command_line(in_lists: bool) -> None:
    made = fdl.ArgFactory(Part, width=3)
    held = [made] if in_lists else made
    cfg = fdl.Config(takes_any, both=fdl.Partial(takes_any, first=held, second=held))
    (message,) = mistakes(cfg)
    assert message.startswith("both.first and both.second hold one ArgFactory of Part, which crea")


def remember(items: list[int] = [], *, names: Any = None, **others: Any) -> Any:  # noqa: B006
    items.append(len(items))
    return items, names, others


def test_what_is_built_holds_no_container_of_the_config_or_of_a_signature() -> None:
    names = {"a"}
    cfg = fdl.Config(
        remember, names=names, nested=[{1}, {"deep": {2}}], again=names, pair=(names, ({5},))
    )
    plain = fdl.Config(remember)
    before = fingerprint(plain)
    items, built, others = build(cfg)
    assert (items, built) == ([0], {"a"}) and others["again"] is built
    built.add("b")
    others["nested"][0].add(3)
    others["nested"][1]["deep"].add(4)
    assert others["pair"][0] is built
    others["pair"][1][0].add(6)
    assert cfg.names == {"a"} and cfg.nested == [{1}, {"deep": {2}}]
    assert cfg.pair == ({"a"}, ({5},))
    assert build(plain)[0] == [0] and fingerprint(plain) == before


def fill(pair: Any = ([], {"deep": [[]]}), table: Any = {"a": [1]}) -> Any:  # noqa: B006
    for items in (pair[0], pair[1]["deep"][0], table["a"]):
        items.append(len(items))
    return pair, table


def test_containers_inside_a_default_are_not_those_of_the_signature() -> None:
    plain = fdl.Config(fill)
    before = fingerprint(plain)
    for _ in range(2):
        assert build(plain) == (([0], {"deep": [[0]]}), {"a": [1, 1]})
    check_and_bind(plain)
    assert fingerprint(plain) == before
