"""The index of names: stored, kept current, and asked by help, listings and completion."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fidgpt.compose.spelling import DEFAULT_CONFIG
from fidgpt.files import atomic_path

COMMANDS = {
    "train": "fidgpt.cli.train",
    "sweep": "fidgpt.cli.sweep",
    "sample": "fidgpt.cli.sample",
    "evaluate": "fidgpt.cli.evaluate",
    "export": "fidgpt.cli.export",
}

Index = dict[str, Any]

Stamps = dict[str, list[int]]

VERSION = 1

PACKAGE = Path(__file__).parents[1]

BACKGROUND = "--background"

BUILD = [sys.executable, "-P", "-m", "fidgpt.compose.index_main"]

GROUP = "fidgpt.project"  # as in fidgpt.compose.projects, which imports what it finds

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
        with atomic_path(path) as draft:
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


ROOMS = ("configs", "fiddlers", "tags", "parts")


def rooms_of_projects() -> dict[str, dict[str, Path]]:
    """For each package in the group its modules that have names to offer, as files."""
    packages = sorted({point.value for point in entry_points(group=GROUP)})
    folders = {package: _folder(package) for package in packages}
    return {package: _rooms(folder) for package, folder in folders.items() if folder}


def _rooms(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for room in ROOMS:
        for path in (folder / room / "__init__.py", folder / f"{room}.py"):
            if path.is_file():
                found.setdefault(room, path)
    return found


def _folder(package: str) -> Path | None:
    """Where a package lies; to find a package inside another one would import the outer one."""
    top, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), *inner)


_SLOTS = 32  # files that are kept, so that not every run that was looked at leaves one

_MERGED = ("configs", "tags", "parts", "knobs", "fits", "quantities")


def with_chosen(index: Index, directive: str, allowed: Sequence[str] = ()) -> Index:
    """The index, and in it the config that a directive begins with.

    Raises:
      ConfigError: the directive is wrong.
    """
    found, is_true = _kept(directive, allowed)
    return _merged(index, found if found and is_true else _built(directive, allowed))


def with_last_known(index: Index, directive: str, allowed: Sequence[str] = ()) -> Index:
    """As last known, while it is found out anew in the background; else it is waited for.

    Raises:
      ConfigError: the directive is wrong.
    """
    found, is_true = _kept(directive, allowed)
    if found and not is_true:
        quiet = subprocess.DEVNULL
        command, environment = _command(directive, allowed)
        subprocess.Popen(
            command,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            env=environment,
            start_new_session=True,
        )
    return _merged(index, found or _built(directive, allowed))


def _merged(index: Index, chosen: Index) -> Index:
    return index | {kind: index.get(kind, {}) | chosen[kind] for kind in _MERGED}


def _kept(directive: str, allowed: Sequence[str]) -> tuple[Index | None, bool]:
    """What was found out before, and whether it is still true."""
    found, is_true = read(_slot(directive, allowed))
    return (found, is_true) if found and found["key"] == _key(directive, allowed) else (None, False)


def keep(chosen: Index, directive: str, allowed: Sequence[str]) -> None:
    """Keeps what was found out for the next time."""
    if path := _slot(directive, allowed):
        write(chosen | {"key": _key(directive, allowed)}, path)


def _built(directive: str, allowed: Sequence[str]) -> Index:
    """Found out in a process of its own, so that this one need not load torch."""
    command, environment = _command(directive, allowed)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    from fidgpt.graph import ConfigError  # late: only a mistake waits for it

    told = done.stderr.decode(errors="replace").strip()
    is_told = told.startswith("error: ")
    last = (told.splitlines() or ["it was stopped"])[-1]
    raise ConfigError(told[7:] if is_told else f"{directive} cannot be looked at: {last}")


def _command(directive: str, allowed: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """What finds it out and keeps it, where modules are found as they are found here."""
    searched = {"PYTHONPATH": os.pathsep.join(_searched())}
    return [*BUILD, directive, *allowed], os.environ | searched


def _key(directive: str, allowed: Sequence[str]) -> list[str]:
    """What a directive means, which depends on where files and modules are looked for."""
    return [directive, *allowed, os.getcwd(), *_searched()]


def _searched() -> list[str]:
    return list(dict.fromkeys(filter(None, sys.path)))


def _slot(directive: str, allowed: Sequence[str]) -> Path | None:
    path = index_path()
    number = zlib.crc32("\0".join(_key(directive, allowed)).encode()) % _SLOTS
    return path and path.with_name(f"{path.stem}-{number:02}.json")


_FILES = ("config_file:", "config_str:")


def chosen_config(directives: Sequence[str]) -> str:
    """The name of the config, with the arguments that it is given; of a file, the directive."""
    first = directives[0].strip() if directives else ""
    if first.startswith(_FILES):
        return first
    kind, _, rest = first.partition(":")
    if kind.strip() != "config":
        return DEFAULT_CONFIG
    name, _, arguments = rest.partition("(")
    return rest.strip() if arguments.strip(" )") else name.strip()


def directive_for(name: str) -> str:
    """The directive that begins with a config by the name that it has in the index."""
    return name if name.startswith(_FILES) else f"config:{name}"


def is_listed_nowhere(name: str) -> bool:
    """Whether no list can have a config: it is in a module, a file, or given arguments."""
    return not name.replace("_", "a").isalnum()


def knobs_of_chosen(directives: Sequence[str], index: Index) -> tuple[str, list[dict]]:
    """The name of the config that directives begin with, and its knobs.

    Raises:
      ConfigError: there is no such config, or it cannot be looked at without its arguments.
    """
    name = chosen_config(directives)
    knobs = index.get("knobs", {})
    if name in knobs:
        return name, knobs[name]
    from fidgpt.graph import (
        ConfigError,  # late: only a mistake waits for it
        suggest,  # late: only a mistake waits for it
    )

    if name in index["configs"]:
        raise ConfigError(f"config:{name} cannot be looked at: it fails, or needs arguments.")
    raise ConfigError(f"there is no config {name!r}. {suggest(name, index['configs'])}")


def at_hand() -> Index:
    """What can be known at once, torch not being loaded.

    Where the index is not true any more, names are read anew from the sources, and knobs are told
    as they were.
    """
    index, is_true = read()
    return index if index and is_true else (index or {}) | _names()


def for_completion(
    *, with_knobs: bool, directives: Sequence[str] = (), allowed: Sequence[str] = ()
) -> Index:
    """What is at hand, while an index that is not true any more is built anew in the background.

    Where there never was one, and knobs are asked for, it is waited for.

    Args:
      with_knobs: whether what is typed is a path or a quantity.
      directives: those on the line, of which the first may begin with what no list has.
      allowed: packages that --allow names there.
    """
    index = _for_completion(with_knobs)
    name = chosen_config(directives)
    known = {name, name.partition("(")[0]} & index.get("knobs", {}).keys()
    if not with_knobs or known or not is_listed_nowhere(name):
        return index

    try:
        return with_last_known(index, directive_for(name), allowed)
    except ValueError:  # which a ConfigError is: the line begins with what there is not
        return index


def _for_completion(with_knobs: bool) -> Index:
    index, is_true = read()
    if index and is_true:
        return index
    if index is None and with_knobs and can_keep():
        return whole()
    rebuild_in_background()

    from fidgpt.compose.command_flags import command_flags  # late: a true index has them

    return (index or {}) | _names() | {"flags": command_flags()}


def whole() -> Index:
    """All of it; where it is missing or not true any more it is built first, and that is said."""
    index, is_true = read()
    if index and is_true:
        return index
    print("Looking at all configs and parts (once, until they change) ...", file=sys.stderr)
    try:
        return rebuild_now()
    except RuntimeError as error:
        print(f"  not possible: {error}", file=sys.stderr)
        return (index or {}) | _names()


def of_chosen(directives: Sequence[str], allowed: Sequence[str] = ()) -> Index:
    """The whole, and in it the config that directives begin with, where no list has it.

    Raises:
      ConfigError: there is no such config.
    """
    index, name = whole(), chosen_config(directives)
    if name in index.get("knobs", {}) or not is_listed_nowhere(name):
        return index

    return with_chosen(index, directive_for(name), allowed)


def _names() -> Index:

    from fidgpt.compose.names import names, names_of_projects  # late: a true index has them

    own, others = names(), names_of_projects()
    return {kind: own[kind] | others[kind] for kind in own}
