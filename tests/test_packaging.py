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
HELD = [*LINKED, "__init__.py", "py.typed", "train/estimates/plan_page.html", "cli/train.py", *PAGE]
# One worker builds, once.
pytestmark = [pytest.mark.slow(10), pytest.mark.xdist_group("packaging")]
NOT_CHECKOUT = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")


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
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, built from a copy so that nothing is left here, and the wheel from that alone."""
    folder = tmp_path_factory.mktemp("archives")
    ignored = shutil.ignore_patterns(*NOT_CHECKOUT)
    source = folder / "checkout"
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    shutil.rmtree(source / "runs", ignore_errors=True)
    found = []
    for kind, pattern in (("--sdist", "*.tar.gz"), ("--wheel", "*.whl")):
        out = folder / kind
        run(*(sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", out), cwd=source)
        found += out.glob(pattern)
        if kind == "--sdist":
            with tarfile.open(found[0]) as archive:
                archive.extractall(folder / "unpacked", filter="data")
            (source,) = (folder / "unpacked").iterdir()
    sdist, wheel = found
    return sdist, wheel


def test_archives_hold_the_linked_files_themselves(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
    for name in [*(f"src/fidgpt/{name}" for name in HELD), "LICENSE", "README.md"]:
        assert members[name].isreg(), name
    with zipfile.ZipFile(archives[1]) as archive:
        names = archive.namelist()
        for name in LINKED:
            assert archive.read(f"fidgpt/{name}") == (ROOT / name).read_bytes(), name
    assert {f"fidgpt/{name}" for name in HELD} <= {*names}
    outside = {name.partition("/")[0] for name in names} - {"fidgpt"}
    assert all(name.endswith(".dist-info") for name in outside)


def test_the_installed_wheel_trains(archives: tuple[Path, Path], tmp_path: Path) -> None:
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
    run(*pip, "--ignore-installed", "--no-compile", archives[1], cwd=tmp_path)

    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    where = "from importlib.util import find_spec as find; print(*(find(n).origin for n in %s))"
    names = ["fidgpt.tags", "fidgpt.configs"]
    found = run(python, "-c", where % names, cwd=elsewhere).split()
    assert len(found) == len(names)
    for name in found:
        assert Path(name).is_relative_to(site), f"{name} is not from the wheel"
    command = environment / "bin" / "fidgpt-train"
    run(command, "--config=config:debug", "--config=set:num_steps=2", cwd=elsewhere)
    (metrics,) = elsewhere.rglob("metrics.jsonl")
    assert len(metrics.read_text(encoding="utf-8").splitlines()) >= 2
