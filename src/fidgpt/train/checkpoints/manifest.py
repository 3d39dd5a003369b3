"""The manifest of a checkpoint and its files."""

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from fidgpt.files import (
    atomic_path,
    is_inside,
    parse_json,
    read_bytes,
    remove_whole,
    sha256_of,
    sync,
)
from fidgpt.processes.heartbeat import advance
from fidgpt.train.run_directory import RUN_ID, RunError, cannot_write, resume_flag

__all__ = ["CheckpointError"]


class CheckpointError(ValueError):
    """A checkpoint cannot be written, found, trusted or restored; the message has the remedy."""


@contextlib.contextmanager
def explained(final: Path, size: int = 0) -> Iterator[None]:
    """Turn errors of the file system into CheckpointError.

    Args:
        final: the directory of the checkpoint.
        size: bytes to be written, if that is known.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{cannot_write(final, error, run=final.parent.parent, size=size)}\n"
            "No partial checkpoint is left, and earlier checkpoints are unchanged."
        ) from error


@contextlib.contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn errors from reading a checkpoint, or content not as saved, into CheckpointError."""
    try:
        yield
    except (CheckpointError, RunError):
        raise
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r:.200}.") from error


def create_folder(folder: Path) -> None:
    """Create the run's folder if possible; otherwise writing there reports the error."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def publishing(final: Path) -> Iterator[Path]:
    """Context with a new directory, which takes the name `final` after the block.

    A checkpoint that is there already, such as a damaged one, is deleted just before. A run's
    folder that was removed while a background save was waiting is not created again.
    """
    final.parent.mkdir(exist_ok=True)
    sync(final.parent.parent)
    with atomic_path(final) as draft:
        draft.mkdir()
        yield draft
        sync(draft)
        if final.exists():
            discard(final)
    sync(final.parent)


def discard(path: Path) -> None:
    """Delete a checkpoint atomically; one with other files in it is kept as `kept-...`."""
    if not all(map(is_own, os.listdir(path))):
        kept = (path.with_name(f"kept-{path.name}{n or ''}") for n in itertools.count())
        os.rename(path, next(free for free in kept if not free.exists()))
        return
    remove_whole(path)
    advance()


def json_bytes(value: object) -> bytes:
    """Encode a value so that equal values are equal bytes."""
    return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


# Why a checkpoint was saved.
REGULAR, PERMANENT, BEST, TEMPORARY_SAVE = "regular", "permanent", "best", "temporary"
IN_MEMORY = "in memory"
FORMAT = 2  # 1 had one file for all tensors of a section
MANIFEST = "manifest.json"
MODEL = ("model", "state")
ALL = (*MODEL, "optimizer", "stateful")

Seals = dict[str, dict[str, Any]]  # size and checksum of each file


def name_of(step: int) -> str:
    """Return the name of a step's directory; with eight digits, names sort by step."""
    return f"step_{step:08d}"


def run_in(directory: Path) -> str:
    """Return the identity of the run in a directory; "" if it has none."""
    path = directory / RUN_ID
    return read_bytes(path).decode().strip() if path.is_file() else ""


def folder_of(directory: Path) -> Path:
    """Return the folder of checkpoints of a run."""
    return directory / "checkpoints"


def seal(path: Path, names: Iterable[str]) -> Seals:
    """Sync finished files of a checkpoint; return their sizes and checksums."""

    def sealed(name: str) -> tuple[str, dict[str, Any]]:
        sync(path / name)
        advance()
        return name, {"bytes": (path / name).stat().st_size, "sha256": sha256_of(path / name)}

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(sealed, names))


