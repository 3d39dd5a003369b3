"""setup.sh: when it does nothing, when it starts over, and its errors."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

# Stands in for Python: its venv copies itself, and its pip writes down what it was asked.
PYTHON = """\
case "$*" in
    *version_info*) [ "$FAKE_VERSION" = new ] ;;
    "-m pip --version") ;;
    "-m venv .venv") [ "$FAKE_VENV" = works ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install"*) echo "$@" >>pip.log; [ "$FAKE_PIP" = works ] ;;
    -c*) echo 3.11 ;;
    *) echo "fake: cannot $*"; exit 1 ;;
esac
"""


def write_program(path: Path, text: str) -> None:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


class Checkout:
    """A folder with a space in its name that holds what setup.sh reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.folder.mkdir()
        for name in ("setup.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.programs = folder / "bin"
        self.programs.mkdir()
        write_program(self.programs / "python3", PYTHON)
        # The PATH holds these alone: no python3.12, uv or virtualenv of this machine.
        for tool in ("cat", "cksum", "cp", "dirname", "env", "flock", "mkdir", "rm", "sh", "tail"):
            if path := shutil.which(tool):
                (self.programs / tool).symlink_to(path)

    def setup(
        self, *, version: str = "new", venv: str = "works", pip: str = "works", python: str = ""
    ) -> subprocess.CompletedProcess[str]:
        fakes = {"FAKE_VERSION": version, "FAKE_VENV": venv, "FAKE_PIP": pip, "PYTHON": python}
        return subprocess.run(
            ["sh", str(self.folder / "setup.sh")],
            env={"PATH": str(self.programs), "HOME": os.devnull, **fakes},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def installations(self) -> list[str]:
        log = self.folder / "pip.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_it_installs_once(checkout: Checkout) -> None:
    first, second = checkout.setup(), checkout.setup()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert checkout.installations == ["-m pip install -c constraints.txt -e .[dev]"]
    assert (second.stdout, second.stderr) == ("", "")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "setup.sh", "a move"])
def test_it_installs_again_after_a_change(checkout: Checkout, name: str) -> None:
    checkout.setup()
    kept = checkout.folder / ".venv" / "kept"
    kept.touch()
    if name == "a move":
        checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    else:
        with (checkout.folder / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
    assert checkout.setup().returncode == 0
    assert len(checkout.installations) == 2
    assert kept.exists() or name == "a move", "a change needs no new environment"


def test_an_interrupted_installation_starts_over(checkout: Checkout) -> None:
    failed = checkout.setup(pip="fails")
    assert failed.returncode != 0 and "The installation failed" in failed.stderr
    leftover = checkout.folder / ".venv" / "leftover"
    leftover.touch()
    assert checkout.setup().returncode == 0
    assert not leftover.exists()
    assert len(checkout.installations) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "old"}, "fidgpt needs Python 3.11"),
        ({"venv": "fails"}, "apt install python3-venv"),
        ({"python": "/no/such/python"}, "PYTHON=/no/such/python does not run"),
    ],
)
def test_a_python_that_does_not_serve_is_refused(
    checkout: Checkout, settings: dict[str, str], message: str
) -> None:
    result = checkout.setup(**settings)
    assert result.returncode != 0 and message in result.stderr
    assert not checkout.installations and not (checkout.folder / ".venv").exists()
