"""Where the index lies, whether it is still true, and how it is written and renewed."""

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fidgpt.drafts import drafted

Index = dict[str, Any]
Stamps = dict[str, list[int]]

VERSION = 1
PACKAGE = Path(__file__).parents[2]
BACKGROUND = "--background"
BUILD = [sys.executable, "-P", "-m", "fidgpt.cli.index"]
GROUP = "fidgpt.project"  # as in fidgpt.cli.catalogue.projects, which imports what it finds
_BUILD_TIMEOUT = 120  # seconds after which a build that has not ended is taken for dead


def index_path() -> Path | None:
    """The file of this installation and Python, beside the corpora; None where nobody has a home.

    Who has other projects on PYTHONPATH has another one.

    `fidgpt.data` has the same rule for the folder, and cannot be imported without torch.
    """
    this = " ".join([str(PACKAGE), sys.prefix, sys.version, *_declared_on_path()]).encode()
    if own := os.environ.get("FIDGPT_CACHE"):
        folder = Path(os.path.expanduser(own))
    else:
        common = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(os.path.expanduser(common)) / "fidgpt"
    is_known = folder.parts[:1] != ("~",)
    return folder / f"index-{zlib.crc32(this):08x}.json" if is_known else None


def _declared_on_path() -> list[str]:
    """What is said of packages on PYTHONPATH that declare a project of fidgpt."""
    folders = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    said = [
        file
        for folder in map(Path, folders)
        for kind in ("dist-info", "egg-info")
        for file in folder.glob(f"*.{kind}/entry_points.txt")
    ]
    return sorted(str(one.absolute()) for one in said if f"[{GROUP}]" in _text(one))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read(path: Path | None = None) -> tuple[Index | None, bool]:
    """The index as it was last written, if it can be read, and whether it is still true.

    Args:
      path: another file than that of the index.
    """
    path = path or index_path()
    try:
        index = json.loads(path.read_bytes()) if path else None
    except (OSError, ValueError):  # not there, not ours to read, or cut short
        return None, False
    if not isinstance(index, dict) or index.get("version") != VERSION:
        return None, False
    return index, index["stamps"] == stamps(index["roots"])


def write(index: Index, path: Path | None = None) -> bool:
    """Puts the index in its place in one step; whether there was one to put it in.

    Args:
      index: what to write.
      path: another file than that of the index.
    """
    path = path or index_path()
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            draft.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
    except OSError:
        return False
    return True


def can_keep() -> bool:
    """Whether there is a place that can be written."""
    path = index_path()
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return path is not None and os.access(path.parent, os.W_OK)


def roots(more: Iterable[str]) -> list[str]:
    """What decides the index: fidgpt, what is installed beside it, and more files."""
    installed = [one for one in sys.path if one.endswith(("site-packages", "dist-packages"))]
    return [str(PACKAGE), *installed, *sorted(set(more))]


def stamps(paths: Iterable[str]) -> Stamps:
    """When each file was changed, and its size; of installed packages that of their folder."""
    found: Stamps = {}
    for path in paths:
        is_package = path.endswith(("site-packages", "dist-packages"))
        if is_package or path.endswith(".py") or os.path.isfile(path):
            _stamp(path, os.stat, found)
        else:
            for file in _sources(path):
                _stamp(file.path, lambda _, file=file: file.stat(), found)
    return found


def rebuild_in_background() -> None:
    """Starts a process that builds the index anew, unless one is at it or could not write it."""
    path = index_path()
    if path is None or not _begin(path.with_suffix(".building")):
        return
    quiet = subprocess.DEVNULL
    command = [*BUILD, BACKGROUND]
    subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def rebuild_now() -> Index:
    """Builds the index in a process of its own, so that this one need not load torch.

    Raises:
      RuntimeError: it failed, with the last line that it said.
    """
    done = subprocess.run(BUILD, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it was stopped"]
        raise RuntimeError(said[-1])
    return json.loads(done.stdout)


def end_rebuild() -> None:
    """Makes room for the next build."""
    if path := index_path():
        path.with_suffix(".building").unlink(missing_ok=True)


def _begin(marker: Path) -> bool:
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        if marker.exists() and time.time() - marker.stat().st_mtime > _BUILD_TIMEOUT:
            marker.unlink(missing_ok=True)
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:  # another one is at it, or the cache cannot be written
        return False
    return True


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    """The Python files under a folder, through the links of configs and fiddlers."""
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        yield entry
                    elif entry.name != "__pycache__" and entry.is_dir():
                        left.append(entry.path)
        except OSError:  # gone meanwhile
            continue


def _stamp(path: str, stat: Any, found: Stamps) -> None:
    try:
        now = stat(path)
        found[path] = [now.st_mtime_ns, now.st_size]
    except OSError:
        found[path] = []
