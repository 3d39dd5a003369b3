"""Goldens of a project of its own: written, compared, and what a difference shows."""

import importlib
import sys
from pathlib import Path

import pytest

from fidgpt import goldens, stubs

LAB = '''
import fiddle as fdl

from fidgpt import configs
from fidgpt.model import GELU


def narrow(width: int = 16) -> fdl.Config:
    """A config."""
    cfg = configs.debug()
    cfg.model.hidden_dim = width
    return cfg


def part() -> fdl.Config:
    """Not a whole run."""
    return fdl.Config(GELU, hidden_dim=4)


def needs(width: int) -> fdl.Config:
    """A config that cannot be made without arguments."""
    return narrow(width)


def bare():
    return narrow()
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module `goldlab.configs` of a project; returns its file."""
    file = tmp_path / "goldlab/configs.py"
    file.parent.mkdir()
    file.write_text(LAB)
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch)
    return file


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("goldlab", "goldlab.configs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


def test_goldens_are_written_and_compared(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lab.parent / "goldens/configs"
    assert goldens.main(["goldlab", "--check"]) == 1
    assert f"{folder}/narrow.txt is missing." in capsys.readouterr().err
    assert goldens.main(["goldlab"]) == 0
    assert stubs.main(["goldlab"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["narrow.txt", "part.txt"]
    lines = (folder / "narrow.txt").read_text().splitlines()
    assert "model.hidden_dim = 16" in lines
    assert "model.norm.hidden_dim <- model.hidden_dim" in lines
    assert "optimizer.eps = 1e-08  (default)" in lines
    assert any(line.startswith("matrices: embedding.weight [257, 16] Normal(") for line in lines)
    goldens.check("goldlab")
    assert goldens.main(["goldlab", "--check"]) == 0

    lab.write_text(LAB.replace("int = 16", "int = 160").replace("part(", "other("))
    forget(monkeypatch)
    with pytest.raises(AssertionError) as raised:
        goldens.check("goldlab")
    text = str(raised.value)
    assert "\n-model.hidden_dim = 16\n+model.hidden_dim = 160\n" in text
    assert f"model.hidden_dim: set by {lab}:11 in narrow" in text
    assert f"{folder}/part.txt is the golden of no config." in text
    assert text.endswith("Accept them: python -m fidgpt.goldens goldlab")
    assert goldens.main(["goldlab"]) == 0
    goldens.check("goldlab")
    assert not (folder / "part.txt").exists()


def test_a_config_that_cannot_be_built_is_named(lab: Path) -> None:
    lab.write_text(LAB.replace("hidden_dim = width", "num_layers = -1"))
    with pytest.raises(ValueError, match=r"^narrow: model.*num_layers=-1"):
        goldens.main(["goldlab"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["goldlab.gone"], "goldlab.gone cannot be imported for its configs: ModuleNotFound"),
        (["json"], "json has no config function"),
        ([], "name a module with configs: python -m fidgpt.goldens lab.ablations"),
    ],
)
@pytest.mark.usefixtures("lab")
def test_a_module_without_configs(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        goldens.main(names)