def write_manifest(path: Path, *, step: int, files: Seals, notes: Mapping[str, Any]) -> None:
    """Write the manifest: step, files, and notes of plain values."""
    body = {"format": FORMAT, "step": step, **notes, "files": dict(sorted(files.items()))}
    (path / MANIFEST).write_bytes(json_bytes(_signed(body)))
    sync(path / MANIFEST)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; empty if it cannot be read."""
    try:
        return parsed(read_bytes(path / MANIFEST))
    except OSError:
        return {}


def parsed(written: bytes) -> dict[str, Any]:
    """Parse the bytes of a manifest; empty if they are damaged, or name files of other folders."""
    try:
        read: Any = parse_json(written)
    except ValueError:
        return {}
    files = read.get("files", {}) if isinstance(read, dict) else None
    if not isinstance(files, dict) or not all(map(is_inside, files)):
        return {}
    return read


class Saved(NamedTuple):
    """A checkpoint as a policy sees it.

    Attributes:
        step: after which it was saved.
        reasons: why it was saved; not recorded by old versions.
        metrics: at this step, as far as a policy needs them.
    """

    step: int
    reasons: Sequence[str] = (REGULAR,)
    metrics: Mapping[str, float] = {}

    @classmethod
    def of(cls, step: int, notes: Mapping[str, Any]) -> "Saved":
        """Return a checkpoint as its manifest describes it."""
        return cls(step, notes.get("reasons", (REGULAR,)), notes.get("metrics", {}))


def files_of(path: Path, section: str) -> list[Path]:
    """Return the tensors of a section of a good checkpoint, a file for each process that wrote."""
    written = parsed(read_bytes(path / MANIFEST)).get("files", {})
    names = [name for name in written if name.endswith(".safetensors")]
    return [path / name for name in names if _section(name) == section]


def find(directory: Path) -> dict[int, Path]:
    """Return the checkpoints of a run by step, oldest first, good or not."""
    folder = folder_of(directory)
    paths = folder.iterdir() if folder.is_dir() else ()
    return dict(sorted((int(p.name[5:]), p) for p in paths if is_canonical(p.name)))


def abandon_after(checkpoints: dict[int, Path], step: int) -> dict[int, Path]:
    """Rename checkpoints after `step` to `abandoned-...`; return the others."""
    for later in [other for other in checkpoints if other > step]:
        path = checkpoints.pop(later)
        abandoned = path.with_name(f"abandoned-{path.name}")
        if abandoned.exists():
            discard(abandoned)
        os.rename(path, abandoned)
    return checkpoints


def newest_good(directory: Path, *, needed: Sequence[str] = ALL) -> int | None:
    """Return the newest step whose `needed` sections match the manifest; None if there is none."""
    newest_first = reversed(find(directory).items())
    return next((step for step, path in newest_first if refusal(path, needed) is None), None)


def choose(
    directory: Path, step: int | None, needed: Sequence[str], *, take: str = "--step={}"
) -> Path:
    """Return the path of the checkpoint of `step`, or of the newest (None), if it is good.

    Args:
        directory: of the run.
        step: of the checkpoint.
        needed: sections that will be read.
        take: the flag for another step, if only the model is read.

    Raises:
        CheckpointError: it is missing, damaged or another run's; the message names the newest good
            one.
    """
    folder, checkpoints = folder_of(directory), find(directory)
    if not checkpoints:
        raise CheckpointError(
            f"{folder} holds no checkpoint: nothing was saved yet. {resume_flag(directory)} starts "
            "with the first step."
        )
    elif step is not None and step not in checkpoints:
        trouble = f"{folder} holds no step {step}; it holds {', '.join(map(str, checkpoints))}."
    else:
        path = checkpoints[max(checkpoints) if step is None else step]
        if (reason := refusal(path, needed)) is None:
            return path
        trouble = f"{path} {reason}"
    raise CheckpointError(f"{trouble}\n{_offer(directory, needed, take)}")


def refusal(path: Path, needed: Sequence[str] = ALL) -> str | None:
    """Return why the run that holds a checkpoint does not take it, as `damage` does."""
    saved_by, run = read_manifest(path).get("run"), run_in(path.parent.parent)
    if saved_by and run and saved_by != run:
        return (
            f"was saved by another run than that of {path.parent.parent}: remove it, or begin a "
            "new run with its weights, by --config='fiddler:initialize_from(path=...)'."
        )
    return damage(path, needed)


def damage(path: Path, needed: Sequence[str] = ALL) -> str | None:
    """Return why a checkpoint is refused, as the rest of a sentence; None for a good one."""
    try:
        written = read_bytes(path / MANIFEST)
        manifest = parsed(written)
        if json_bytes(_signed(manifest)) != written:
            return f"is damaged: {MANIFEST} does not match its own checksum."
        if path.name != name_of(manifest["step"]):
            return f"holds step {manifest['step']} by its {MANIFEST}: rename or remove it."
        names = [name for name in manifest["files"] if _section(name) in needed]
        with ThreadPoolExecutor() as pool:
            hashes = pool.map(lambda name: sha256_of(path / name), names)
            for name, digest in zip(names, hashes, strict=True):
                if digest != (expected := manifest["files"][name]["sha256"]):
                    return f"is damaged: {name} has sha256 {digest[:12]}, not {expected[:12]}."
    except OSError as error:
        name = Path(error.filename or MANIFEST).name
        return f"is damaged: {name} cannot be read ({error.strerror})."
    except (ValueError, KeyError, TypeError):
        return f"is damaged: {MANIFEST} cannot be parsed."
    return None


def is_own(name: str) -> bool:
    """Return whether a file of a checkpoint has that name."""
    return name == MANIFEST or _section(name) in ALL


def _section(name: str) -> str:
    return re.split(r"[-.]", name, maxsplit=1)[0]


def is_canonical(name: str) -> bool:
    """Return whether a name is what `name_of` returns for some step."""
    return bool(re.fullmatch(r"step_\d+", name)) and name == name_of(int(name[5:]))


def _offer(directory: Path, needed: Sequence[str], take: str) -> str:
    good = newest_good(directory, needed=needed)
    if good is None:
        return "No good checkpoint is left: start the run again."
    if needed == MODEL:
        return f"The newest good checkpoint is step {good}: use it with {take.format(good)}"
    command = f"{resume_flag(directory)} --resume_step={good}"
    return f"The newest good checkpoint is step {good}: resume from it with {command}"


def _signed(manifest: dict[str, Any]) -> dict[str, Any]:
    # The manifest has a checksum of its own, so that a byte altered in it is noticed as well.
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return body | {"sha256": hashlib.sha256(json_bytes(body)).hexdigest()}
