"""How checkpoints, and the files of their run, lie in storage that fsspec knows."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fidgpt.train.checkpoints import manifest

# What a run is known by: written as it begins, with the time, and never again.
IDENTITY = ("command.txt", "environment.json")
_RUN = "run"  # in the folder of a copy: the files of the run directory as they were then


def complete(system: Any, root: str) -> set[int]:
    """Steps whose copies are whole."""
    if not system.exists(root):
        return set()
    system.invalidate_cache()
    return {
        int(name.removeprefix("step_"))
        for name in map(_name, system.ls(root, detail=False))
        if manifest.is_canonical(name) and system.exists(f"{root}/{name}/{manifest.MANIFEST}")
    }


def cut_short(system: Any, root: str) -> set[int]:
    """Steps of which there is a part of a copy: what was being sent as something broke."""
    if not system.exists(root):
        return set()
    names = filter(manifest.is_canonical, map(_name, system.ls(root, detail=False)))
    return {int(name.removeprefix("step_")) for name in names} - complete(system, root)


def read_manifest(system: Any, root: str, step: int) -> dict[str, Any]:
    """What the manifest of a copy says; nothing where it is damaged."""
    return manifest.parsed(system.cat_file(f"{root}/{manifest.name_of(step)}/{manifest.MANIFEST}"))


def send(system: Any, path: Path, target: str, *, run: Path) -> None:
    """Copies the checkpoint at `path` with the files of its run; its manifest comes last."""
    remove(system, target)
    system.makedirs(f"{target}/{_RUN}", exist_ok=True)
    for file in sorted(run.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            system.put_file(str(file), f"{target}/{_RUN}/{file.name}")
    names = sorted(file.name for file in path.iterdir() if file.name != manifest.MANIFEST)
    for name in [*names, manifest.MANIFEST]:
        system.put_file(str(path / name), f"{target}/{name}")


def receive(system: Any, source: str, folder: Path) -> None:
    """Copies the files of a checkpoint into a folder."""
    for path in system.ls(source, detail=False):
        if _name(path) != _RUN:
            system.get_file(path, str(folder / _name(path)))


def remove(system: Any, target: str) -> None:
    """Deletes a copy; what is cut short leaves none."""
    if system.exists(f"{target}/{manifest.MANIFEST}"):
        system.rm_file(f"{target}/{manifest.MANIFEST}")
    if system.exists(target):
        system.rm(target, recursive=True)


def run_files(
    system: Any, root: str, step: int, *, names: Collection[str] | None = None
) -> dict[str, bytes]:
    """The files of the run beside the copy of a step, by name: all of them, or some."""
    folder = f"{root}/{manifest.name_of(step)}/{_RUN}"
    if not system.exists(folder):
        return {}
    paths = {_name(path): path for path in system.ls(folder, detail=False)}
    return {
        name: system.cat_file(path)
        for name, path in paths.items()
        if names is None or name in names
    }


def is_same_run(directory: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether what lies beside a copy is of the run in a directory."""
    here = {name: directory / name for name in IDENTITY}
    return all(
        contents.get(name) == (path.read_bytes() if path.is_file() else None)
        for name, path in here.items()
    )


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
