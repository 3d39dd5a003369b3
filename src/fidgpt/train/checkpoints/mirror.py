"""A second copy of the checkpoints of a run, in storage that is reached by a URL."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fidgpt.train.checkpoints import files, manifest
from fidgpt.train.checkpoints.files import CheckpointError


class Mirror:
    """Copies each finished checkpoint to a URL, and brings one back where the disk was lost.

    A copy is complete or it does not exist there either: its manifest is written last and deleted
    first. What is dropped here is dropped there. A copy that fails is said and tried again with the
    next checkpoint, because the one on the disk is whole; training does not end for it. One process
    copies, so all files of a checkpoint must lie where it sees them.

    Args:
        url: a folder for this run alone, such as `gs://bucket/runs/first` or `s3://...`: anything
            that fsspec knows; `gcsfs` or `s3fs` may have to be installed.
        tell: hears of copies that failed; standard error unless said.
    """

    def __init__(self, url: str, *, tell: Callable[[str], object] | None = None) -> None:
        self.check_arguments(url=url)
        self.url = url
        self._tell = tell or _say

    @staticmethod
    def check_arguments(*, url: str) -> None:
        """Raises ValueError where a folder depends on where the command is given."""
        if "://" not in url and not url.startswith(("/", "~")):
            raise ValueError(f"{url=} must be a URL, such as gs://bucket/run, or a whole path.")

    def begin(self) -> None:
        """Sees that a new run can have its copies there, and that they delete nobody else's.

        Raises:
            CheckpointError: the storage cannot be reached, or holds checkpoints already.
        """
        try:
            there = self._complete(*self._opened())
        except Exception as error:  # every kind of storage has its own
            raise CheckpointError(
                f"checkpoints cannot be copied to {self.url} ({_words(error)}): see that it can "
                "be reached and that its package is installed, such as gcsfs or s3fs."
            ) from error
        if there:
            raise CheckpointError(
                f"{self.url} holds the checkpoints of a run up to step {max(there)}, which a new "
                "run would delete: name a folder for this run alone."
            )

    def follow(self, directory: Path, *, dropped: list[int], step: int) -> None:
        """Makes the copies what the run `directory` is, now that `step` was saved.

        Args:
            directory: the run's.
            dropped: steps whose checkpoints are gone.
            step: the newest; later copies are of steps that the run has left behind.
        """
        try:
            system, root = self._opened()
            there = self._complete(system, root)
            gone = {*dropped, *(other for other in there if other > step)}
            for other, path in manifest.find(directory).items():
                if other not in there or other == step:
                    _send(system, path, f"{root}/{manifest.name_of(other)}")
            for other in sorted(gone & there):
                _remove(system, f"{root}/{manifest.name_of(other)}")
        except Exception as error:  # every kind of storage has its own
            self._tell(
                f"warning: step {step} was not copied to {self.url} ({_words(error)}); it is whole "
                f"in {directory}, and the next checkpoint tries again."
            )

    def fetch(self, directory: Path, *, step: int | None) -> None:
        """Brings a checkpoint, the newest unless said, where the run `directory` has none.

        Raises:
            CheckpointError: the storage cannot be read, or the disk cannot be written.
        """
        here = manifest.find(directory)
        if (here and step is None) or step in here:
            return
        try:
            system, root = self._opened()
            there = self._complete(system, root)
            wanted = max(there, default=None) if step is None else step
            if wanted is None or wanted not in there:
                return
            final = manifest.folder_of(directory) / manifest.name_of(wanted)
            temporary = files.begin(final)
            try:
                for path in system.ls(f"{root}/{final.name}", detail=False):
                    system.get_file(path, str(temporary / path.rpartition("/")[2]))
                files.publish(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except Exception as error:  # every kind of storage has its own
            raise CheckpointError(
                f"no checkpoint can be brought from {self.url} ({_words(error)}): see that it can "
                "be read and that its package is installed, such as gcsfs or s3fs."
            ) from error

    def _opened(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # late: few runs have a mirror

        system, root = url_to_fs(self.url)
        return system, root.rstrip("/")

    @staticmethod
    def _complete(system: Any, root: str) -> set[int]:
        if not system.exists(root):
            return set()
        system.invalidate_cache()
        names = [path.rstrip("/").rpartition("/")[2] for path in system.ls(root, detail=False)]
        return {
            int(name.removeprefix("step_"))
            for name in names
            if manifest.is_canonical(name) and system.exists(f"{root}/{name}/{manifest.MANIFEST}")
        }


def _send(system: Any, path: Path, target: str) -> None:
    _remove(system, target)
    system.makedirs(target, exist_ok=True)
    names = sorted(file.name for file in path.iterdir() if file.name != manifest.MANIFEST)
    for name in [*names, manifest.MANIFEST]:
        system.put_file(str(path / name), f"{target}/{name}")


def _remove(system: Any, target: str) -> None:
    if system.exists(f"{target}/{manifest.MANIFEST}"):
        system.rm_file(f"{target}/{manifest.MANIFEST}")
    if system.exists(target):
        system.rm(target, recursive=True)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _say(line: str) -> None:
    print(line, file=sys.stderr)
