"""Stubs for editors: that they are current, and those of a project."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import fiddle as fdl
import pytest
from forked import Python

from fidgpt import configs, graph, stubs, train
from fidgpt.graph import ConfigError

LAB = '''\
"""Configs of a project, with a component of its own."""

import fiddle as fdl
from torch import nn

from fidgpt import configs

HELPER = 3


class Scale(nn.Module):
    """A component."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size = size


def double(number: int) -> int:
    """Not a config."""
    return 2 * number


def needs(width: int) -> fdl.Config:
    """A config that cannot be made without arguments."""
    return narrow(width)


def narrow(width: int = 16) -> fdl.Config:
    """A config."""
    cfg = configs.debug()
    cfg.model.hidden_dim = width
    cfg.model.norm = fdl.Config(Scale)
    return cfg
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of a project, as `lab.ablations`."""
    file = tmp_path / "lab/ablations.py"
    file.parent.mkdir()
    file.write_text(LAB)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]


@pytest.mark.slow
def test_own_stub_is_current(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    # In a process of its own: tests replace what is annotated by what checks it.
    flags = [] if request.config.getoption("--update-goldens") else ["--check"]
    process = Python("-m", "fidgpt.stubs", *flags, output=tmp_path / "output")
    assert process.end(seconds=120) == 0, process.output


def test_the_stub_of_a_project_is_written_and_compared(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = lab.with_suffix(".pyi")
    assert stubs.main(["lab.ablations", "--check"]) == 1 and not stub.exists()
    assert "is missing or not current.\nWrite it with: python -m fidgpt.stubs lab.ablations" in (
        capsys.readouterr().err
    )
    assert stubs.main(["lab.ablations"]) == 0
    assert stubs.main(["lab.ablations", "--check"]) == 0
    text = stub.read_text()
    assert "def double(number: int) -> int:" in text and "class Scale(nn.Module):" in text
    assert "def needs(width: int) -> fdl.Config:" in text
    assert re.search(r"def narrow\(width: int=16\) -> _TrainerConfig\d+:", text)
    stub.write_text(text + "# more\n")
    assert stubs.main(["--check", "lab.ablations"]) == 1


def test_what_a_named_config_builds_has_its_type_for_a_checker() -> None:
    assert_type(graph.build(configs.debug()), train.Trainer)
    with pytest.raises(ConfigError, match="no-such-directory"):
        assert_type(configs.from_hf("no-such-directory"), fdl.Config[train.Trainer])
