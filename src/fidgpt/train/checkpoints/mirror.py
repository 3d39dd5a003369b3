"""Copies of checkpoints in other storage."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fidgpt.files import check_url
from fidgpt.processes.heartbeat import advance
from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.manifest import CheckpointError, Saved
from fidgpt.train.run_directory import RUN_ID, RunDirectory, RunError, print_stderr

__all__ = ["Mirror"]

CLAIM = "fidgpt-mirror.json"  # in the folder: the run that it belongs to
_RUN = "run"  # in the folder of a copy: the files of the run directory at that time
Retention = Callable[[Sequence[Saved]], set[int]]


class _Storage:
    """A folder of copies of checkpoints, which need not exist yet; raises the storage's errors.

    It belongs to the run that its claim names. Only files of checkpoints are ever deleted.

    Attributes:
      steps: whose copies were begun.
      complete: whose copies are whole.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # late: few runs have a mirror

        check_url(url)
        opened: tuple[Any, str] = url_to_fs(url)
        self._url = url
        self._system, root = opened
        self._root = root.rstrip("/")
        self._system.invalidate_cache()  # others write there too
        self._all = self._names(self._root)
        self.steps = {
            int(name.removeprefix("step_")) for name in self._all if manifest.is_canonical(name)
        }
        self.complete = {
            step
            for step in self.steps
            if self._system.exists(f"{self._folder(step)}/{manifest.MANIFEST}")
        }

    def claim(self, run: str, directory: Path) -> None:
        """Claim the folder for a run, unless the run has claimed it already.

        Args:
            run: its identity.
            directory: of the run; one that was lost before its first copy begins again there.

        Raises:
            CheckpointError: it belongs to another run, or holds what no run has written.
        """
        owner: dict[str, str] = {}
        if CLAIM in self._all:
            owner = manifest.parsed(self._system.cat_file(f"{self._root}/{CLAIM}"))
        if owner and owner["run"] == run:
            return
        path = str(directory.resolve())
        if owner and (self.complete or owner["directory"] != path):
            newest = f", up to step {max(self.complete)}" if self.complete else ""
            raise CheckpointError(
                f"{self._url} is the mirror of {owner['directory']}{newest}, and {path} is another "
                "run: name a folder for this run alone, with "
                "--config='fiddler:mirror_checkpoints(url=...)', or resume that run: "
                f"{shlex.quote(f'--resume={self._url}')} --run_dir=DIRECTORY"
            )
        if self._all and not owner:
            listed = ", ".join(sorted(self._all)[:3])
            raise CheckpointError(
                f"{self._url} holds other files ({listed}): name an empty folder, for this run "
                "alone, with --config='fiddler:mirror_checkpoints(url=...)'."
            )
        self._system.makedirs(self._root, exist_ok=True)
        content = manifest.json_bytes({"run": run, "directory": path})
        self._system.pipe_file(f"{self._root}/{CLAIM}", content)

    def read_manifest(self, step: int) -> dict[str, Any]:
        """Return the manifest of a copy; empty if it is damaged."""
        return manifest.parsed(self._system.cat_file(f"{self._folder(step)}/{manifest.MANIFEST}"))

    def send(self, path: Path, step: int, *, run: Path) -> None:
        """Copy the checkpoint at `path` with the files of its run, the manifest last."""
        self.remove(step)
        target = self._folder(step)
        names = sorted(file.name for file in path.iterdir() if file.name != manifest.MANIFEST)
        self._system.makedirs(f"{target}/{_RUN}", exist_ok=True)
        for file in sorted(run.iterdir()):
            if file.is_file() and not file.name.startswith("."):
                self._put(file, f"{target}/{_RUN}/{file.name}")
        for name in [*names, manifest.MANIFEST]:
            self._put(path / name, f"{target}/{name}")

    def _put(self, path: Path, target: str) -> None:
        """Copy a file, for which the other processes wait as long as parts of it arrive."""
        self._system.put_file(str(path), target, callback=_progress())
        advance()

    def receive(self, step: int, folder: Path) -> None:
        """Copy the files of a checkpoint into a folder, as far as they are there."""
        for name in {manifest.MANIFEST, *self.read_manifest(step).get("files", ())}:
            source = f"{self._folder(step)}/{name}"
            with contextlib.suppress(FileNotFoundError):
                self._system.get_file(source, str(folder / name), callback=_progress())
            advance()

    def remove(self, step: int) -> None:
        """Delete the files of a copy, the manifest first."""
        target = self._folder(step)
        own = sorted(filter(manifest.is_own, self._names(target)))
        names = [*own, *(f"{_RUN}/{name}" for name in sorted(self._names(f"{target}/{_RUN}")))]
        for name in sorted(names, key=lambda name: name != manifest.MANIFEST):
            self._system.rm_file(f"{target}/{name}")
        for folder in (f"{target}/{_RUN}", target):
            with contextlib.suppress(Exception):  # storage without folders, or it holds more
                self._system.rmdir(folder)

    def run_files(self) -> dict[str, bytes]:
        """Return the files of the run by name, stored with the newest copy; empty without one."""
        if not self.complete:
            return {}
        folder = f"{self._folder(max(self.complete))}/{_RUN}"
        return {name: self._system.cat_file(f"{folder}/{name}") for name in self._names(folder)}

    def _names(self, folder: str) -> set[str]:
        try:
            paths = self._system.ls(folder, detail=False)
        except FileNotFoundError:
            return set()
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def _folder(self, step: int) -> str:
        return f"{self._root}/{manifest.name_of(step)}"


