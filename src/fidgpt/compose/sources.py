"""Configs read from files and runs."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph import ConfigError, load_with_changes
from fidgpt.graph.errors import listed
from fidgpt.graph.provenance import restore_provenance


class UnreadableFile(ConfigError):
    """A file cannot be read; `reason` says why, as a sentence without its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be read: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class _Stored:
    """A file in storage that fsspec knows, with as much of a path's methods as is called here."""

    name: str
    system: Any
    path: str

    def __str__(self) -> str:
        return self.name

    def read_text(self, encoding: str) -> str:
        return self.system.read_text(self.path, encoding=encoding)

    def exists(self) -> bool:
        return self.system.exists(self.path)


def is_url(name: str) -> bool:
    """Whether a name is of storage, such as `gs://runs/config.json`, and not of a disk."""
    return "://" in name


def read_text(name: str) -> tuple[str, str]:
    """A file's path, made whole, and what is in it.

    Raises:
      ConfigError: the name is empty.
      UnreadableFile: it cannot be read.
    """
    if not name.strip():
        raise ConfigError("the name of a file is missing.")
    try:
        file = _file(name)
        return str(file), file.read_text(encoding="utf-8")
    except Exception as error:  # every kind of storage has its own
        raise UnreadableFile(name, f"{_reason(error)}.") from error


def is_there(name: str) -> bool:
    """Whether something lies at a path, a broken link too; not where storage cannot be asked."""
    if not is_url(name):
        return os.path.lexists(name)
    try:
        return _file(name).exists()
    except Exception:  # as above
        return False


def _file(name: str) -> Any:
    from etils import epath  # late: most runs read no file

    try:
        return epath.Path(name).expanduser()
    except KeyError:  # no kind of storage that epath knows
        from fsspec.core import url_to_fs

        return _Stored(name, *url_to_fs(name))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, FileNotFoundError):  # of which some storage says no more than its name
        return "No such file or directory"
    said = getattr(error, "strerror", None) or f"{error!s:.200}"
    return (said.splitlines() or [type(error).__name__])[0].rstrip(".")


B = TypeVar("B", bound=fdl.Buildable)


def load_told(text: str, *, source: str, allowed: tuple[str, ...]) -> Any:
    """The graph of a file; what has changed since it was written is told on standard error.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    cfg, changes = load_with_changes(text, source=source, allowed=allowed)
    for line in _together(changes):
        print(f"{source}: {line}", file=sys.stderr)
    return cfg


def _together(changes: list[str]) -> Iterator[str]:
    """Changes, those that many parts have alike as one line."""
    paths: dict[str, list[str]] = {}
    for line in changes:
        path, colon, what = line.partition(": ")
        paths.setdefault(what or line, []).extend([path] if colon else [])
    for what, found in paths.items():
        match found:
            case []:
                yield what
            case [path]:
                yield f"{path}: {what}"
            case _:
                yield f"{what}, in {listed(found, most=3)}"


def recall(cfg: B, file: str) -> B:
    """The graph of a run's `config.json`, with the history that lies beside the file, if it does.

    A history that cannot be read is said aloud, and keeps nobody from the graph.
    """
    folder, _, name = file.rpartition("/")
    beside = f"{file.removesuffix(name)}provenance.json"
    if name != "config.json" or not is_there(beside):
        return cfg
    try:
        restore_provenance(cfg, read_text(beside)[1], source=folder or ".")
    except UnreadableFile as error:
        print(f"{beside} is left aside: {error.reason}", file=sys.stderr)
    except ConfigError as error:
        print(f"{beside} is left aside: {error}", file=sys.stderr)
    return cfg
