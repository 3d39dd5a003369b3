"""`draw`: every node is one box, and programs lay it out as SVG."""

import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fiddle as fdl
import pytest
from IPython.core.interactiveshell import InteractiveShell

from fidgpt import configs, fiddlers, graph, tags
from fidgpt.graph.drawing import Box, Row, picture, show_configs, svg_of

from .parts import Outer, Part, Square, Wide, Width, keywords, pair, scaled

SVG = "{http://www.w3.org/2000/svg}"
has_program = pytest.mark.skipif(
    "image/svg+xml" not in graph.draw(fdl.Config(Square))._repr_mimebundle_(),
    reason="neither dot nor graphviz-pure is installed",
)


def box(drawn: list[Box], title: str) -> Box:
    (found,) = [one for one in drawn if one.title == title]
    return found


def row(drawn: list[Box], title: str, name: str) -> Row:
    (found,) = [one for one in box(drawn, title).rows if one.name == name]
    return found


def arrows(drawn: list[Box]) -> list[tuple[str, str, str]]:
    """Return from which box, by which row, to which box."""
    lines = [(box, row) for box in drawn for row in box.rows]
    return [(box.title, row.name, graph.title(to.part)) for box, row in lines for to in row.arrows]


def test_shared_nodes_are_single_boxes() -> None:
    drawn = picture(configs.base())
    counts = Counter(one.title for one in drawn)
    assert counts["token_table"] == counts["RoPE"] == counts["Corpus"] == counts["Normal"] == 1
    assert box(drawn, "token_table").is_shared and box(drawn, "RoPE").is_shared
    assert not box(drawn, "Embedding").is_shared
    into = [(tail, name) for tail, name, head in arrows(drawn) if head == "token_table"]
    assert into == [("Embedding", "weight"), ("Unembedding", "weight")]


def test_equal_items_are_one_box_if_they_hold_the_same() -> None:
    cfg = configs.base()
    cfg.model.num_layers = 4
    fiddlers.unroll(cfg)
    cfg.model.blocks[1].attention.num_kv_heads = 2
    drawn = picture(cfg)
    assert [tail for tail, _, head in arrows(drawn) if head == "RoPE"] == ["Attention"] * 2
    assert [one.count for one in drawn if one.title == "Block"] == [3, 1]
    names = [one.name for one in box(drawn, "Transformer").rows if "blocks" in one.name]
    assert names == ["blocks[0, 2-3]", "blocks[1]"]
    one, other = fdl.Config(Square, 1), fdl.Config(Square, 1)
    held = [fdl.Config(pair, one), fdl.Config(pair, other), fdl.Config(pair, one)]
    drawn = picture(fdl.Config(Outer, child=held, other=[one, other]))
    assert [found.count for found in drawn if found.title == "pair"] == [2, 1]
    assert len([found for found in drawn if found.title == "Square"]) == 2


def test_rows_are_set_or_inherited_and_a_computed_value_has_an_arrow_from_each() -> None:
    for width, text in ((Width.new(3), "3"), (Width.new(fdl.Config(scaled, number=10)), "")):
        drawn = picture(fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new())))
        rows = [row(drawn, "Outer", "width"), row(drawn, "Part", "width")]
        assert [(one.text, one.tags) for one in rows] == [(text, ("Width",))] * 2
        assert [one.is_inherited for one in rows] == [False, True]
        assert [one.name for one in box(drawn, "Outer").rows] == ["width", "child"]
    assert box(drawn, "scaled").kind == "quantity"
    into = [("Outer", "width", "scaled"), ("Outer", "child", "Part"), ("Part", "width", "scaled")]
    assert arrows(drawn) == into
    found = [to.is_inherited for box in drawn for row in box.rows for to in row.arrows]
    assert found == [False, False, True]
    set_last = fdl.Config(Outer, child=fdl.Config(Part, Width.new()), other=width)
    assert box(picture(set_last), "scaled").path == "other"


def test_factories_differ_from_objects() -> None:
    inner = fdl.ArgFactory(Wide, 1, child=fdl.Config(Square))
    drawn = picture(fdl.Config(Outer, child=fdl.Partial(Part, 1, child=inner)))
    assert {one.title: (one.kind, one.is_shared) for one in drawn} == {
        "Outer": ("object", False),
        "Part": ("factory", False),
        "Wide": ("factory", False),
        "Square": ("object", True),  # built once, for all calls
    }


def test_a_node_can_be_drawn_alone_and_to_a_depth() -> None:
    cfg = configs.base()
    source = graph.draw(cfg, at="model").source
    assert ">Transformer<" in source and ">Trainer<" not in source
    assert f">{cfg.vocab_size}<" in source
    for path, message in (("model.hidden_dim", "hidden_dim"), ("model.embeding", "embedding")):
        with pytest.raises(graph.ConfigError, match=message):
            graph.draw(cfg, at=path)
    drawn = picture(cfg, depth=1)
    titles = {one.title for one in drawn} & {"Trainer", "Transformer", "Block", "Corpus"}
    assert titles == {"Trainer", "Transformer"}
    assert row(drawn, "Transformer", "embedding").text == "Embedding ..."
    assert [one.title for one in picture(cfg, depth=0)] == ["Trainer"]
    assert len(picture(cfg, depth=20)) == len(picture(cfg))


def test_drawing_changes_nothing() -> None:
    """Fiddle's own drawing shortens long values in the config itself."""
    cfg = configs.base()
    cfg.samples.prompts = ["a long prompt " * 40]
    before = graph.fingerprint(cfg), graph.outline(cfg), repr(cfg)
    graph.draw(cfg)
    assert (graph.fingerprint(cfg), graph.outline(cfg), repr(cfg)) == before


