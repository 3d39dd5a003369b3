"""What the index tells of a config that is on none of its lists: of a module, a file, or a call."""

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from fidgpt.cli.index.store import BUILD, Index, index_path, read, write

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
