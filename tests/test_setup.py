"""setup.sh: when it does nothing, when it starts over, and its errors."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Stands in for Python: its venv copies itself, and its pip writes down what it was asked.
PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) [ "$FAKE_VERSION" = new ] ;;
    "-m pip --version") ;;
    "-m venv .venv") [ "$FAKE_VENV" = works ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install"*) echo "$@" >>pip.log; [ "$FAKE_PIP" = works ] ;;
    -c*) echo 3.11 ;;
    *) echo "fake: cannot $*"; exit 1 ;;
esac
"""


class Checkout:
    """A folder with a space in its name that holds what setup.sh reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.folder.mkdir()
        for name in ("setup.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.programs = folder / "bin"
        self.programs.mkdir()
        python = self.programs / "python3"
        python.write_text(PYTHON, encoding="utf-8")
        python.chmod(0o755)
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


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "setup.sh"])
def test_it_installs_again_after_a_change(checkout: Checkout, name: str) -> None:
    checkout.setup()
    with (checkout.folder / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    kept = checkout.folder / ".venv" / "kept"
    kept.touch()
    assert checkout.setup().returncode == 0
    assert len(checkout.installations) == 2
    assert kept.exists(), "a change needs no new environment"


def test_a_clone_that_was_moved_is_installed_again(checkout: Checkout) -> None:
    checkout.setup()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.setup()
    assert len(checkout.installations) == 2


def test_an_interrupted_installation_begins_anew(checkout: Checkout) -> None:
    failed = checkout.setup(pip="fails")
    assert failed.returncode != 0
    assert "did not finish" in failed.stderr
    leftover = checkout.folder / ".venv" / "leftover"
    leftover.touch()
    assert checkout.setup().returncode == 0
    assert not leftover.exists()
    assert len(checkout.installations) == 2


def test_an_old_python_is_refused(checkout: Checkout) -> None:
    result = checkout.setup(version="old")
    assert result.returncode != 0
    assert "fidgpt needs Python 3.11" in result.stderr
    assert not (checkout.folder / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(checkout: Checkout) -> None:
    newer = checkout.programs / "python3.12"
    shutil.move(checkout.programs / "python3", newer)
    old = checkout.programs / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    assert checkout.setup().returncode == 0


def test_a_chosen_python_is_not_replaced_by_another(checkout: Checkout) -> None:
    result = checkout.setup(python="/no/such/python")
    assert result.returncode != 0
    assert "PYTHON=/no/such/python does not run" in result.stderr


def test_a_python_without_venv_gets_an_error_with_what_to_install(checkout: Checkout) -> None:
    result = checkout.setup(venv="fails")
    assert result.returncode != 0
    assert "apt install python3-venv" in result.stderr
    assert not checkout.installations


def test_other_tools_make_the_environment_where_venv_cannot(checkout: Checkout) -> None:
    tool = checkout.programs / "virtualenv"
    tool.write_text('#!/bin/sh\nmkdir -p "$3/bin" && cp "$2" "$3/bin/python"\n', encoding="utf-8")
    tool.chmod(0o755)
    python = str(checkout.programs / "python3")
    assert checkout.setup(venv="fails", python=python).returncode == 0
    assert len(checkout.installations) == 1
