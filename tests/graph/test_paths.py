"""The walk over a graph; what paths lead to, what may be set there, and messages of wrong ones."""

import re
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs
from fidgpt.graph import ConfigError, build, find_parameter, nodes
from fidgpt.graph.paths import parse_path

from .edited import message_of
from .parts import Outer, Part, Width, pair, positional, product


def graph() -> fdl.Config[Outer]:
    blocks = [fdl.Config(Part, width=1), fdl.Config(Part, width=Width.new())]
    other = {"a b": fdl.Config(Part, width=3), "it's": 1, "plain": 2}
    return fdl.Config(Outer, width=Width.new(4), child=blocks, other=other)


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("model.hidden_dim", ["model", "hidden_dim"]),
        ("blocks[0].width", ["blocks", 0, "width"]),
        ("blocks[-1][2]", ["blocks", -1, 2]),
        ("a['b c'][\"d\"]", ["a", "b c", "d"]),
        (r"a['it\'s'].b", ["a", "it's", "b"]),
        ("[0].a", [0, "a"]),
    ],
)
def test_reading_a_path(path: str, keys: list[Any]) -> None:
    assert parse_path(path) == keys


NO_PATHS = [
    *("", ".", "a..b", "a.", "a[", "a[]", "a[0", "a[0]b", "a b", "a.0", "a[x]", "a[1.5]", "-a"),
    *("a/b", "a[٣]", r"a['\x']", r"a['\N{no}']", f"a[{'9' * 5000}]", "a\n", "1", "a['b]", "a=b"),
]


@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: path[:12])
def test_a_malformed_path_is_refused(path: str) -> None:
    assert len(message_of(lambda: parse_path(path))) < 200


@pytest.mark.parametrize(
    ("path", "before", "hint"),
    [
        ("width", 4, int),
        ("rate", fdl.NO_VALUE, float),
        ("child[0].width", 1, int),
        ("child[-1].width", fdl.NO_VALUE, int),
        ("other['a b'].width", 3, int),
        ("other.plain", 2, Any),
    ],
)
def test_a_place_is_found_and_filled(path: str, before: Any, hint: Any) -> None:
    cfg = graph()
    place = find_parameter(cfg, path)
    assert place.value is before or place.value == before
    assert place.hint is hint
    place.set(7)
    assert find_parameter(cfg, path).value == 7


def test_unnamed_arguments() -> None:
    cfg = fdl.Config(pair, fdl.Config(product, 2, 3), fdl.Config(positional, 1))
    find_parameter(cfg, "first[1]").set(10)
    find_parameter(cfg, "second[0]").set(5)
    find_parameter(cfg, "second.width").set(6)
    assert build(cfg) == (20, (6, 2))
    for path in ("first[2]", "first[-3]", "first.factors", "second[5]"):
        with pytest.raises(ConfigError, match="has no parameter"):
            find_parameter(cfg, path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("lr", "It exists at optimizer.lr."),
        ("weight_decay", "It exists at optimizer.weight_decay."),
        ("num_layer", "Did you mean model.num_layers?"),
        ("learningrate", "Did you mean @LearningRate?"),
        ("num_step", "Did you mean num_steps?"),
    ],
)
def test_an_unknown_name_is_looked_for_in_the_whole_graph(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"has no parameter {name!r}. {remedy}")):
        find_parameter(configs.debug(), name)


def test_a_number_cannot_replace_a_part() -> None:
    cfg = graph()
    with pytest.raises(ConfigError, match="is the component Part, which 5 .int. cannot replace"):
        find_parameter(cfg, "child[0]").set(5)
    find_parameter(cfg, "child[0]").set(fdl.Config(Outer))
    assert build(cfg.child[0]).depth == 0


def test_setting_through_a_default_is_refused() -> None:
    """Fiddle changes the function's own default, for the whole process."""

    def listing(items: list[int] = [1, 2]) -> list[int]:  # noqa: B006 (this is the trap)
        return items

    cfg = fdl.Config(listing)
    with pytest.raises(ConfigError, match="items is not set, so there is nothing at"):
        find_parameter(cfg, "items[0]").set(9)
    assert listing() == [1, 2]


def test_a_path_is_the_one_that_a_reader_meets_first() -> None:
    deep = fdl.Config(Part, width=1)
    middle = fdl.Config(Part, 1, child=deep)
    cfg = fdl.Config(pair, fdl.Config(Part, 1, child=middle, other=deep), middle)
    node = next(node for node in nodes(cfg) if node.value is deep)
    assert node.path == "first.child.child"
    assert node.paths == ["first.child.child", "first.other"]
    assert node.is_shared


def test_a_part_that_contains_itself_is_refused_with_its_place() -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(Part, 1)])
    cfg.child[0].other = {"again": cfg.child}
    assert message_of(lambda: nodes(cfg)).startswith(
        "child (list) contains itself, at child[0].other['again']:"
    )
    cfg.child = cfg
    with pytest.raises(ConfigError, match=r"^the root \(Outer\) contains itself, at child:"):
        nodes(cfg)
