"""What two graphs differ in at least is never more than what a comparison finds."""

import itertools

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.graph import clone, diff
from fidgpt.graph.reproduce import distance, frame_of, least_apart

from .parts import Outer, Part

MEMBERS = ("base", "debug", "gpt2_124m", "gemma3_270m", "llama3_2_1b", "deepseek_v2_lite")
FIDDLERS = ("use_gelu", "use_layer_norm", "use_moe", "use_gqa", "untie_embeddings", "use_mla")


def changed(name: str) -> fdl.Config:
    root = configs.base()
    getattr(fiddlers, name)(root)
    return root


GRAPHS = {name: getattr(configs, name)() for name in MEMBERS} | {n: changed(n) for n in FIDDLERS}


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(GRAPHS, 2)])
def test_no_comparison_finds_fewer(one: str, other: str) -> None:
    old, new = GRAPHS[one], GRAPHS[other]
    assert least_apart(frame_of(old), frame_of(new)) <= distance(diff(old, new))


def test_plain_values_and_calls_are_counted() -> None:
    old, new = configs.base(), configs.base()
    new.num_steps, new.model.norm = 7, fdl.Config(Part)
    assert least_apart(frame_of(old), frame_of(new)) == 2


def test_items_that_might_have_moved_are_not() -> None:
    old = fdl.Config(Outer, child=[fdl.Config(Part, width=1), fdl.Config(Part, width=2)])
    new = clone(old)
    new.child.reverse()
    assert least_apart(frame_of(old), frame_of(new)) == 0


def test_one_part_in_many_blocks_is_about_as_far_as_in_one() -> None:
    norms = clone(configs.gemma3_4b())
    fiddlers.use_weightless_norm(norms)
    own, others = (distance(diff(one(), norms)) for one in (configs.gemma3_4b, configs.llama3_2_1b))
    assert own < others
