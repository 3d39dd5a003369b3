"""Configs read from files and runs, on this machine or in storage that fsspec knows."""

import contextlib
import os
import sys
from typing import Any

import fiddle as fdl

from fidgpt.errors import listed
from fidgpt.files import check_url, parse_json, read_all, read_bytes
from fidgpt.graph import ConfigError, load_with_changes, provenance

RESUMED = " resumed after step "  # between the name of a run and the step
_LARGEST = 1 << 28  # bytes; even an unrolled config of 100,000 nodes has fewer


class UnreadableFile(ConfigError):
    """A file cannot be read."""


def is_url(name: str) -> bool:
    """Return whether a name is the URL of a file in storage, such as `gs://runs/config.json`."""
    return "://" in name


def read_text(name: str) -> tuple[str, str]:
    """Return the path of a file and what it contains.

    Raises:
      ConfigError: the name is empty.
      UnreadableFile: it cannot be read.
    """
    if not name.strip():
        raise ConfigError("the name of a file is missing.")
    try:
        if is_url(name):
            from fsspec.core import url_to_fs  # late: takes long

            check_url(name)
            files, path = url_to_fs(name)
            with files.open(path, "rb") as file:
                content = read_all(file, most=_LARGEST)
        else:
            content = read_bytes(os.path.expanduser(name), most=_LARGEST)
        text = content.decode().replace("\r\n", "\n")
    except Exception as error:  # every kind of storage has its own
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        elif isinstance(error, FileNotFoundError):  # some storage gives no more than its name
            reason = "No such file or directory"
        else:
            reason = getattr(error, "strerror", None) or f"{error!s:.200}" or type(error).__name__
        raise UnreadableFile(f"{name} cannot be read: {reason.removesuffix('.')}.") from error
    return name if is_url(name) else os.path.expanduser(name), text


def load_file(name: str, *, allowed: tuple[str, ...] = ()) -> fdl.Config:
    """Return the graph in a file, with the history that lies beside the `config.json` of a run.

    Raises:
      ConfigError: it cannot be read, or holds no graph.
    """
    path, content = read_text(name)
    return with_history(load_and_warn(content, source=path, allowed=allowed), path)


def load_and_warn(text: str, *, source: str, allowed: tuple[str, ...] = ()) -> Any:
    """Return the graph of a file, with a warning for what has changed since it was written.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what does not exist.
    """
    cfg, changes = load_with_changes(text, source=source, allowed=allowed)
    places: dict[str, list[str]] = {}
    for line in changes:
        path, colon, what = line.partition(": ")
        places.setdefault(what or line, []).extend([path] if colon else [])
    for what, paths in places.items():
        where = f"{listed(paths, most=3)}: " if paths else ""
        _print_once(f"{source}: {where}{what}")
    return cfg


def with_history(cfg: fdl.Config, file: str) -> fdl.Config:
    """Return the graph of a run with its history; one that cannot be read is left out."""
    folder, _, name = file.rpartition("/")
    beside = f"{file.removesuffix(name)}provenance.json"
    if name != "config.json":
        return cfg
    try:
        named = f"{folder or '.'}{_resumption(file.removesuffix(name))}"
        provenance.restore_provenance(cfg, read_text(beside)[1], source=named)
    except UnreadableFile:  # there may be none
        pass
    except ConfigError as error:
        _print_once(f"{beside} is ignored: {error}")
    return cfg


def _print_once(line: str) -> None:
    """Print a line on standard error, on the main process of a run."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)


def _resumption(prefix: str) -> str:
    """Where the command resumed a run that changed its config last; "" if none did."""
    with contextlib.suppress(UnreadableFile, ValueError, LookupError, TypeError):
        last = parse_json(read_text(f"{prefix}changes.jsonl")[1].splitlines()[-1])
        return f"{RESUMED}{last['after_step']}"
    return ""
