"""Directories of runs: of new ones, of those that resume, and what they hold.

A new one holds its surroundings too: hardware, packages, variables and the code's state.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fiddle as fdl
import torch

from fidgpt import __version__, graph
from fidgpt.compose.directives import DEFAULT_CONFIG, split_directive
from fidgpt.compose.sources import UnreadableFile, load_and_warn, read_text, with_history
from fidgpt.files import read_json
from fidgpt.graph import ConfigError, Resolved, attributed_to
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.outlines import rows
from fidgpt.graph.permissions import allowed_changes
from fidgpt.graph.provenance import dump_provenance
from fidgpt.graph.secrets import redacted_value
from fidgpt.train import RunDirectory, RunError, device
from fidgpt.train.run_directory import FLAGS_FILE

# Variables that change results, or how fast they are computed. Others may hold secrets.
_VARIABLE = re.compile(
    "(CUBLAS|CUDA|FIDGPT|GLOO|KMP|MKL|NCCL|OMP|PYTORCH)_|TORCH|PYTHONHASHSEED|NVIDIA_TF32|"
    "SLURM_JOB_ID|(LOCAL_)?WORLD_SIZE"
)
_SECRET = re.compile("KEY|PASSWORD|SECRET|TOKEN")


def surroundings() -> dict[str, object]:
    """Return time, place, hardware, packages, variables and the state of the code."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    # The folder of a package has its version; reading metadata takes longer.
    folders = [path for place in sys.path if place for path in Path(place).glob("*.dist-info")]
    versions = [folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "working_directory": str(Path.cwd()),
        "hardware": {
            "processor": device.processor().partition("\n")[0].partition(": ")[2],
            "processor_count": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "accelerators": [{"name": d.name, "memory_bytes": d.total_memory} for d in devices],
            "cuda": torch.version.cuda,
        },
        "threads": torch.get_num_threads(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLE.match(name) and not _SECRET.search(name)
        },
        "packages": {"fidgpt": __version__}
        | {name: version for name, _, version in sorted(versions)},
        "git": {"commit": _git("rev-parse", "HEAD"), "changes": _git("status", "--porcelain")},
    }


def uncommitted() -> str | None:
    """Return what turns the commit into the code that runs, for `git apply`; None if nothing does.

    Files that git does not know are not in it; `changes` in environment.json names them.
    """
    text = _git("diff", "HEAD", "--binary")
    return f"{text}\n" if text else None


def _git(*command: str) -> str | None:
    """Return what git prints about the checkout that this code runs from; None if it is none."""
    whole = ["git", "-C", str(Path(__file__).resolve().parent), *command]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None


def new_run(
    cfg: fdl.Config | Resolved,
    *,
    directives: Sequence[str],
    path: str | None,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """Return the directory of a new run, with what one needs to understand and repeat it.

    Args:
      cfg: the graph, or the graph resolved.
      directives: what made it.
      path: the directory; None for `runs/NAME-TIME`.
      allowed: packages of the user's whose callables the config may name.
      flags: what every command about the run needs, such as `--allow=lab`.

    Raises:
      ConfigError: the config cannot be written to a file and read again.
    """
    resolved = Resolved.of(cfg)
    recorded = {"fingerprint": graph.fingerprint(resolved)} | redacted_value(surroundings())
    changes = uncommitted()
    texts = _texts_of(resolved, allowed, flags) | {
        "command.txt": shlex.join([sys.executable, *sys.argv]) + "\n",
        "environment.json": json.dumps(recorded, indent=1) + "\n",
        **({"changes.patch": changes} if changes else {}),
    }
    named = f"{name_of_base(directives)}-{time.strftime('%Y%m%d-%H%M%S')}"
    return RunDirectory(
        Path(path) if path else Path("runs") / named,
        texts=texts,
        identity=_identity(resolved),
        may_move=path is None,
    )


def is_as_begun(path: Path, cfg: fdl.Config) -> bool:
    """Return whether a run's config is the one that it began with, or was changed by commands.

    Args:
      path: the directory of the run; one that has no record of its beginning is as begun.
      cfg: the config that it holds.
    """
    begun = read_json(path / "environment.json").get("fingerprint")
    if begun is None or RunDirectory(path, texts={}).has_changed:
        return True
    return begun == graph.fingerprint(cfg)


def resumed_run(
    path: Path,
    old: fdl.Config,
    cfg: fdl.Config | Resolved,
    *,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """Return the directory of a run that resumes with `cfg` where it had `old` so far.

    The rest is as for `new_run`.

    Raises:
      ConfigErrors: something differs that may not change in a run.
      ConfigError: the new config cannot be written to a file and read again.
    """
    resolved = Resolved.of(cfg)
    changes = [
        {"path": row.change.path, "change": row.change.detail, "kind": row.permission.name.lower()}
        for row in allowed_changes(old, resolved.root)
    ]
    texts = _texts_of(resolved, allowed, flags) if changes else {}
    return RunDirectory(path, texts=texts, changes=changes, identity=_identity(resolved))


def _texts_of(resolved: Resolved, allowed: tuple[str, ...], flags: Sequence[str]) -> dict[str, str]:
    """Return the files of a config, having made sure that they can be read again."""
    text = graph.dump(resolved)
    again = graph.load(text, source="the config", allowed=allowed)
    if _unbound_fingerprint(again) != _unbound_fingerprint(resolved.root):
        lines = graph.diff_text(graph.diff(resolved, again)) or "in ways no difference shows"
        raise ConfigError(f"the config differs after saving and loading:\n  {lines}")
    files = {"config.json": text, "provenance.json": dump_provenance(resolved.root)}
    return files | ({FLAGS_FILE: "".join(f"{flag}\n" for flag in flags)} if flags else {})


def _unbound_fingerprint(root: fdl.Config) -> str:
    return BoundGraph(root, bound=False).fingerprint()


def _identity(resolved: Resolved) -> dict[str, str]:
    """Return what all processes of a run must have in common: a text for each value's path."""
    return {row.path: row.text for row in rows(resolved, defaults=True) if row.text}


def name_of_base(directives: Sequence[str]) -> str:
    """Return the name of the config that directives begin with, for the name of a directory."""
    kind, rest = split_directive(directives[0]) if directives else ("", "")
    if kind == "config_file":
        path = Path(rest).expanduser().resolve()
        return (path if path.is_dir() else path.parent).name or "config"
    if kind == "yaml":
        return Path(rest).stem or DEFAULT_CONFIG
    return rest.partition("(")[0].strip() if kind == "config" else DEFAULT_CONFIG


def load_run(path: Path, *, allowed: tuple[str, ...] = ()) -> fdl.Config:
    """Return the graph of a run, from its directory.

    Args:
      path: the directory.
      allowed: packages of the user's whose callables the config may name.

    Raises:
      RunError: there is no run.
      ConfigError: its config cannot be read.
    """
    file = str(path / "config.json")
    try:
        text = read_text(file)[1]
    except UnreadableFile as error:
        raise RunError(f"{path} holds no run: {error}") from None
    with attributed_to(file):
        cfg = load_and_warn(text, source=file, allowed=allowed)
    return with_history(cfg, file)
