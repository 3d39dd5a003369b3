"""Copies of checkpoints in other storage."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.manifest import CheckpointError, Saved
from fidgpt.train.run_directory import RunDirectory, RunError, print_stderr

__all__ = ["Mirror"]

# Files that identify a run: written once at its start, with the time.
IDENTITY = ("command.txt", "environment.json")
_RUN = "run"  # in the folder of a copy: the files of the run directory at that time
Retention = Callable[[Sequence[Saved]], set[int]]


class _Storage:
    """A folder of copies of checkpoints, which need not exist yet; raises the storage's errors."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # late: few runs have a mirror

        found: tuple[Any, str] = url_to_fs(url)
        self._system, root = found
        self._root = root.rstrip("/")
        begun: dict[int, set[str]] = {}
        if self._system.exists(self._root):
            self._system.invalidate_cache()  # others write there too
            for name in self._names(self._root):
                if manifest.is_canonical(name):
                    step = int(name.removeprefix("step_"))
                    begun[step] = self._names(self._folder(step))
        self.complete = {step for step, names in begun.items() if manifest.MANIFEST in names}
        self.cut_short = begun.keys() - self.complete

    def read_manifest(self, step: int) -> dict[str, Any]:
        """Return the manifest of a copy; empty if it is damaged."""
        return manifest.parsed(self._system.cat_file(f"{self._folder(step)}/{manifest.MANIFEST}"))

    def send(self, path: Path, step: int, *, run: Path) -> None:
        """Copy the checkpoint at `path` with the files of its run, the manifest last."""
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
        """Copy the files of a checkpoint into a folder."""
        for name in self._names(self._folder(step)) - {_RUN}:
            self._system.get_file(f"{self._folder(step)}/{name}", str(folder / name))

    def remove(self, step: int) -> None:
        """Delete a copy, the manifest first."""
        target = self._folder(step)
        if self._system.exists(f"{target}/{manifest.MANIFEST}"):
            self._system.rm_file(f"{target}/{manifest.MANIFEST}")
        if self._system.exists(target):
            self._system.rm(target, recursive=True)

    def run_files(self, *, names: Collection[str] | None = None) -> dict[str, bytes]:
        """Return files of the run stored with the newest copy, all or some, by name."""
        folder = f"{self._folder(max(self.complete))}/{_RUN}" if self.complete else ""
        if not folder or not self._system.exists(folder):
            return {}
        found = self._names(folder) if names is None else self._names(folder) & {*names}
        return {name: self._system.cat_file(f"{folder}/{name}") for name in found}

    def _names(self, folder: str) -> set[str]:
        paths = self._system.ls(folder, detail=False)
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def _folder(self, step: int) -> str:
        return f"{self._root}/{manifest.name_of(step)}"


def is_same_run(directory: Path, contents: Mapping[str, bytes]) -> bool:
    """Return whether the run files stored with a copy belong to the run in a directory."""
    here = {name: directory / name for name in IDENTITY}
    return all(
        contents.get(name) == (path.read_bytes() if path.is_file() else None)
        for name, path in here.items()
    )