def test_a_shared_node_names_the_holders_without_an_arrow() -> None:
    drawn = picture(configs.base(), at="model")
    assert box(drawn, "RoPE").holders == "one for all calls of Block"
    assert box(drawn, "token_table").holders == ""  # both have an arrow
    alone = picture(configs.base(), at="model.embedding")
    assert box(alone, "token_table").holders == "also held by model.unembedding"
    cfg = configs.gemma3_270m()
    local = next(one for one in picture(cfg) if one.title == "RoPE")
    assert local.holders.startswith("also held by model.blocks[1].attention, ")
    assert "and 2 more" in local.holders and local.holders in graph.draw(cfg).source


def chip(source: str, tag: str) -> str:
    """Return the color of a tag where it is set."""
    (color,) = set(re.findall(rf'bgcolor="(#\w+)" style="rounded"><font [^>]*>{tag}<', source))
    return color


def test_a_tag_has_one_color_in_all_drawings() -> None:
    cfg = configs.debug()
    model, block = graph.draw(cfg, at="model"), graph.draw(cfg, at="model.blocks[0].attention")
    assert chip(model.source, "HeadDim") == chip(block.source, "HeadDim")
    colors = {
        tag: chip(model.source, tag) for tag in ("HiddenDim", "NumLayers", "HeadDim", "Theta")
    }
    assert len({*colors.values()}) == 4
    assert graph.draw(cfg, at="model").source == model.source


def key_of(drawing: graph.Drawing) -> str:
    """Return the words of the legend."""
    (label,) = re.findall(r"label=<(.*)> labeljust", drawing.source)
    return re.sub(r"<[^>]*>", " ", label)


def test_the_legend_has_every_kind_of_arrow_that_is_drawn() -> None:
    cfg = configs.debug()
    words = " ".join(key_of(graph.draw(cfg)).split())
    assert words == (
        "→ holds → one object, shared - - a factory, called later → a computed number ← inherited"
    )
    width = Width.new(fdl.Config(scaled, number=10))
    inheriting = fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new()))
    words = " ".join(key_of(graph.draw(inheriting)).split())
    assert words == "→ holds → a computed number ← inherited ⇢ inherited component"


def test_floats_are_short() -> None:
    for number, text in ((1 / 3, "≈0.33333"), (1.23456789e-7, "≈1.2346e-07"), (0.3333, "0.3333")):
        assert f">{text}<" in graph.draw(fdl.Config(scaled, number=1, ratio=number)).source


def texts(svg: str) -> list[str | None]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@has_program
def test_text_is_drawn_as_it_is() -> None:
    odd = ["</td></tr>", "&amp;", '"quoted" \\n \\N', "a\nb\tc\0d", "'", "\udc80", "⇒ é 漢"]
    cfg = fdl.Config(Outer, child=odd, other={text: fdl.Config(Square, text) for text in odd})
    cfg.width, cfg.depth = fdl.Config(lambda width: width, 1), fdl.Config(keywords, **{"a\x01b": 1})
    drawn = texts(graph.draw(cfg).svg())
    assert {"<lambda>", "a�b"} <= {text and text.rpartition(".")[2] for text in drawn}
    for text in odd:
        assert {repr(text), f"other[{text!r}]"} <= set(drawn)


@pytest.mark.slow
@has_program
def test_configs_are_drawn() -> None:
    for name in ("debug", "deepseek_v3", "gemma3_12b"):
        cfg = getattr(configs, name)()
        drawn = texts(graph.draw(cfg).svg())
        tables = 1 if cfg.model.unembedding.weight is cfg.model.embedding.weight else 2
        assert drawn.count("Trainer") == 1 and drawn.count("token_table") == tables


@has_program
def test_the_format_follows_the_name_of_the_file(tmp_path: Path) -> None:
    drawing = graph.draw(fdl.Config(Square))
    assert drawing.save(tmp_path / "a.svg").read_text().startswith("<?xml")
    assert drawing.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert drawing.save(str(tmp_path / "a.dot")).read_text() == drawing.source
    with pytest.raises(RuntimeError, match="as nosuch"):
        drawing.save(tmp_path / "a.nosuch")
    assert not (tmp_path / "a.nosuch").exists()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the only folder in which programs are found; it is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("programs")
def test_without_a_program_a_notebook_shows_the_text() -> None:
    cfg = configs.base()
    assert graph.draw(cfg)._repr_mimebundle_() == {"text/plain": graph.outline(cfg)}
    with pytest.raises(RuntimeError, match="pip install graphviz-pure"):
        graph.draw(cfg).svg()


def test_a_program_that_fails_is_followed_by_another(programs: Path) -> None:
    scripts = {"dot": "echo broken >&2; exit 1", "graphviz-pure": "echo '<svg/>'"}
    for name, script in scripts.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert graph.Drawing("digraph {}", "words").svg() == "<svg/>\n"
    (programs / "graphviz-pure").unlink()
    with pytest.raises(RuntimeError, match="broken"):
        graph.Drawing("digraph {}", "words").svg()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another one that is active
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@has_program
def test_a_config_is_drawn_where_a_cell_shows_it(notebook: Any) -> None:
    assert show_configs() is True
    shown, _ = notebook.display_formatter.format(configs.debug())
    assert "Transformer" in shown["image/svg+xml"]
    assert "RoPE ..." in shown["image/svg+xml"]  # deeper nodes are only named
    assert svg_of(fdl.Config(Part, tags.HiddenDim.new())) is None
