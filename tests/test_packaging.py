"""The sdist and the wheel: what they hold, and that a run from the installed wheel trains."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ["configs/__init__.py", "configs/small.py", "fiddlers/__init__.py", "tags.py"]
PAGE = ["graph/page/page.html", "graph/page/tree.js", "graph/page/dagre.LICENSE.txt"]
HELD = [*LINKED, "__init__.py", "py.typed", "model/transformer.py", "cli/train.py", *PAGE]
pytestmark = pytest.mark.xdist_group("packaging")  # one worker builds, once
NOT_CHECKOUT = (".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a program that must succeed, without the variables that steer Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout and nothing old gets in."""
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_CHECKOUT))
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder)
    run(*build, cwd=copy)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist alone."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder)
    run(*build, cwd=source)
    (archive,) = folder.glob("*.whl")
    return archive


def test_sdist_holds_the_linked_files_themselves(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
    for name in HELD:
        assert members[f"src/fidgpt/{name}"].isreg(), name
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        assert members[name].isreg(), name


def test_wheel_holds_the_linked_files_themselves(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name in LINKED:
            content = archive.read(f"fidgpt/{name}")
            assert content == (ROOT / name).read_bytes(), name
    assert not {f"fidgpt/{name}" for name in HELD} - set(names)
    outside = {name.partition("/")[0] for name in names} - {"fidgpt"}
    assert [name for name in outside if not name.endswith(".dist-info")] == []


def test_the_installed_wheel_trains(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).strip()
    )
    # The packages of this environment, so that torch need not be installed twice; a path in a
    # .pth file comes after the environment's own packages, and its .pth files are not read.
    (site / "parent.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps")
    run(*pip, "--ignore-installed", wheel, cwd=tmp_path)

    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    where = (
        "import fidgpt.tags, fidgpt.configs as c; print(fidgpt.tags.__file__, c.__file__, sep='|')"
    )
    for name in run(python, "-c", where, cwd=elsewhere).strip().split("|"):
        assert Path(name).is_relative_to(site), f"{name} is not from the wheel"
    command = environment / "bin" / "fidgpt-train"
    run(command, "--config=config:debug", "--config=set:num_steps=2", cwd=elsewhere)
    (metrics,) = elsewhere.rglob("metrics.jsonl")
    assert len(metrics.read_text(encoding="utf-8").splitlines()) >= 2