class Mirror:
    """Copies each finished checkpoint to a URL, and restores a run whose disk was lost.

    A copy is complete or absent: its manifest is written last and deleted first. The files of the
    run directory are stored with it, so that a copy is enough to resume. The same retention rule
    applies on the disk and in the mirror, also to copies whose originals are lost. A failed copy is
    reported and retried with the next checkpoint; training continues. One process copies, so it
    must see all files of a checkpoint.

    Args:
        url: a folder for this run alone, such as `gs://bucket/runs/first` or `s3://...`: any URL
            of fsspec; `gcsfs` or `s3fs` may have to be installed.
    """

    REMOVED: ClassVar[Mapping[str, object]] = {"tell": None}

    def __init__(self, url: str) -> None:
        if "://" not in url and not url.startswith(("/", "~")):
            raise ValueError(f"{url=} must be a URL, such as gs://bucket/run, or an absolute path.")
        self.url = url
        self._is_own = False  # until it was checked
        # The arguments of a failed `update`.
        self._missed: tuple[Path, Retention, int] | None = None

    def require_free(self) -> None:
        """Check that a new run can have its copies there without deleting those of another.

        Raises:
            CheckpointError: the storage cannot be reached, or holds checkpoints already.
        """
        with self._naming("checkpoints cannot be copied to"):
            there = _Storage(self.url).complete
        if there:
            raise CheckpointError(
                f"{self.url} holds the checkpoints of a run up to step {max(there)}, which a new "
                "run would delete: name a folder for this run alone, or resume that run: "
                f"{shlex.quote(f'--resume={self.url}')} --run_dir=DIRECTORY"
            )
        self._is_own = True

    def update(self, directory: Path, *, retained: Retention, step: int) -> None:
        """Update the copies to match the run `directory`, now that `step` was saved.

        Args:
            directory: of the run.
            retained: returns which of the steps, local or copied, to keep.
            step: the newest; later copies are of steps that the run has abandoned.
        """
        try:
            storage, here = self._own_copies(directory), manifest.find(directory)
            notes = {one: manifest.read_manifest(path) for one, path in here.items()}
            for other in storage.complete - here.keys():
                if other <= step:
                    notes[other] = storage.read_manifest(other)
            kept_steps = retained([Saved.of(*one) for one in notes.items()])
            for other in sorted(kept_steps & here.keys()):
                if other not in storage.complete or other == step:
                    storage.send(here[other], other, run=directory)
            for other in sorted((storage.complete | storage.cut_short) - kept_steps):
                storage.remove(other)
            self._missed = None
        except Exception as error:  # every kind of storage has its own
            print_stderr(
                f"warning: step {step} was not copied to {self.url} ({_line(error)}); it is "
                f"complete in {directory}, and copying is retried with the next checkpoint."
            )
            self._missed = (directory, retained, step)

    def retry(self) -> None:
        """Retry the last copy of a run if it failed, since no other checkpoint follows."""
        if self._missed is not None:
            directory, retained, step = self._missed
            self.update(directory, retained=retained, step=step)

    def fetch(self, directory: Path, *, step: int | None) -> None:
        """Copy a checkpoint, by default the newest, into a run `directory` that lacks it.

        If no copy is needed, storage that cannot be reached is only reported.

        Raises:
            CheckpointError: the copies belong to another run, the storage cannot be read, or the
                disk cannot be written.
        """
        here = manifest.find(directory)
        if (here and step is None) or step in here:
            try:
                self._own_copies(directory)
            except CheckpointError:
                raise
            except Exception as error:  # every kind of storage has its own
                print_stderr(
                    f"warning: {self.url} cannot be reached ({_line(error)}); the next checkpoint "
                    "tries again."
                )
            return
        with self._naming("no checkpoint can be copied from"):
            storage = self._own_copies(directory)
            wanted = max(storage.complete, default=None) if step is None else step
            if wanted is None or wanted not in storage.complete:
                return
            final = manifest.folder_of(directory) / manifest.name_of(wanted)
            manifest.create_folder(directory)
            temporary = manifest.begin(final)
            try:
                storage.receive(wanted, temporary)
                manifest.publish(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def holds_run(self) -> bool:
        """Return whether there are copies of a run.

        Raises:
            CheckpointError: the storage cannot be read.
        """
        with self._naming("no run can be restored from"):
            return bool(_Storage(self.url).complete)

    def restore_run(self, directory: Path) -> None:
        """Restore the directory of the run from the newest copy, without its checkpoints.

        An existing directory of this run is left unchanged. Several processes may call this at
        once.

        Raises:
            CheckpointError: there is no copy, it cannot be read, or the directory belongs to
                another run.
            RunError: the directory cannot be created.
        """
        with self._naming("no run can be restored from"):
            storage = _Storage(self.url)
            contents = storage.run_files()
        if not contents:
            no_files = "checkpoints without the files of their run"
            kind = no_files if storage.complete else "no copy of a run"
            raise CheckpointError(
                f"{self.url} holds {kind}: name the folder of the run's checkpoints.mirror."
            )

        def fill(folder: Path) -> None:
            for name, content in contents.items():
                (folder / name).write_bytes(content)

        try:
            if not os.path.lexists(directory):
                RunDirectory(directory, texts={}).create(fill=fill)
        except RunError:
            if not os.path.lexists(directory):  # else another process was faster
                raise
        if not is_same_run(directory, contents):
            raise CheckpointError(
                f"{directory} exists already, and is not the run that was copied to {self.url}: "
                "name another --run_dir."
            )

    def _own_copies(self, directory: Path) -> _Storage:
        """Return the storage of the run `directory`.

        Raises:
            CheckpointError: it belongs to another run, and this one would delete its copies.
        """
        storage = _Storage(self.url)
        self._is_own = (
            self._is_own
            or not storage.complete
            or is_same_run(directory, storage.run_files(names=IDENTITY))
        )
        if not self._is_own:
            raise CheckpointError(
                f"{self.url} holds the checkpoints of another run than {directory}, up to step "
                f"{max(storage.complete)}, which this one would delete: name a folder for this run "
                "alone, with --config='fiddler:mirror_checkpoints(url=...)'."
            )
        return storage

    @contextlib.contextmanager
    def _naming(self, failure: str) -> Iterator[None]:
        """Turn errors of the storage into CheckpointError."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # every kind of storage has its own
            raise CheckpointError(
                f"{failure} {self.url} ({_line(error)}): check that it can be reached and that "
                "its package is installed, such as gcsfs or s3fs."
            ) from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
