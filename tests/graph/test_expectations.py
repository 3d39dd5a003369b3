"""What patches expect: of lists through which they lead, of removed nodes, and of the depth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import fiddlers, graph
from fidgpt.compose.composition import compose
from fidgpt.compose.report import own_errors
from fidgpt.configs import debug

from . import parts
from .parts import Outer, Part, Square, Wide

ALLOWED = (parts.__name__,)
Change = Callable[[Any], Any]


def of_depth(num_layers: int, *changes: Change) -> Any:
    cfg = debug()
    cfg.model.num_layers = num_layers
    for change in changes:
        change(cfg)
    return cfg


def dropout(index: int, value: float) -> Change:
    return lambda cfg: setattr(cfg.model.blocks[index], "dropout", value)


def every(length: int) -> Change:
    return lambda cfg: fiddlers.unroll(cfg, length)


def patch(old: Any, *changes: Change) -> str:
    new = graph.clone(old)
    for change in changes:
        change(new)
    return graph.dump_patch((old, new))


def refusals(cfg: Any, text: str) -> list[str]:
    with pytest.raises(graph.ConfigErrors) as caught:
        graph.apply_patch(cfg, text, allowed=ALLOWED)
    return caught.value.messages


TWO = "model.num_layers: it was 2 when the difference was taken, but is 4, and each entry of blocks"


class TestDepth:
    """Entries of a pattern that has one for each layer are of these layers."""

    def test_what_gives_each_layer_an_entry_is_for_one_depth(self) -> None:
        text = patch(of_depth(2), fiddlers.unroll, dropout(1, 0.1))
        made = graph.apply_patch(of_depth(2, lambda cfg: setattr(cfg, "seed", 5)), text)
        assert graph.equal(
            made, of_depth(2, fiddlers.unroll, dropout(1, 0.1), lambda cfg: setattr(cfg, "seed", 5))
        )
        (message,) = refusals(of_depth(4), text)
        assert message.startswith(TWO) and "take the difference again" in message

    def test_a_pattern_is_for_all_depths_beyond_its_length(self) -> None:
        changes = every(3), dropout(2, 0.1)
        text = patch(of_depth(6), *changes)
        for depth in (4, 9, 12):
            made = graph.apply_patch(of_depth(depth), text)
            assert graph.equal(made, of_depth(depth, *changes))

    @pytest.mark.parametrize("change", [fiddlers.use_gelu, fiddlers.use_compile, fiddlers.use_gqa])
    def test_what_concerns_all_layers_applies_at_any_depth(self, change: Change) -> None:
        text = patch(of_depth(2), change)
        assert graph.equal(graph.apply_patch(of_depth(4), text), of_depth(4, change))

    def test_a_merge_with_another_depth_conflicts(self) -> None:
        ours, theirs = of_depth(2, fiddlers.unroll, dropout(1, 0.1)), of_depth(4)
        for two in ((ours, theirs), (theirs, ours)):
            with pytest.raises(graph.ConfigErrors, match=r"^model.num_layers: it was 2 .* is 4"):
                graph.merge(of_depth(2), *two)

    def test_a_depth_that_a_directive_sets_after_the_patch(self, tmp_path: Path) -> None:
        (tmp_path / "a.patch").write_text(patch(of_depth(2), fiddlers.unroll, dropout(1, 0.1)))
        later = "set:model.num_layers=4"
        made = compose(["config:debug", f"patch:{tmp_path / 'a.patch'}", later])
        (error,) = own_errors(made)
        assert f"depends on model.num_layers, which {later} changes later" in error
        assert own_errors(compose(["config:debug", f"patch:{tmp_path / 'a.patch'}"])) == []
        with pytest.raises(graph.ConfigError, match="model.num_layers: it was 2 when"):
            compose(["config:debug", later, f"patch:{tmp_path / 'a.patch'}"])


def test_a_change_of_all_layers_is_none_of_one_of_them() -> None:
    text = patch(of_depth(4), dropout(0, 0.1))
    (message,) = refusals(of_depth(4, fiddlers.unroll), text)
    assert message == (
        "model.blocks: it had 1 entry when the difference was taken, but has 4 entries, so that "
        "[0] may be another: apply this difference before that change, or take it again."
    )


class TestRemoved:
    """Nodes that a patch removes must be as they were, or what was set since would be lost."""

    def test_blocks_that_became_one_again(self) -> None:
        old = of_depth(3, fiddlers.unroll, dropout(2, 0.1))
        text = patch(old, lambda cfg: cfg.model.blocks.__delitem__(slice(1, None)))
        assert len(graph.apply_patch(old, text).model.blocks) == 1
        changed = of_depth(3, fiddlers.unroll, dropout(2, 0.1), dropout(1, 0.2))
        assert refusals(changed, text) == [
            "model.blocks[1].dropout: it was not set when the difference was taken, but is 0.2: "
            "apply this difference before that change, or take it again."
        ]
        assert refusals(of_depth(4, fiddlers.unroll, dropout(2, 0.1)), text)[0].startswith(
            "model.blocks: it was ["
        )

    def test_a_node_inside_of_another(self) -> None:
        old = fdl.Config(Outer, width=1, child=fdl.Config(Part, 1, child=fdl.Config(Square, 2)))
        text = patch(old, lambda cfg: setattr(cfg, "child", None))
        near = graph.clone(old)
        near.depth = 5
        assert graph.apply_patch(near, text, allowed=ALLOWED).child is None
        near.child.child.width = 3
        assert refusals(near, text)[0].startswith("child.child.width: it was 2 when")
        near.child.child = fdl.Config(Wide, 2)
        assert refusals(near, text)[0].startswith("child.child: it was a Square when")


def test_another_call_than_the_one_that_is_replaced() -> None:
    old = fdl.Config(Outer, width=1, child=fdl.Config(Part, width=1))
    text = patch(old, lambda cfg: fdl.update_callable(cfg.child, Wide))
    assert fdl.get_callable(graph.apply_patch(old, text, allowed=ALLOWED).child) is Wide
    for child, now in ((fdl.Config(Square, width=1), "a Square"), (None, "None")):
        assert refusals(fdl.Config(Outer, width=1, child=child), text) == [
            f"child: it was a Part when the difference was taken, but is {now}."
        ]


class TestItems:
    """A position in a list means an item as long as the list shows that it is that one."""

    OLD = fdl.Config(Outer, width=1, child=[fdl.Config(Part, 1), fdl.Config(Square, 1)])

    def changed(self, *items: Any, index: int = 1) -> Any:
        text = patch(self.OLD, lambda cfg: setattr(cfg.child[index], "width", 7))
        cfg = fdl.Config(Outer, width=1, child=[fdl.Config(one, 1) for one in items])
        return graph.apply_patch(cfg, text, allowed=ALLOWED).child

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ((Part, Wide), r"child\[1\]: it was a Square when .* but is a Wide: apply"),
            ((Part, Square, Square), "child: it had 2 entries when .* but has 3 entries, so that"),
            ((Part,), r"child\[1\].width: there is no such path"),
        ],
    )
    def test_others_are_refused(self, items: Any, message: str) -> None:
        with pytest.raises(graph.ConfigErrors, match=f"^{message}"):
            self.changed(*items)

    def test_plain_items_too(self) -> None:
        old = fdl.Config(Outer, child=["a", "b"])
        text = patch(old, lambda cfg: cfg.child.__setitem__(0, "c"))
        twice = fdl.Config(Outer, child=["a", "b", "a"])
        assert refusals(twice, text)[0].startswith("child: it had 2 entries when")
