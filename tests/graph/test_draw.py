"""`draw`: every part is one box, and what is shared is drawn once."""

import os
import subprocess
import sys
from collections import Counter

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.graph import ConfigError, draw, fingerprint, outline
from fidgpt.graph.drawing import Kind, picture

from .parts import Outer, Part, Square, Wide, Width, pair, scaled
from .pictures import arrows, box, row


def test_the_tied_table_and_the_rope_of_base_are_single_boxes() -> None:
    drawn = picture(configs.base())
    counts = Counter(box.title for box in drawn.boxes)
    assert counts["token_table"] == counts["RoPE"] == counts["Corpus"] == counts["Normal"] == 1
    assert box(drawn, "token_table").is_shared and box(drawn, "RoPE").is_shared
    assert not box(drawn, "Embedding").is_shared
    into = [(tail, name) for tail, name, head in arrows(drawn) if head == "token_table"]
    assert into == [("Embedding", "weight"), ("Unembedding", "weight")]


def test_layers_of_an_unrolled_model_lead_to_one_rope() -> None:
    cfg = configs.base()
    cfg.model.num_layers = 4
    fiddlers.unroll(cfg)
    cfg.model.blocks[1].attention.num_kv_heads = 2
    drawn = picture(cfg)
    into = [tail for tail, _, head in arrows(drawn) if head == "RoPE"]
    assert into == ["Attention", "Attention"]
    blocks = [box for box in drawn.boxes if box.title == "Block"]
    assert [box.count for box in blocks] == [3, 1]
    names = [row.name for row in box(drawn, "Transformer").rows if "blocks" in row.name]
    assert names == ["blocks[0, 2-3]", "blocks[1]"]


def test_equal_items_are_one_box_only_if_they_hold_the_same() -> None:
    """Two parts that hold one are not drawn like two that hold an equal one each."""
    one, other = fdl.Config(Square, 1), fdl.Config(Square, 1)
    held = [fdl.Config(pair, one), fdl.Config(pair, other), fdl.Config(pair, one)]
    cfg = fdl.Config(Outer, child=held, other=[one, other])
    drawn = picture(cfg)
    assert [box.count for box in drawn.boxes if box.title == "pair"] == [2, 1]
    assert len([box for box in drawn.boxes if box.title == "Square"]) == 2


def test_rows_are_set_or_inherited() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, Width.new()))
    drawn = picture(cfg)
    own, inherited = row(box(drawn, "Outer"), "width"), row(box(drawn, "Part"), "width")
    assert (own.text, own.tags, own.is_inherited) == ("3", ("Width",), False)
    assert (inherited.text, inherited.tags, inherited.is_inherited) == ("3", ("Width",), True)
    assert [row.name for row in box(drawn, "Outer").rows] == ["width", "child"]


def test_a_computed_value_has_a_box_and_an_arrow_from_each_heir() -> None:
    width = Width.new(fdl.Config(scaled, number=10))
    cfg = fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new()))
    drawn = picture(cfg)
    assert box(drawn, "scaled").kind is Kind.QUANTITY
    assert arrows(drawn) == [
        ("Outer", "width", "scaled"),
        ("Outer", "child", "Part"),
        ("Part", "width", "scaled"),
    ]
    assert [arrow.is_inherited for arrow in drawn.arrows] == [False, False, True]
    assert box(drawn, "scaled").path == "width"
    set_last = fdl.Config(
        Outer, child=fdl.Config(Part, Width.new()), other=Width.new(fdl.Config(scaled, number=10))
    )
    assert box(picture(set_last), "scaled").path == "other"


def test_factories_differ_from_objects() -> None:
    inner = fdl.ArgFactory(Wide, 1, child=fdl.Config(Square))
    drawn = picture(fdl.Config(Outer, child=fdl.Partial(Part, 1, child=inner)))
    kinds = {box.title: (box.kind, box.is_shared) for box in drawn.boxes}
    assert kinds == {
        "Outer": (Kind.OBJECT, False),
        "Part": (Kind.FACTORY, False),
        "Wide": (Kind.FACTORY, False),
        "Square": (Kind.OBJECT, True),  # built once, for all calls
    }


def test_one_part_can_be_drawn_alone_with_inherited_values() -> None:
    cfg = configs.base()
    source = draw(cfg, at="model").source
    assert ">Transformer<" in source and ">Trainer<" not in source
    assert f">{cfg.vocab_size}<" in source
    with pytest.raises(ConfigError, match="hidden_dim"):
        draw(cfg, at="model.hidden_dim")
    with pytest.raises(ConfigError, match="embedding"):
        draw(cfg, at="model.embeding")


def test_what_lies_deeper_than_asked_is_only_named() -> None:
    cfg = configs.base()
    drawn = picture(cfg, depth=1)
    titles = {box.title for box in drawn.boxes}
    assert {"Trainer", "Transformer", "TokenStream"} <= titles
    assert not {"Block", "Embedding", "Corpus"} & titles
    assert row(box(drawn, "Transformer"), "embedding").text == "Embedding ..."
    assert [box.title for box in picture(cfg, depth=0).boxes] == ["Trainer"]
    assert len(picture(cfg, depth=20).boxes) == len(picture(cfg).boxes)
    assert "Embedding ..." in draw(cfg, depth=1).svg()


def test_drawing_changes_nothing() -> None:
    """Fiddle's own drawing shortens long values in the config itself."""
    cfg = configs.base()
    cfg.samples.prompts = ["a long prompt " * 40]
    old = configs.gpt2_124m()
    before = fingerprint(cfg), outline(cfg), repr(cfg)
    draw(cfg)
    draw(cfg, since=old)
    assert (fingerprint(cfg), outline(cfg), repr(cfg)) == before


def test_the_same_graph_gives_the_same_drawing_in_every_process() -> None:
    code = (
        "from fidgpt import configs; from fidgpt.graph import draw; "
        "print(draw(configs.base(), since=configs.gpt2_124m()).source)"
    )
    sources = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(sources) == 1
