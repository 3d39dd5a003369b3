"""Configs of Hydra in several files, joined by their defaults lists."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fidgpt.compose.sources import read_text
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at, listed, suggest
from fidgpt.graph.yaml import read_with_lines

_SELF, _HEADER, _GLOBAL = "_self_", "# @package", "_global_"
_MAX_FILES = 300
_MAX_ROUNDS = 20  # of overrides that select files with overrides


class _Entry(NamedTuple):
    """An entry of a defaults list.

    Attributes:
      group: folder of the file inside the root; empty for the root itself.
      name: name of the file; None selects none.
      package: path of the config at which its content is put.
      key: the group, with the package if the entry names one, by which it is overridden; empty for
        an entry that is a name alone, which nothing overrides.
      is_optional: whether the file may be missing.
      is_override: whether it replaces what other entries of the key select.
    """

    group: str
    name: str | None
    package: str
    key: str
    is_optional: bool
    is_override: bool


class Composed(NamedTuple):
    """What files of Hydra hold together.

    Attributes:
      content: the result of merging them.
      lines: the file and the line in which each value is written, by its path.
    """

    content: Any
    lines: dict[str, tuple[str, int]]


def read_composed(path: Path, select: Mapping[str, str | None] | None = None) -> Composed:
    """Return the content of a file of Hydra, with the files of its defaults list merged into it.

    As Hydra 1.3 does: later entries of a list override earlier ones, where mappings are merged and
    all else is replaced; the file itself is where `_self_` is, or last. Content goes to the path of
    its group, or to that after `@`, or to that of a `# @package` line. `override` replaces the file
    that a group has selected. The group and the section `hydra` configure Hydra itself and are left
    out.

    Args:
      path: the file.
      select: the file for each of some groups, as on Hydra's command line: `{"model": "wide"}`.

    Raises:
      ConfigError: a file is missing or is not plain YAML, an entry has no meaning here, or a group
        to select from is in no defaults list.
    """
    (written, lines), chosen = _read(path), dict(select or {})
    if not isinstance(written, dict) or "defaults" not in written:
        if chosen:
            raise ConfigError(
                f"{path} has no defaults list to select {listed([*chosen], most=3)} in."
            )
        return Composed(written, {place: (str(path), line) for place, line in lines.items()})
    selected: dict[str, str | None] = {}
    for _ in range(_MAX_ROUNDS):
        composer = _Composer(path.parent, selected | chosen)
        composer.add(path, group="", package="")
        if composer.overrides == selected:
            for group in chosen.keys() - composer.groups:
                raise ConfigError(
                    f"{path}: no defaults list has the group {group!r}. "
                    f"{suggest(group, composer.groups)}"
                )
            composer.result.pop("hydra", None)
            return Composed(composer.result, composer.lines)
        selected = composer.overrides
    raise ConfigError(f"{path}: the overrides in its defaults lists contradict each other.")


class _Composer:
    """Merges files in the order of their defaults lists.

    Attributes:
      result: what they hold together.
      lines: as in `Composed`.
      overrides: the file that each overridden group selects, as far as was found.
      groups: all groups that the lists name.
    """

    def __init__(self, root: Path, selected: dict[str, str | None]) -> None:
        self.result: dict[str, Any] = {}
        self.lines: dict[str, tuple[str, int]] = {}
        self.overrides: dict[str, str | None] = {}
        self.groups: set[str] = set()
        self._root = root
        self._selected = selected
        self._count = 0

    def add(self, path: Path, *, group: str, package: str) -> None:
        """Merge a file of a group, and those of its defaults list, into a package."""
        self._count += 1
        if self._count > _MAX_FILES:
            raise ConfigError(f"{path}: the defaults lists do not end after {_MAX_FILES} files.")
        content, lines = _read(path)
        content = content or {}
        if not isinstance(content, dict):
            raise ConfigError(f"{path} holds {content!r:.60}, not a mapping.")
        package = _header(path, group, package)
        entries = content.pop("defaults", [])
        if not isinstance(entries, list):
            raise ConfigError(f"{path}: defaults must be a list, not {entries!r:.60}.")
        for written in entries if _SELF in entries else [*entries, _SELF]:
            if written == _SELF:
                _merge(_mapping_at(self.result, package), content)
                for place, line in lines.items():
                    self.lines[_joined(package, place)] = str(path), line
                continue
            for entry in _entries(written, path, group, package):
                self._add_entry(entry, path)

    def _add_entry(self, entry: _Entry, path: Path) -> None:
        if entry.group.partition("/")[0] == "hydra":
            return
        if entry.is_override:
            self.overrides[entry.key] = entry.name
            return
        self.groups.update(filter(None, [entry.key]))
        name = self._selected.get(entry.key, entry.name)
        if name is None:
            return
        file = self._root / entry.group / (name if name.endswith(".yaml") else f"{name}.yaml")
        if file.is_file():
            group = "/".join(filter(None, (entry.group, *Path(name).parent.parts)))
            self.add(file, group=group, package=entry.package)
        elif not entry.is_optional:
            raise ConfigError(f"{path}: defaults select {file}, which does not exist.")


def _entries(written: Any, path: Path, group: str, package: str) -> Iterator[_Entry]:
    """Yield what an entry of a defaults list in a file of a group and package selects."""
    has_group = not isinstance(written, str)
    if isinstance(written, str):  # NAME, FOLDER/NAME and NAME@PACKAGE
        name, at_sign, place = written.partition("@")
        folder, slash, name = name.rpartition("/")
        written = {f"{folder or slash}{at_sign}{place}": name}
    if not isinstance(written, dict) or len(written) != 1:
        raise ConfigError(f"{path}: defaults have {written!r:.60}; use NAME or GROUP: NAME.")
    ((key, names),) = written.items()
    *words, target = str(key).split() or [""]
    if unknown := {*words} - {"optional", "override"}:
        raise ConfigError(f"{path}: defaults have {key!r:.60}; {unknown.pop()!r} is unknown.")
    inner, at_sign, place = target.partition("@")
    folder = inner.strip("/")
    if not inner.startswith("/"):
        folder = "/".join(filter(None, (group, folder)))
    placed = _joined(package, place if at_sign else inner.strip("/").replace("/", "."))
    if place.startswith(_GLOBAL):
        placed = place.removeprefix(_GLOBAL).strip(".")
    elif place == "_here_":
        placed = package
    for name in names if isinstance(names, list) else [names]:
        if name is not None and (not isinstance(name, str) or name == "???" or "${" in name):
            raise ConfigError(f"{path}: defaults have {key}: {name!r:.60}; select a file.")
        marks = "optional" in words, "override" in words
        own = f"{folder}{at_sign}{place}" if has_group else ""
        yield _Entry(folder, name, placed, own, *marks)


def _header(path: Path, group: str, package: str) -> str:
    """Return the package of a file, which a line at its top may set."""
    for line in read_text(str(path))[1].splitlines():
        if line.startswith(_HEADER):
            written = line.removeprefix(_HEADER).strip()
            named = written.replace("_group_", group.replace("/", "."))
            return named.removeprefix(_GLOBAL).strip(".")
        if line.strip() and not line.startswith("#"):
            break
    return package


def _joined(package: str, inner: str) -> str:
    return ".".join(filter(None, (package, inner)))


def _mapping_at(result: dict[str, Any], package: str) -> dict[str, Any]:
    """Return the mapping at a path, created if there is none."""
    for step in filter(None, package.split(".")):
        result = _mapping_of(result, step)
    return result


def _merge(result: dict[str, Any], content: dict[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, dict):
            _merge(_mapping_of(result, key), value)
        else:
            result[key] = value


def _mapping_of(result: dict[str, Any], key: Any) -> dict[str, Any]:
    if not isinstance(result.get(key), dict):
        result[key] = {}
    return result[key]


def _read(path: Path) -> tuple[Any, dict[str, int]]:
    source, text = read_text(str(path))
    with at(source):
        return read_with_lines(text)
