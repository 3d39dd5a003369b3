"""`draw` with `since`: what differs stands out, and what is gone is drawn too."""

import fiddle as fdl

from fidgpt import configs, fiddlers
from fidgpt.graph import clone
from fidgpt.graph.drawing import Mark, picture

from .parts import Depth, Outer, Part, Square, Wide, Width, holding, pair
from .pictures import arrows, box, marks, row


def test_a_changed_value_is_marked_and_its_heirs_follow() -> None:
    old = fdl.Config(Outer, width=Width.new(3), depth=1, child=fdl.Config(Part, Width.new()))
    new = clone(old)
    new.width = 4
    drawn = picture(new, since=old)
    own, inherited = row(box(drawn, "Outer"), "width"), row(box(drawn, "Part"), "width")
    assert (own.was, own.text, own.mark) == ("3", "4", Mark.CHANGED)
    assert (inherited.was, inherited.text, inherited.mark) == ("3", "4", Mark.FOLLOWED)
    assert row(box(drawn, "Outer"), "depth").mark is Mark.SAME
    assert not box(drawn, "Outer").is_dim and box(drawn, "Part").is_dim


def test_parts_that_came_and_went_are_both_drawn() -> None:
    old = configs.base()
    new = clone(old)
    fiddlers.use_learned_positions(new)
    drawn = picture(new, since=old)
    assert marks(drawn)["LearnedPositions"] == {Mark.ADDED}
    assert marks(drawn)["RoPE"] == {Mark.REMOVED}
    assert marks(drawn)["Normal"] == {Mark.SAME}
    assert ("Attention", "rope", "RoPE") in arrows(drawn)
    assert ("RoPE", "head_dim", "Attention") not in arrows(drawn)
    assert row(box(drawn, "Attention"), "rope").text == "None"


def test_what_a_part_held_that_is_gone_is_drawn_only_if_it_went_too() -> None:
    kept, lost = fdl.Config(Square), fdl.Config(Wide, 1)
    old = fdl.Config(Outer, child=fdl.Config(pair, kept, lost), other=kept)
    new = fdl.Config(Outer, other=kept)
    drawn = picture(new, since=old)
    assert marks(drawn) == {
        "Outer": {Mark.SAME},
        "Square": {Mark.SAME},
        "pair": {Mark.REMOVED},
        "Wide": {Mark.REMOVED},
    }
    assert [head for tail, _, head in arrows(drawn) if tail == "pair"] == ["Wide"]


def test_a_part_that_calls_something_else_shows_what_it_called() -> None:
    old = configs.base()
    new = clone(old)
    fiddlers.use_gelu(new)
    drawn = picture(new, since=old)
    gelu = box(drawn, "GELU")
    assert (gelu.old_title, gelu.mark) == ("SwiGLU", Mark.CHANGED)
    assert "SwiGLU" not in marks(drawn)


def test_untying_draws_the_old_arrow_and_a_new_table() -> None:
    old = configs.base()
    new = clone(old)
    fiddlers.untie_embeddings(new)
    drawn = picture(new, since=old)
    assert marks(drawn)["token_table"] == {Mark.SAME, Mark.ADDED}
    (tail,) = [i for i, box in enumerate(drawn.boxes) if box.title == "Unembedding"]
    leads = [arrow for arrow in drawn.arrows if arrow.tail == tail]
    assert [(drawn.boxes[a.head].mark, a.mark) for a in leads] == [
        (Mark.ADDED, Mark.ADDED),
        (Mark.SAME, Mark.REMOVED),
    ]
    assert marks(picture(old, since=new))["token_table"] == {Mark.SAME, Mark.REMOVED}


def test_items_that_came_and_went_are_marked() -> None:
    old = fdl.Config(holding, [fdl.Config(Square), 5, fdl.Config(Wide, 1)])
    new = fdl.Config(holding, [fdl.Config(Wide, 1), fdl.Config(pair, 1)])
    drawn = picture(new, since=old)
    assert marks(drawn)["Square"] == {Mark.REMOVED} and marks(drawn)["pair"] == {Mark.ADDED}
    assert ("holding", "items[0]", "Square") in arrows(drawn)
    gone = [row for row in drawn.boxes[0].rows if row.mark is Mark.REMOVED]
    assert [(row.name, row.was) for row in gone] == [("items[0]", ""), ("items[1]", "5")]


def test_lost_tags_are_shown() -> None:
    old = fdl.Config(Outer, width=Width.new(3))
    new = fdl.Config(Outer, width=Depth.new(3))
    changed = row(box(picture(new, since=old), "Outer"), "width")
    assert (changed.tags, changed.lost_tags, changed.mark) == (("Depth",), ("Width",), Mark.CHANGED)


def test_equal_items_are_one_box_only_if_the_same_became_of_them() -> None:
    old = fdl.Config(holding, [fdl.Config(Wide, 1), fdl.Config(Wide, 2), fdl.Config(Wide, 2)])
    new = fdl.Config(holding, [fdl.Config(Wide, 2), fdl.Config(Wide, 2), fdl.Config(Wide, 2)])
    found = [box for box in picture(new, since=old).boxes if box.title == "Wide"]
    assert [(box.count, box.rows[0].was) for box in found] == [(1, "1"), (2, "")]
