"""The fingerprint: the same for the same graph however it came about, and for no other."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import fiddlers
from fidgpt.configs import base
from fidgpt.graph import ConfigError, bind, clone, dump, equal, fingerprint, load
from fidgpt.graph.formulas import make_formula
from fidgpt.graph.storage.bound import BoundGraph

from . import parts
from .parts import Depth, Outer, Part, Rate, Wide, Width, double, keywords, pair, scaled

ALLOWED = (parts.__name__,)


def graph() -> fdl.Config[Outer]:
    shared = fdl.Config(Part, width=Width.new())
    return fdl.Config(
        Outer,
        width=Width.new(3),
        depth=Depth.new(fdl.Config(double, Width.new())),
        rate=Rate.new(),
        child=[shared, fdl.Partial(Part, width=Depth.new(), child=shared)],
        other={"a": (1, "x", None, True)},
    )


def test_it_is_sixty_four_digits_and_repeats() -> None:
    assert fingerprint(graph()) == fingerprint(graph())
    assert len(fingerprint(graph())) == 64


def test_it_is_that_of_the_bound_graph() -> None:
    assert fingerprint(bind(graph())) == fingerprint(graph())
    assert fingerprint(clone(graph())) == fingerprint(graph())


def test_said_heard_and_default_are_the_same_value() -> None:
    cfg = graph()
    cfg.child[0].width = 3
    cfg.rate = 0.0
    assert fingerprint(cfg) == fingerprint(graph())


def untie(cfg: Any) -> None:
    cfg.child[0] = clone(cfg.child[0])


def retag(cfg: Any) -> None:
    fdl.add_tag(cfg.child[0], "other", Rate)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a value": lambda cfg: setattr(cfg, "width", 4),
    "an int to a float": lambda cfg: setattr(cfg, "width", 3.0),
    "True to 1": lambda cfg: cfg.other.update(a=(1, "x", None, 1)),
    "None to its name": lambda cfg: cfg.other.update(a=(1, "x", "None", True)),
    "a tuple to a list": lambda cfg: cfg.other.update(a=[1, "x", None, True]),
    "a key": lambda cfg: cfg.other.update(b=1),
    "a default": lambda cfg: setattr(cfg, "rate", 0.1),
    "sharing": untie,
    "a tag": retag,
    "a tag away": lambda cfg: fdl.remove_tag(cfg, "rate", Rate),
    "what is called": lambda cfg: fdl.update_callable(cfg.child[1], Wide),
    "how it is called": lambda cfg: cfg.child.__setitem__(1, fdl.cast(fdl.Config, cfg.child[1])),
    "the order of a list": lambda cfg: cfg.child.reverse(),
    "a computed value to its result": lambda cfg: setattr(cfg, "depth", 6),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_changes_with(change: Callable[[Any], Any]) -> None:
    cfg = graph()
    change(cfg)
    assert fingerprint(cfg) != fingerprint(graph())


def test_equal_parts_are_not_one_part() -> None:
    def half() -> fdl.Config:
        return fdl.Config(scaled, number=8)

    one = half()
    assert fingerprint(fdl.Config(pair, one, one)) != fingerprint(fdl.Config(pair, half(), half()))


def test_a_default_that_has_no_form_in_a_file_is_no_hindrance() -> None:
    cfg = fdl.Config(with_unsavable_default, width=Width.new(1))
    fdl.add_tag(cfg, "key", Rate)
    assert fingerprint(bind(cfg)) == fingerprint(cfg)


def with_unsavable_default(width: int, key: Any = lambda x: x) -> None:
    """Has a default that is a lambda."""


def test_what_has_no_name_has_no_fingerprint() -> None:
    with pytest.raises(ConfigError, match="cannot be saved by name"):
        fingerprint(fdl.Config(lambda: 1))


@pytest.mark.parametrize(
    "names",
    [
        ("use_gqa", "make_large"),
        ("make_small", "use_learned_positions", "use_gelu"),
        ("untie_embeddings", "make_medium", "use_layer_norm"),
        ("use_wsd", "use_float32", "make_xl"),
    ],
)
def test_fiddlers_give_one_graph_in_any_order(names: tuple[str, ...]) -> None:
    found = set()
    for order in (names, names[::-1]):
        cfg = base()
        for name in order:
            getattr(fiddlers, name)(cfg)
        found.add(fingerprint(cfg))
    assert len(found) == 1


def test_of_base_it_survives_a_file_and_sees_ties() -> None:
    cfg = base()
    before = fingerprint(cfg)
    assert fingerprint(load(dump(cfg))) == before
    fiddlers.untie_embeddings(cfg)
    untied = fingerprint(cfg)
    fiddlers.tie_embeddings(cfg)
    assert fingerprint(cfg) == before != untied


def test_a_formula_is_as_it_is_once_it_is_bound() -> None:
    cfg = fdl.Config(Outer, width=3, depth=4)
    cfg.rate = make_formula(cfg, "{width} * 2")
    cfg.child = fdl.Config(Part, make_formula(cfg, "{rate} + 1"))
    before = fingerprint(cfg)
    assert fingerprint(bind(cfg)) == before == fingerprint(load(dump(cfg), allowed=ALLOWED))
    cfg.width = 4
    assert fingerprint(bind(cfg)) == fingerprint(cfg) != before


def test_what_is_inside_a_block_does_not_depend_on_what_is_around() -> None:
    """Two equal blocks have one number, though each shares a part of its own inside."""

    def block() -> fdl.Config[Any]:
        own = fdl.Config(Part, 1)
        return fdl.Config(pair, own, [own])

    cfg = fdl.Config(pair, block(), block())
    digest = BoundGraph(cfg).digest
    assert digest[id(cfg.first)] == digest[id(cfg.second)]
    assert equal(cfg, clone(cfg))
    cfg.second.second[0] = cfg.first.first
    assert len({fingerprint(one) for one in (cfg, fdl.Config(pair, block(), block()))}) == 2
    assert not equal(cfg, fdl.Config(pair, block(), block()))


def test_the_order_of_arguments_says_nothing() -> None:
    one, other = fdl.Config(keywords, a=1, b=2), fdl.Config(keywords, b=2, a=1)
    assert fingerprint(one) == fingerprint(other)
    assert equal(fdl.Config(pair, {"a": 1, "b": one}), fdl.Config(pair, {"b": other, "a": 1}))
    assert not equal(fdl.Config(pair, 0.0), fdl.Config(pair, -0.0))
    assert not equal(fdl.Config(pair, [1]), fdl.Config(pair, [True]))


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from graph.parts import whole_graph
from fidgpt.graph import dump, fingerprint
print(fingerprint(whole_graph()), dump(whole_graph()))
"""


def test_it_and_the_file_are_the_same_in_every_process() -> None:
    folder = os.path.dirname(os.path.dirname(__file__))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(folder=folder)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
