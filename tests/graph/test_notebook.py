"""In a notebook a config shows itself; elsewhere nothing happens."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest
from IPython.core.interactiveshell import InteractiveShell

from fidgpt.configs import debug
from fidgpt.graph.notebook import picture, show_configs
from fidgpt.tags import HiddenDim

from .parts import Part


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of another one that is active, IPython warns
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_without_a_notebook_nothing_happens() -> None:
    assert show_configs() is False


def test_a_config_is_drawn_where_a_cell_shows_it(notebook: Any) -> None:
    assert show_configs() is True
    shown, _ = notebook.display_formatter.format(debug())
    assert "Transformer" in shown["image/svg+xml"]
    assert "RoPE ..." in shown["image/svg+xml"]  # what lies deeper is only named


def test_what_cannot_be_drawn_is_left_to_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture(fdl.Config(Part, HiddenDim.new())) is None
