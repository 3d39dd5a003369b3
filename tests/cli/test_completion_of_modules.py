"""Modules that nobody declared are completed by dotted name, and never imported for it."""

from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli.completion import candidates, folder_of_script
from fidgpt.cli.shells import read_line

Index = dict[str, Any]


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "openlab" / "ablations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "__init__.py").touch()
    (folder / "widths.py").write_text(
        "import fiddle as fdl\n"
        "class Heat(fdl.Tag):\n    'How hot it is.'\n"
        "class Mixer:\n    def __init__(self, *, hidden_dim: int, hot=1): ...\n"
        "def narrow(width: int = 3) -> fdl.Config:\n    'Narrow.'\n"
        "def paint(cfg, colour) -> None:\n    'Paints.'\n"
        "def _hidden(): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--config=config:openlab.ab", ["config:openlab.ablations."]),
        ("--config=config:openlab.ablations.", ["config:openlab.ablations.widths."]),
        ("--config=config:openlab.ablations.widths.n", ["config:openlab.ablations.widths.narrow ",
         "config:openlab.ablations.widths.narrow("]),
        ("--config='config:openlab.ablations.widths.narrow(w",
         ["config:openlab.ablations.widths.narrow(width="]),
        ("--config=fiddler:openlab.ablations.widths.",
         ["fiddler:openlab.ablations.widths.paint("]),
        ("--config=tag:openlab.ablations.widths.H", ["tag:openlab.ablations.widths.Heat="]),
        ("--config='use:model.norm=openlab.ablations.widths.Mixer(h",
         ["use:model.norm=openlab.ablations.widths.Mixer(hidden_dim=",
          "use:model.norm=openlab.ablations.widths.Mixer(hot="]),
        ("--config=config:openlabb.", []),
        ("--config=config:openlab.none.x", []),
        ("--config=config:.", []),
    ],
)  # fmt: skip
def test_completed_by_dotted_name(kept_index: Index, words: str, expected: list[str]) -> None:
    found = candidates(read_line(f"fidgpt-train {words}"), kept_index)
    assert [one.text + (" " if one.is_whole else "") for one in found] == [
        f"--config={one}" for one in expected
    ]


def test_where_the_script_lies(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert folder_of_script(["python", str(script), "--list"]) == [str(tmp_path)]
    assert folder_of_script(["fidgpt-train"]) == []
