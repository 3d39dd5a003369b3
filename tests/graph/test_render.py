"""Drawings as SVG, in files and in notebooks, with a program that lays them out and without."""

import stat
import sysconfig
from pathlib import Path
from xml.etree import ElementTree

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.graph import Drawing, clone, draw, outline

from .parts import Outer, Square, keywords

SVG = "{http://www.w3.org/2000/svg}"
has_program = pytest.mark.skipif(
    "image/svg+xml" not in draw(fdl.Config(Square))._repr_mimebundle_(),
    reason="neither dot nor graphviz-pure is installed",
)


@has_program
@pytest.mark.parametrize(
    "text",
    [
        "</td></tr>",
        "&amp;",
        '"quoted" \\n \\N',
        "a\nb\tc\0d",
        "<b>bold</b>",
        "'",
        "\udc80",
        "⇒ é 漢",
    ],
)
def test_text_is_drawn_as_it_is(text: str) -> None:
    by_key = {text: fdl.Config(Square), "leaf": text}
    cfg = fdl.Config(Outer, child=text, other=by_key)
    svg = draw(cfg).svg()
    drawn = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert repr(text) in drawn
    assert f"other[{text!r}]" in drawn


@has_program
def test_names_that_are_no_identifiers_are_drawn_too() -> None:
    svg = draw(fdl.Config(lambda width: width, width=1)).svg()
    assert "&lt;lambda&gt;" in svg
    assert ">a�b<" in draw(fdl.Config(keywords, **{"a\x01b": 1})).svg()


@has_program
@pytest.mark.parametrize("name", configs.__all__)
def test_every_config_can_be_drawn(name: str) -> None:
    cfg = getattr(configs, name)()
    svg = draw(cfg, since=configs.base()).svg()
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    titles = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    tables = 1 if cfg.model.unembedding.weight is cfg.model.embedding.weight else 2
    assert titles.count("Trainer") == 1 and titles.count("token_table") == tables


@has_program
def test_a_drawing_is_saved_in_the_format_that_its_name_says(tmp_path: Path) -> None:
    drawing = draw(fdl.Config(Square))
    assert drawing.save(tmp_path / "a.svg").read_text().startswith("<?xml")
    assert drawing.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert drawing.save(str(tmp_path / "a.dot")).read_text() == drawing.source
    with pytest.raises(RuntimeError, match="as nosuch"):
        drawing.save(tmp_path / "a.nosuch")
    assert not (tmp_path / "a.nosuch").exists()


def without_programs(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(path))


def test_without_a_program_a_notebook_shows_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_programs(monkeypatch, tmp_path)
    old = configs.base()
    new = clone(old)
    fiddlers.make_large(new)
    assert draw(old)._repr_mimebundle_() == {"text/plain": outline(old)}
    assert draw(new, since=old)._repr_mimebundle_() == {
        "text/plain": str(draw(new, since=old)),
    }
    assert "-> 1280, inherited by" in str(draw(new, since=old))
    with pytest.raises(RuntimeError, match="pip install graphviz-pure"):
        draw(old).svg()


def test_a_program_that_fails_is_not_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_programs(monkeypatch, tmp_path)
    for name, script in {
        "dot": "echo broken >&2; exit 1",
        "graphviz-pure": "echo '<svg/>'",
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert Drawing("digraph {}", "words").svg() == "<svg/>\n"
    (tmp_path / "graphviz-pure").unlink()
    with pytest.raises(RuntimeError, match="broken"):
        Drawing("digraph {}", "words").svg()
