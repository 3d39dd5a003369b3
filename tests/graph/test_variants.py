"""Graphs that differ in plain values alone, beside the same graphs checked and built alone."""

import copy
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import build, clone, fingerprint
from fidgpt.graph.edits import KeptGraph, change_by, set_text
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.graph.formulas import make_formula
from fidgpt.graph.variants import CheckedGraph

from .parts import Outer, Part, Rate, Width, double


def graph() -> Any:
    shared = fdl.Config(Part, width=Width.new())
    inner = fdl.Config(Part, width=Width.new(3), child=shared, other=shared)
    computed = fdl.Config(double, number=Width.new())
    return fdl.Config(
        *(Outer, Width.new(2)), depth=computed, rate=Rate.new(0.5), child=inner, other=[(1, 2), {}]
    )


def checked(root: Any, *constraints: Callable[[Any], None], fixed: tuple[str, ...] = ()) -> Any:
    made = CheckedGraph(root, constraints, fixed=fixed)
    made.build()
    return made


def changed(path: str, value: Any) -> Any:
    root = graph()
    exec(f"root{path} = value", {"root": root, "value": value})
    return root


def as_dict(thing: Any) -> Any:
    if isinstance(thing, list | tuple):
        return [as_dict(one) for one in thing]
    is_plain = not hasattr(thing, "__dict__")
    return thing if is_plain else {key: as_dict(one) for key, one in vars(thing).items()}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".width", 4),
        (".rate", 0.25),
        (".child.width", 5),
    ],
)
def test_a_variant_has_the_fingerprint_and_builds_the_same(path: str, value: Any) -> None:
    root = changed(path, value)
    variant = checked(graph()).variant(root)
    assert variant.fingerprint == fingerprint(root)
    built, alone = variant.build(), build(clone(root))
    assert as_dict(built) == as_dict(alone)
    assert built.child.child is built.child.other
    assert variant.value("depth") == 2 * (value if path == ".width" else 2)
    assert variant.value(path[1:]) == value


def others() -> list[Any]:
    tied = graph()
    tied.child.other = fdl.Config(Part, width=Width.new())  # no longer shared
    shared = graph()
    shared.other = [(1, 2), shared.child]
    tagged = graph()
    fdl.add_tag(tagged, "depth", Width)
    unset = graph()
    del unset.child.width
    partial = graph()
    partial.child = fdl.cast(fdl.Partial, partial.child)
    return [
        *(tied, shared, tagged, unset, partial),
        changed(".rate", "text"),  # which does not fit
        changed(".width", None),
        changed(".other", [(1, 2), {}, 3]),
        changed(".other", [(1, 3), {}]),
        changed(".child", None),
        changed(".depth", 4),
    ]


@pytest.mark.parametrize("number", range(11))
def test_what_differs_in_more_or_may_be_wrong_is_no_variant(number: int) -> None:
    assert checked(graph()).variant(others()[number]) is None


def test_nor_what_a_formula_names() -> None:
    def held(width: int, depth: int) -> Any:
        root = fdl.Config(Outer, width=Width.new(width), depth=depth, rate=0.5)
        root.child = fdl.Config(Part, width=make_formula(root, "{depth} * 2"))
        root.other = fdl.Config(Part, width=make_formula(root, "{Width} // 2"))
        return root

    known = checked(held(4, 2))
    assert known.variant(held(4, 3)) is None
    assert known.variant(held(6, 2)) is None
    rate = held(4, 2)
    rate.rate = 0.75
    assert known.variant(rate).fingerprint == fingerprint(rate)


READS: list[Callable[[Any], Any]] = [
    lambda cfg: cfg.rate,
    lambda cfg: raw_arguments(cfg).get("rate"),
    lambda cfg: dict(raw_arguments(cfg)),
    lambda cfg: raw_arguments(cfg) == {},
    lambda cfg: list(raw_arguments(cfg).items()),
    copy.copy,
    copy.deepcopy,
    fdl.build,
    repr,
    lambda cfg: fdl.ordered_arguments(cfg),
]


@pytest.mark.parametrize("number", range(len(READS)))
def test_a_value_that_a_constraint_reads_does_not_differ(number: int) -> None:
    def constraint(cfg: Any) -> None:
        READS[number](cfg)

    known = checked(graph(), constraint)
    assert known.variant(changed(".rate", 0.25)) is None


@pytest.mark.parametrize(
    ("selector", "sign", "text"),
    [
        ("rate", "", "0.25"),
        (Width, "", "7"),
        ("child.child.width", "", "9"),
        ("depth", "*", "2"),
        ("other", "+", "[3]"),
        ("**.width", "", "8"),
    ],
)
def test_a_kept_graph_gives_the_changed_one_and_stays_as_it_is(
    selector: Any, sign: str, text: str
) -> None:
    root = graph()
    kept = KeptGraph(root, {})
    alone = graph()
    _ = change_by(alone, selector, sign, text) if sign else set_text(alone, selector, text)
    for _ in range(2):
        made = kept.changed(selector, sign, text).root
        assert fingerprint(made) == fingerprint(alone)
        assert fingerprint(root) == fingerprint(graph()) != fingerprint(made)
        assert selector != "rate" or made.child is root.child


def test_code_runs_once_for_all_graphs_that_differ_in_what_it_does_not_touch() -> None:
    kept, widths = KeptGraph(graph(), {}), []

    def widen(root: Any) -> None:
        root.width = root.child.width + 1
        widths.append(root.width)

    made = [kept.changed("rate", "", rate).changed_by("widen", widen).root for rate in "01"]
    assert ([one.rate for one in made], [one.width for one in made], widths) == (
        [0, 1],
        [4, 4],
        [4],
    )
    read = kept.changed("rate", "", "1").changed("child.width", "", "8").changed_by("widen", widen)
    assert (read.root.rate, read.root.width) == (1, 9)
    assert kept.changed("width", "", "7").changed_by("widen", widen).root.width == 4  # it sets it