class Mirror:
    """Copies each finished checkpoint to a URL, and restores a run whose disk was lost.

    The folder must be empty at first; a file in it then names the run that it belongs to. A copy is
    complete or absent: its manifest is written last and deleted first. The files of the
    run directory are stored with it, so that a copy is enough to resume. The same retention rule
    applies on the disk and in the mirror, also to copies whose originals are lost. A failed copy is
    reported and retried with the next checkpoint; training continues. One process copies, so it
    must see all files of a checkpoint.

    Args:
        url: a folder for this run alone, such as `gs://bucket/runs/first` or `s3://...`: any URL
            of fsspec; `gcsfs` or `s3fs` may have to be installed.
    """

    SENDS: ClassVar[Mapping[str, str]] = {"url": "checkpoints"}

    def __init__(self, url: str) -> None:
        if "://" not in url and not url.startswith(("/", "~")):
            raise ValueError(f"{url=} must be a URL, such as gs://bucket/run, or an absolute path.")
        self.url = url
        self._missed: Callable[[], None] | None = None  # repeats a failed `update`

    def require_present(self) -> None:
        """Raise CheckpointError if the package of the storage is not installed."""
        import fsspec.utils  # late: few runs have a mirror

        with self._naming("checkpoints cannot be copied to"):
            fsspec.get_filesystem_class(fsspec.utils.get_protocol(self.url))

    def claim(self, draft: Path, *, directory: Path) -> None:
        """Make the folder belong to a new run.

        Args:
            draft: the folder with the files of the run.
            directory: the name that it will have.

        Raises:
            CheckpointError: the storage cannot be reached, is not empty, or is another run's.
        """
        with self._naming("checkpoints cannot be copied to"):
            _Storage(self.url).claim(manifest.run_in(draft), directory)

    def update(self, directory: Path, *, retained: Retention, step: int) -> None:
        """Update the copies to match the run `directory`, now that `step` was saved.

        Args:
            directory: of the run.
            retained: returns which of the steps, local or copied, to keep.
            step: the newest; later copies are of steps that the run has abandoned.
        """
        try:
            storage, here = self._own_copies(directory), manifest.find(directory)
            notes = {step: manifest.read_manifest(path) for step, path in here.items()}
            for other in storage.complete - here.keys():
                if other <= step:
                    notes[other] = storage.read_manifest(other)
            kept_steps = retained([Saved.of(*note) for note in notes.items()])
            for other in sorted(kept_steps & here.keys()):
                if other not in storage.complete or other == step:
                    storage.send(here[other], other, run=directory)
            for other in sorted(storage.steps - kept_steps):
                storage.remove(other)
            self._missed = None
        except Exception as error:  # every kind of storage has its own
            print_stderr(
                f"warning: step {step} was not copied to {self.url} ({_line(error)}); it is "
                f"complete in {directory}, and copying is retried with the next checkpoint."
            )
            self._missed = partial(self.update, directory, retained=retained, step=step)

    def retry(self) -> None:
        """Retry the last copy of a run if it failed, since no other checkpoint follows."""
        if self._missed is not None:
            self._missed()

    def fetch(self, directory: Path, *, step: int | None) -> None:
        """Copy a checkpoint, by default the newest, into a run `directory` that lacks a good one.

        Where the copy is damaged, earlier ones follow until one is good, which a resumption then
        names.

        Raises:
            CheckpointError: the copies belong to another run, the storage cannot be read, or the
                disk cannot be written.
        """
        here = manifest.find(directory)
        wanted = max(here, default=None) if step is None else step
        if wanted in here and manifest.damage(here[wanted]) is None:
            return
        with self._naming("no checkpoint can be copied from"):
            storage = self._own_copies(directory)
            wanted = max(storage.complete, default=None) if wanted is None else wanted
            earlier = sorted(storage.complete - here.keys() - {wanted}, reverse=True)
            if step is not None and step not in here.keys() | storage.complete:
                return  # which a resumption answers
            for each in [wanted, *earlier]:
                if each in storage.complete and self._receive(storage, each, directory):
                    return

    def _receive(self, storage: _Storage, step: int, directory: Path) -> bool:
        """Copy the checkpoint of a step into a run; return whether the copy is good."""
        final = manifest.folder_of(directory) / manifest.name_of(step)
        manifest.create_folder(directory)
        with manifest.publishing(final) as draft:
            storage.receive(step, draft)
        return manifest.damage(final) is None

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
            contents = _Storage(self.url).run_files()
        if not contents:
            raise CheckpointError(
                f"{self.url} holds no copy of a run: name the folder of the run's "
                "checkpoints.mirror."
            )

        def fill(folder: Path) -> None:
            for name, content in contents.items():
                (folder / name).write_bytes(content)

        try:
            RunDirectory(directory, texts={}).create(fill=fill)
        except RunError:
            if not os.path.lexists(directory):  # it exists already, or another process was faster
                raise
        if manifest.run_in(directory) != contents.get(RUN_ID, b"").decode().strip():
            raise CheckpointError(
                f"{directory} exists already, and is not the run that was copied to {self.url}: "
                "name another --run_dir."
            )

    def _own_copies(self, directory: Path) -> _Storage:
        """Return the storage of the run `directory`, whose claim is checked every time.

        Raises:
            CheckpointError: it belongs to another run, or holds something else.
        """
        storage = _Storage(self.url)
        storage.claim(manifest.run_in(directory), directory)
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


def _progress() -> Any:
    """Return what storage calls after each part of a file."""
    from fsspec.callbacks import Callback  # late: few runs have a mirror

    return Callback(hooks={"advance": lambda *size, **value: advance()})


def _line(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
