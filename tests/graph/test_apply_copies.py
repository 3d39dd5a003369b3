"""A difference that made new items of a list like old ones knows when those have changed since."""

import json
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import fiddlers
from fidgpt.configs import debug
from fidgpt.graph import ConfigErrors, clone, equal, merge
from fidgpt.graph.difference.patches import apply_patch, dump_patch
from fidgpt.train import Console, JSONLines


def unrolled(cfg: Any, **dropouts: float) -> Any:
    fiddlers.unroll(cfg)
    for name, value in dropouts.items():
        cfg.model.blocks[int(name[1:])].dropout = value
    return cfg


def drop(cfg: Any) -> None:
    cfg.model.blocks[0].dropout = 0.2


def bias(cfg: Any) -> None:
    cfg.model.blocks[0].attention.bias = True


def no_rope(cfg: Any) -> None:
    cfg.model.blocks[0].attention.rope = None


def theta(cfg: Any) -> None:
    cfg.model.blocks[0].attention.rope.theta = 5.0


def wide(cfg: Any) -> None:
    cfg.model.hidden_dim = 64


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (drop, "model.blocks[0].dropout is 0.2 by now, and model.blocks[1].dropout, which the "
         "difference made like it, is not set: apply this difference before that change."),
        (bias, "model.blocks[0].attention.bias is True by now, and model.blocks[1].attention.bias"),
        (fiddlers.use_gelu, "model.blocks[0].mlp is GELU by now, and model.blocks[1].mlp, which "
         "the difference made like it, is SwiGLU: apply"),
    ],
)  # fmt: skip
def test_what_changed_in_an_old_item_is_a_conflict(
    before: Callable[[Any], None], message: str
) -> None:
    text = dump_patch((debug(), unrolled(debug())))
    cfg = debug()
    before(cfg)
    with pytest.raises(ValueError) as caught:
        apply_patch(cfg, text)
    assert str(caught.value).startswith(message)
    if isinstance(caught.value, ConfigErrors):
        assert len(caught.value.messages) == 1


@pytest.mark.parametrize("before", [theta, wide])
def test_what_all_items_share_or_hear_is_none(before: Callable[[Any], None]) -> None:
    text = dump_patch((debug(), unrolled(debug())))
    first, second = debug(), unrolled(debug())
    before(first)
    before(second)
    assert equal(apply_patch(first, text), second)


def test_what_new_items_hold_of_the_old_one_is_what_it_holds_now() -> None:
    text = dump_patch((debug(), unrolled(debug())))
    cfg = debug()
    no_rope(cfg)
    assert [one.attention.rope for one in apply_patch(cfg, text).model.blocks] == [None, None]


def test_what_the_difference_says_itself_is_none() -> None:
    text = dump_patch((debug(), unrolled(debug(), _1=0.1)))
    cfg = debug()
    drop(cfg)
    expected = unrolled(debug(), _0=0.2, _1=0.1)
    assert equal(apply_patch(cfg, text), expected)


def test_items_of_another_kind_are_no_copies() -> None:
    old, new = debug(), debug()
    old.trackers = [fdl.Config(Console)]
    new.trackers = [fdl.Config(Console), fdl.Config(JSONLines)]
    text = dump_patch((old, new))
    assert '"like"' not in text
    assert apply_patch(old, text).trackers == new.trackers


def test_each_new_item_is_like_that_of_its_turn() -> None:
    old = unrolled(debug(), _1=0.1)
    new = clone(old)
    new.model.num_layers = 4
    fiddlers.unroll(new)
    parts = json.loads(dump_patch((old, new)))["parts"]
    likes = {one["like"]["part"] for path, one in parts.items() if path.count(".") == 1}
    assert likes == {"model.blocks[0]", "model.blocks[1]"}
    now = clone(old)
    now.model.blocks[1].dropout = 0.3
    with pytest.raises(ValueError, match=r"^model.blocks\[1\].dropout is 0.3 by now, and model."):
        apply_patch(now, dump_patch((old, new)))


def test_a_patch_that_does_not_say_what_is_alike_is_applied_as_ever() -> None:
    document = json.loads(dump_patch((debug(), unrolled(debug()))))
    for part in document["parts"].values():
        part.pop("like", None)
    cfg = debug()
    drop(cfg)
    assert apply_patch(cfg, json.dumps(document)).model.blocks[0].dropout == 0.2


def test_a_merge_of_both_names_the_place_as_before() -> None:
    theirs = debug()
    drop(theirs)
    with pytest.raises(ConfigErrors, match=r"model.blocks\[0\].dropout: theirs is 0.2"):
        merge(debug(), unrolled(debug()), theirs)


@pytest.mark.parametrize("like", [5, {}, {"part": 3, "but": []}, {"part": "x", "but": None}, []])
def test_a_damaged_word_of_what_is_alike_is_a_config_error(like: Any) -> None:
    document = json.loads(dump_patch((debug(), unrolled(debug()))))
    document["parts"]["model.blocks[1]"]["like"] = like
    with pytest.raises(ValueError, match="damaged|is no path|no such place"):
        apply_patch(debug(), json.dumps(document))
