"""The index: what --list, --help and Tab show of a config, read from a file without loading torch.

There is one file for each directive that a graph can begin with; `fidgpt.compose.index_build`
writes it.
"""

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fidgpt.compose.directives import DEFAULT_CONFIG, is_base, read_file
from fidgpt.errors import ConfigError
from fidgpt.files import cache_directory, read_json

Index = dict[str, Any]
PACKAGE = Path(__file__).parents[1]
INSTALLED = ("site-packages", "dist-packages")
_FORMAT = 1
_SECONDS_BETWEEN_BUILDS = 10


def base_of(directives: Sequence[str]) -> str:
    """Return the directive that a graph begins with."""
    first = directives[0].strip() if directives else ""
    if file := read_file(first):
        first = str((file.directives or [""])[0])
    return first if is_base(first) else f"config:{DEFAULT_CONFIG}"


def index_for(
    directives: Sequence[str], allowed: Sequence[str] = (), *, wait: bool = True
) -> Index:
    """Return the index of the config that directives begin with, rebuilt if missing or stale.

    Args:
      directives: those on the command line.
      allowed: packages that --allow names.
      wait: whether to wait for a new index if there is a stale one; False returns the stale one
        and rebuilds it in the background.

    Raises:
      ConfigError: the config cannot be composed.
    """
    directive = base_of(directives)
    path = index_path(directive, allowed)
    index = read_json(path) if path else {}
    if index and index["checksum"] == checksum(index["roots"]):
        return index
    if not index or path is None or wait:
        return build(directive, allowed)
    if time.time() - path.stat().st_mtime > _SECONDS_BETWEEN_BUILDS:
        os.utime(path)
        quiet = subprocess.DEVNULL
        options = _options(directive, allowed)
        subprocess.Popen(**options, stdout=quiet, stderr=quiet, start_new_session=True)
    return index


def build(directive: str, allowed: Sequence[str] = ()) -> Index:
    """Build an index in another process, so that this one need not load torch.

    Raises:
      ConfigError: the config cannot be composed.
    """
    done = subprocess.run(**_options(directive, allowed), capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])  # a module may print when it is imported
    message = done.stderr.strip() or "the process was killed"
    if not message.startswith("error: "):
        message = f"{directive} cannot be composed: {message.splitlines()[-1]}"
    raise ConfigError(message.removeprefix("error: "))


def index_path(directive: str, allowed: Sequence[str] = ()) -> Path | None:
    """Return the file of an index; None if there is no cache directory.

    What a directive means depends on the installation, and on where modules and files are found.
    """
    kind, _, name = directive.partition(":")
    is_listed = kind == "config" and name.isidentifier()
    places = [os.environ.get("PYTHONPATH", "")] if is_listed else [os.getcwd(), *sys.path]
    installation = [str(_FORMAT), str(PACKAGE), sys.prefix, sys.version]
    key = "\0".join([*installation, directive, *allowed, *places])
    try:
        return cache_directory() / f"index-{zlib.crc32(key.encode()):08x}.json"
    except ValueError:
        return None


def checksum(roots: Iterable[str]) -> int:
    """Return a checksum of when the sources under some files and folders were changed.

    Of installed packages only the folder that holds them is looked at.
    """
    facts = []
    for root in roots:
        files = [root]
        if os.path.isdir(root) and not root.endswith(INSTALLED):
            # Through links: configs and fiddlers are some.
            folders = os.walk(root, followlinks=True)
            files = [
                f"{folder}/{name}"
                for folder, _, names in folders
                for name in names
                if name.endswith(".py")
            ]
        for file in files:
            try:
                stat = os.stat(file)
            except OSError:
                continue
            facts.append((file, stat.st_mtime_ns, stat.st_size))
    return zlib.crc32(repr(sorted(facts)).encode())


def _options(directive: str, allowed: Sequence[str]) -> dict[str, Any]:
    """How to start the process that builds an index; it finds modules where this one does."""
    path = index_path(directive, allowed)
    words = ["-P", "-m", "fidgpt.compose.index_build", str(path or ""), directive, *allowed]
    searched = os.pathsep.join(filter(None, dict.fromkeys(sys.path)))
    environment = os.environ | {"PYTHONPATH": searched}
    return {"args": [sys.executable, *words], "stdin": subprocess.DEVNULL, "env": environment}
