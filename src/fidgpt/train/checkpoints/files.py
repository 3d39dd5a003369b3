"""Directories that are whole or absent: written under a temporary name, synced, then renamed."""

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path

from fidgpt.drafts import sync

TEMPORARY = ".tmp-"
REPLACED = ".old-"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found, trusted or fitted; the message says what to do."""


def make_way(folder: Path) -> None:
    """Makes the run's folder, if it can; that it cannot is told by what is written there."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)


def begin(final: Path) -> Path:
    """Makes an empty directory that is to take the name `final`, once `publish` is called.

    A run's folder that went, while a writing in the background waited for its turn, stays gone.
    """
    final.parent.mkdir(exist_ok=True)
    sync(final.parent.parent)
    settle(final.parent)
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
    temporary.mkdir()
    return temporary


def publish(temporary: Path, final: Path) -> None:
    """Gives a finished directory its name; what `final` held before is gone only then."""
    # A directory that is not empty cannot be renamed over. While the old one stands aside, readers
    # find it under REPLACED (see `present`), so a kill between the two renames loses nothing.
    sync(temporary)
    aside = final.with_name(REPLACED + final.name)
    if final.exists():
        os.rename(final, aside)
    os.rename(temporary, final)
    sync(final.parent)
    if aside.exists():
        discard(aside)


def present(folder: Path) -> dict[str, Path]:
    """The entries of `folder` by final name, including one whose replacement was cut short."""
    entries = {path.name: path for path in folder.iterdir() if not path.name.startswith(TEMPORARY)}
    finals = {name: path for name, path in entries.items() if not name.startswith(REPLACED)}
    aside = {name.removeprefix(REPLACED): path for name, path in entries.items()}
    return aside | finals


def settle(folder: Path) -> None:
    """Removes what killed writers left in `folder`, and ends a replacement that was cut short."""
    for path in list(folder.iterdir()):
        if path.name.startswith(TEMPORARY):
            shutil.rmtree(path)
        elif path.name.startswith(REPLACED):
            final = path.with_name(path.name.removeprefix(REPLACED))
            if final.exists():
                discard(path)
            else:
                os.rename(path, final)


def discard(path: Path) -> None:
    """Deletes a directory so that no moment shows a part of it under its own name."""
    doomed = path.with_name(f"{TEMPORARY}{path.name}-deleted")
    os.rename(path, doomed)
    sync(path.parent)
    shutil.rmtree(doomed)


def write_json(path: Path, value: object) -> None:
    """Writes the bytes of `json_bytes`; it is `sync` that makes them last."""
    path.write_bytes(json_bytes(value))


def json_bytes(value: object) -> bytes:
    """The one way a value is written here, so that equal values are equal bytes."""
    return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal; other threads run while it is computed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
