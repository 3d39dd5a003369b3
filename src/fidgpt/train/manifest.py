"""Which checkpoints a run directory holds, and whether one is what was written, by its manifest."""

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fidgpt.train.files import (
    REPLACED,
    CheckpointError,
    json_bytes,
    present,
    sha256_of,
    sync,
    write_json,
)
from fidgpt.train.run import resume_flag

FORMAT = 1
MANIFEST = "manifest.json"
MODEL_FILES = ("model.safetensors", "state.json")
ALL_FILES = (*MODEL_FILES, "optimizer.safetensors", "optimizer.json")


def name_of(step: int) -> str:
    """The name of a step's directory; eight digits, so that names sort as steps do."""
    return f"step_{step:08d}"


def folder_of(directory: Path) -> Path:
    """Where the run `directory` keeps its checkpoints."""
    return directory / "checkpoints"


def write_manifest(path: Path, *, step: int) -> None:
    """Syncs the files of a finished checkpoint and writes their sizes and checksums."""
    with ThreadPoolExecutor() as pool:
        seals = list(pool.map(lambda name: _seal(path / name), ALL_FILES))
    body = {"format": FORMAT, "step": step, "files": dict(zip(ALL_FILES, seals, strict=True))}
    write_json(path / MANIFEST, _signed(body))
    sync(path / MANIFEST)


def find(directory: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, oldest first, good or not."""
    found = {
        int(name.removeprefix("step_")): path
        for name, path in _entries(directory).items()
        if _is_canonical(name)
    }
    return dict(sorted(found.items()))


def newest_good(directory: Path, *, needed: tuple[str, ...] = ALL_FILES) -> int | None:
    """The newest step of a run whose `needed` files match their manifest; None without any."""
    newest_first = reversed(find(directory).items())
    return next((step for step, path in newest_first if damage(path, needed) is None), None)


def choose(directory: Path, step: int | None, needed: tuple[str, ...]) -> Path:
    """The checkpoint of `step`, or the newest (None), if it is good.

    Raises:
        CheckpointError: it is missing, damaged or oddly named; says so and offers the newest good.
    """
    folder, found = folder_of(directory), find(directory)
    odd = sorted(n for n in _entries(directory) if n.startswith("step_") and not _is_canonical(n))
    if step is None and odd:
        trouble = f"{folder / odd[0]} is not named like {name_of(100)}: rename it or move it away."
    elif not found:
        raise CheckpointError(
            f"{folder} holds no checkpoint: nothing was saved yet. {resume_flag(directory)} begins "
            "with the first step."
        )
    elif step is not None and step not in found:
        trouble = f"{folder} holds no step {step}; it holds {', '.join(map(str, found))}."
    else:
        path = found[max(found) if step is None else step]
        if (reason := damage(path, needed)) is None:
            return path
        trouble = f"{path} {reason}"
    raise CheckpointError(f"{trouble}\n{_offer(directory, needed)}")


def damage(path: Path, needed: tuple[str, ...] = ALL_FILES) -> str | None:
    """Why a checkpoint is refused, as the rest of a sentence; None for a good one."""
    try:
        written = (path / MANIFEST).read_bytes()
        manifest = json.loads(written)
        if manifest["format"] > FORMAT:
            return f"has format {manifest['format']}, this fidgpt reads {FORMAT}: update fidgpt."
        if json_bytes(_signed(manifest)) != written:
            return f"is damaged: {MANIFEST} does not match its own checksum."
        if path.name.removeprefix(REPLACED) != name_of(manifest["step"]):
            return f"holds step {manifest['step']} by its {MANIFEST}: rename or remove it."
        sizes = {name: (path / name).stat().st_size for name in needed}
        for name, size in sizes.items():
            if size != (expected := manifest["files"][name]["bytes"]):
                return f"is damaged: {name} has {size} bytes instead of {expected}."
        with ThreadPoolExecutor() as pool:
            hashes = pool.map(lambda name: sha256_of(path / name), needed)
            for name, found in zip(needed, hashes, strict=True):
                if found != (expected := manifest["files"][name]["sha256"]):
                    return f"is damaged: {name} has sha256 {found[:12]}, not {expected[:12]}."
    except OSError as error:
        name = Path(error.filename or MANIFEST).name
        return f"is damaged: {name} cannot be read ({error.strerror})."
    except (ValueError, KeyError, TypeError):
        return f"is damaged: {MANIFEST} cannot be parsed."
    return None


def _entries(directory: Path) -> dict[str, Path]:
    folder = folder_of(directory)
    return present(folder) if folder.is_dir() else {}


def _is_canonical(name: str) -> bool:
    return bool(re.fullmatch(r"step_\d+", name)) and name == name_of(int(name[5:]))


def _offer(directory: Path, needed: tuple[str, ...]) -> str:
    good = newest_good(directory, needed=needed)
    if good is None:
        return "No good checkpoint is left: start the run anew."
    if needed == MODEL_FILES:  # who reads the model alone goes on with nothing
        return f"The newest good checkpoint is step {good}: take it with --step={good}"
    command = f"{resume_flag(directory)} --resume_step={good}"
    return f"The newest good checkpoint is step {good}: go on from it with {command}"


def _seal(path: Path) -> dict[str, Any]:
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _signed(manifest: dict[str, Any]) -> dict[str, Any]:
    # The manifest has a checksum of its own, so that a byte altered in it is noticed as well.
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return body | {"sha256": hashlib.sha256(json_bytes(body)).hexdigest()}
