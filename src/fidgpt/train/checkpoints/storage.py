"""How checkpoints, and the files of their run, lie in storage that fsspec knows."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fidgpt.train.checkpoints import manifest

# What a run is known by: written as it begins, with the time, and never again.
IDENTITY = ("command.txt", "environment.json")
_RUN = "run"  # in the folder of a copy: the files of the run directory as they were then


class Storage:
    """A folder of copies of checkpoints. What its methods raise is the storage's own.

    Args:
      url: of the folder, which need not be there yet.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # late: few runs have a mirror

        found: tuple[Any, str] = url_to_fs(url)
        self._system, root = found
        self._root = root.rstrip("/")

    def complete(self) -> set[int]:
        """Steps whose copies are whole."""
        return {
            step
            for step in self._begun()
            if self._system.exists(f"{self._folder(step)}/{manifest.MANIFEST}")
        }

    def cut_short(self) -> set[int]:
        """Steps of which there is a part of a copy: what was being sent as something broke."""
        return self._begun() - self.complete()

    def read_manifest(self, step: int) -> dict[str, Any]:
        """What the manifest of a copy says; nothing where it is damaged."""
        return manifest.parsed(self._system.cat_file(f"{self._folder(step)}/{manifest.MANIFEST}"))

    def send(self, path: Path, step: int, *, run: Path) -> None:
        """Copies the checkpoint at `path` with the files of its run; its manifest comes last."""
        self.remove(step)
        target = self._folder(step)
        self._system.makedirs(f"{target}/{_RUN}", exist_ok=True)
        for file in sorted(run.iterdir()):
            if file.is_file() and not file.name.startswith("."):
                self._system.put_file(str(file), f"{target}/{_RUN}/{file.name}")
        names = sorted(file.name for file in path.iterdir() if file.name != manifest.MANIFEST)
        for name in [*names, manifest.MANIFEST]:
            self._system.put_file(str(path / name), f"{target}/{name}")

    def receive(self, step: int, folder: Path) -> None:
        """Copies the files of a checkpoint into a folder."""
        for path in self._system.ls(self._folder(step), detail=False):
            if _name(path) != _RUN:
                self._system.get_file(path, str(folder / _name(path)))

    def remove(self, step: int) -> None:
        """Deletes a copy; what is cut short leaves none."""
        target = self._folder(step)
        if self._system.exists(f"{target}/{manifest.MANIFEST}"):
            self._system.rm_file(f"{target}/{manifest.MANIFEST}")
        if self._system.exists(target):
            self._system.rm(target, recursive=True)

    def run_files(self, step: int, *, names: Collection[str] | None = None) -> dict[str, bytes]:
        """The files of the run beside the copy of a step, by name: all of them, or some."""
        folder = f"{self._folder(step)}/{_RUN}"
        if not self._system.exists(folder):
            return {}
        paths = {_name(path): path for path in self._system.ls(folder, detail=False)}
        return {
            name: self._system.cat_file(path)
            for name, path in paths.items()
            if names is None or name in names
        }

    def _begun(self) -> set[int]:
        """Steps of which there is anything; asked anew, because others write there too."""
        if not self._system.exists(self._root):
            return set()
        self._system.invalidate_cache()
        names = map(_name, self._system.ls(self._root, detail=False))
        return {int(name.removeprefix("step_")) for name in names if manifest.is_canonical(name)}

    def _folder(self, step: int) -> str:
        return f"{self._root}/{manifest.name_of(step)}"


def is_same_run(directory: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether what lies beside a copy is of the run in a directory."""
    here = {name: directory / name for name in IDENTITY}
    return all(
        contents.get(name) == (path.read_bytes() if path.is_file() else None)
        for name, path in here.items()
    )


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
