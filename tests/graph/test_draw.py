"""`draw`: Fiddle draws every node as one box, and programs lay it out as SVG."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fiddle as fdl
import pytest
from IPython.core.interactiveshell import InteractiveShell

from fidgpt import configs, graph, tags
from fidgpt.graph import ConfigError
from fidgpt.graph.drawing import show_configs, svg_of

from .parts import Outer, Part, Square, keywords

SVG = "{http://www.w3.org/2000/svg}"
has_program = pytest.mark.skipif(
    "image/svg+xml" not in graph.draw(fdl.Config(Square))._repr_mimebundle_(),
    reason="neither dot nor graphviz-pure is installed",
)


def texts(svg: str) -> list[str]:
    """Return the texts of a drawing; Fiddle separates those of a title by a space."""
    shown = (element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text"))
    return [text.strip() for text in shown]


def test_drawing_changes_nothing() -> None:
    """Fiddle's own drawing shortens long values in the config itself."""
    cfg = configs.base()
    cfg.samples.prompts = ["a long prompt " * 40]
    before = graph.fingerprint(cfg), graph.outline(cfg), repr(cfg)
    graph.draw(cfg)
    assert (graph.fingerprint(cfg), graph.outline(cfg), repr(cfg)) == before


def test_a_part_of_a_graph_is_drawn_to_a_depth() -> None:
    cfg = configs.base()
    source = graph.draw(cfg, at="model").source
    assert "Attention" in source and "Trainer" not in source
    for path in ("seed", "model.blocks"):
        with pytest.raises(ConfigError, match="is not a component to draw"):
            graph.draw(cfg, at=path)
    assert "Transformer" in graph.draw(cfg, depth=1).source
    assert "RMSNorm" not in graph.draw(cfg, depth=1).source


@has_program
def test_text_is_drawn_as_it_is() -> None:
    odd = ["</td></tr>", "&amp;", '"quoted" \\n \\N', "a\nb\tc\0d", "'", "\udc80", "⇒ é 漢"]
    cfg = fdl.Config(Outer, child=odd, other={text: fdl.Config(Square, text) for text in odd})
    cfg.width, cfg.depth = fdl.Config(lambda width: width, 1), fdl.Config(keywords, **{"a\x01b": 1})
    drawn = texts(graph.draw(cfg).svg())
    assert "a�b" in drawn and repr(odd[0]) in drawn and repr(odd[-1]) in drawn


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
    assert "RoPE" not in shown["image/svg+xml"]  # which is deeper
    assert svg_of(fdl.Config(Part, tags.HiddenDim.new())) is None
