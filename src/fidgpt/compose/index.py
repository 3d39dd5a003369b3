"""The index of names: stored, and kept current."""

import enum
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import time
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.compose.directives import DEFAULT_CONFIG
from fidgpt.files import atomic_path
from fidgpt.graph import ConfigError, Inherited, nodes, resolve, title
from fidgpt.graph.docs import doc_of, first_sentence
from fidgpt.graph.fiddle import all_arguments, set_arguments
from fidgpt.graph.hints import element_hint, hint_of, members_of, name_of
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.spelling import Frame
from fidgpt.graph.walk import children, is_node, join, step_to

COMMANDS = {
    "train": "fidgpt.cli.train",
    "sweep": "fidgpt.cli.sweep",
    "sample": "fidgpt.cli.sample",
    "evaluate": "fidgpt.cli.evaluate",
    "export": "fidgpt.cli.export",
}


def choices_of(hint: Any) -> list[str]:
    """True and False, the names of an enum or Literal, None; empty where others fit too."""
    words: list[str] = []
    for member in members_of(hint):
        if member is bool:
            words += ["True", "False"]
        elif member in (None, type(None)):
            words.append("None")
        elif typing.get_origin(member) is typing.Literal:
            words += [str(value) for value in typing.get_args(member)]
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            words += [item.name for item in member]
    return words


Knob = dict[str, Any]
LONGEST = 120  # letters of a value


def knobs_of(root: fdl.Buildable, meet: Callable[[Any], None] = lambda _: None) -> list[Knob]:
    """One dict for each parameter and each element that is a part; `meet` is shown every hint.

    A part that several places hold is told once, where one reads it first; the others say `same`.
    """
    return _Reader(root, meet).read()


class _Reader:
    """Knows the graph around the places that are told."""

    def __init__(self, root: fdl.Buildable, meet: Callable[[Any], None]) -> None:
        self._root = root
        self._meet = meet
        self._heard = {(id(heard.part), heard.key): heard for heard in _heard(root)}
        self._paths = {id(node.value): node.path for node in nodes(root)}
        self._anonymous = _held_plain(root)

    def read(self) -> list[Knob]:
        knobs: list[Knob] = []
        left: list[tuple[str, Any, Any]] = [("", self._root, Any)]
        while left:
            path, value, hint = left.pop()
            below = []
            for knob, child, asked in self._inside(path, value, hint):
                self._meet(asked)
                knobs.append(knob)
                if is_node(child) and id(child) not in self._anonymous and "same" not in knob:
                    below.append((knob["path"], child, asked))
            left += reversed(below)
        return knobs

    def _inside(self, path: str, value: Any, hint: Any) -> list[tuple[Knob, Any, Any]]:
        if isinstance(value, fdl.Buildable):
            return [self._argument(path, value, key) for key in all_arguments(value)]
        found = []
        for key, (step, child) in zip(_keys(value), children(value), strict=True):
            asked = element_hint(hint, key)
            found.append((self._knob(join(path, step), asked, child), child, asked))
        return found

    def _argument(self, path: str, part: fdl.Buildable, key: Any) -> tuple[Knob, Any, Any]:
        value = all_arguments(part)[key]
        hint = hint_of(part, key)
        heard = self._heard.get((id(part), key))
        knob = self._knob(
            join(path, step_to(key)), hint, heard.said.value if heard else value, heard
        )
        if not heard and key not in set_arguments(part):
            knob["unset"] = True
        tags = sorted(fdl.get_tags(part, key), key=lambda tag: tag.__name__)
        if tags:
            knob["tags"] = [tag.__name__ for tag in tags]
        own = doc_of(fdl.get_callable(part)).parameters.get(str(key), "")
        if doc := own or (first_sentence(tags[0].description) if tags else ""):
            knob["doc"] = doc
        return knob, fdl.NO_VALUE if heard or "unset" in knob else value, hint

    def _knob(self, path: str, hint: Any, value: Any, heard: Inherited | None = None) -> Knob:
        knob: Knob = {"path": path, "type": name_of(hint), "value": self._text(value)}
        if heard:
            knob["heard"] = heard.said.path
        elif isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls):
            knob["part"] = title(value)
            if self._paths.get(id(value), path) != path:
                knob["same"] = self._paths[id(value)]
        elif is_node(value) and id(value) not in self._anonymous:
            knob["holds"] = True
        if choices := choices_of(hint):
            knob["choices"] = choices
        return knob

    def _text(self, value: Any) -> str:
        if value is fdl.NO_VALUE:
            return ""
        if isinstance(value, fdl.Buildable):
            return title(value)
        if is_node(value) and id(value) not in self._anonymous and len(value):
            shown = ", ".join(self._text(child) for _, child in children(value))
            text = f"{{{shown}}}" if isinstance(value, dict) else f"[{shown}]"
        else:
            text = leaf_text(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _held_plain(root: Any) -> set[int]:
    """The lists, tuples and dicts that hold no part anywhere, and read as one value."""
    plain: set[int] = set()
    for node in reversed(nodes(root)):  # children first
        value = node.value
        held = [] if isinstance(value, fdl.Buildable) else [child for _, child in children(value)]
        if not isinstance(value, fdl.Buildable) and all(
            not is_node(child) or id(child) in plain for child in held
        ):
            plain.add(id(value))
    return plain


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value)))


def _heard(root: fdl.Buildable) -> list[Inherited]:
    try:
        return resolve(root)
    except ConfigError:  # a config that leaves something for the command line to say
        return []


Index = dict[str, Any]
Stamps = dict[str, list[int]]

VERSION = 1
PACKAGE = Path(__file__).parents[2]
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


def known_frames() -> dict[str, Frame]:
    """The frame of each config, by its directive; none where the index is not true any more."""
    index, is_true = read()
    knobs: Mapping[str, Any] = index["knobs"] if index and is_true else {}
    return {f"config:{name}": frame_from(told) for name, told in knobs.items()}


def frame_from(knobs: list[Knob]) -> Frame:
    """The frame of a graph of which the knobs are known; it may hold less than `frame_of` gives."""
    frame: Frame = {"": ("", {})}
    alone = _alone(knobs)
    for knob in knobs:
        above, step = _split(knob["path"])
        if above not in frame or "same" in knob or "heard" in knob:
            continue
        values = frame[above][1]
        if call := knob.get("part"):
            values[step] = call
            frame[knob["path"]] = call, {}
        elif "holds" in knob:
            if f"{knob['path']}[0]" in alone:
                values[step] = "list"
                frame[knob["path"]] = "list", {}
        elif len(knob["value"]) < LONGEST and not ("unset" in knob and "tags" in knob):
            values[step] = knob["value"]
    return frame


def _alone(knobs: list[Knob]) -> set[str]:
    """The paths of the items that are alone in their list."""
    paths = {knob["path"] for knob in knobs}
    firsts = [path for path in paths if path.endswith("[0]")]
    return {path for path in firsts if f"{path[:-3]}[1]" not in paths}


def _split(path: str) -> tuple[str, str]:
    """The path of what holds a place, and the step from there."""
    cut = max(path.rfind("."), path.rfind("["))
    return (path[:cut], path[cut:]) if cut > 0 else ("", f".{path}")


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
