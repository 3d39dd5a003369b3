"""Where documents come from: the standard library of this Python, or the user's files."""

import fnmatch
import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from fidgpt.data.errors import DataError
from fidgpt.data.sources.readers import read_file
from fidgpt.data.sources.saved_datasets import is_text, require_one_split

_TESTS = {"test", "tests", "idle_test"}
_NOT_CODE = {"encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__"}


@runtime_checkable
class Source(Protocol):
    """Documents in an order that never changes, and a cheap word for which documents they are."""

    def documents(self) -> Iterator[str]:
        """The documents, none of them empty; may be called again and gives the same."""
        ...

    def identity(self) -> str:
        """A text that changes whenever the documents do; reads no contents."""
        ...


class StandardLibrary:
    """The source code of the standard library of the Python that runs, without its tests.

    About 10 MB in 600 documents, one a file, in the order of their paths. Left out are tables and
    manuals in the form of code (`encodings`, `pydoc_data`) and files that are not UTF-8.
    """

    def documents(self) -> Iterator[str]:
        """One document a file."""
        for path in self._files():
            try:
                text = path.read_bytes().decode("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            if text:
                yield text

    def identity(self) -> str:
        """The Python version, and the paths, sizes and times of the files."""
        root = Path(sysconfig.get_path("stdlib"))
        return f"stdlib {platform.python_version()} {_fingerprint(self._files(), root=root)}"

    def _files(self) -> list[Path]:
        root = Path(sysconfig.get_path("stdlib"))
        files = [path for path in _walk(root, skip=_TESTS | _NOT_CODE) if path.suffix == ".py"]
        if not files:
            raise DataError(
                f"This Python keeps no source code of its standard library in {root}.\n"
                "Train on text of your own: TextFiles(path), or --source PATH."
            )
        return files


class TextFiles:
    """A file of text, or a folder of such files, searched through in the order of their paths.

    `.jsonl` and `.ndjson` give one document a line, and so does `.json` whose first line is an
    object with `text_field`; `.parquet` and `.arrow` give one a row, from that field. Rows without
    text are left out. A split that Hugging Face's `save_to_disk` wrote is such a folder; what it
    says of itself is not read. Any other file is plain UTF-8 text: one document, or, beyond
    `document_chars` characters, several that are cut at line ends, so that a corpus of one large
    file can be split by document too. `.gz`, `.bz2`, `.lz4` and `.zst` are unpacked. Tables and
    all of these but `.gz` need the extra `fidgpt[parquet]`. In a folder, linked ones in it too,
    only files whose names match one of `patterns` are read; hidden and empty ones are not.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        text_field: str = "text",
        patterns: Sequence[str] = ("*",),
        document_chars: int = 64 * 1024,
    ) -> None:
        if document_chars < 1:
            raise DataError(f"document_chars={document_chars} must be at least 1.")
        self.path = path
        self.text_field = text_field
        self.patterns = tuple(patterns)
        self.document_chars = document_chars

    def documents(self) -> Iterator[str]:
        """The documents of each file in turn."""
        for path in self._files():
            for text in read_file(
                path, text_field=self.text_field, document_chars=self.document_chars
            ):
                if text:
                    yield text

    def identity(self) -> str:
        """The options, and the paths, sizes and times of the files."""
        files = self._files()
        root = Path(self.path).expanduser().resolve()
        options = f"{self.text_field} {self.document_chars}"
        return f"files {root} {options} {_fingerprint(files, root=root)}"

    def _files(self) -> list[Path]:
        if not str(self.path):
            raise DataError("The path of the text is empty.\nGive a file, or a folder of files.")
        try:
            return self._found()
        except (OSError, RuntimeError) as error:  # RuntimeError: an unknown ~user
            reason = getattr(error, "strerror", None) or str(error)
            place = getattr(error, "filename", None) or self.path
            raise DataError(
                f"{place} cannot be looked at: {reason}.\nGive a text, .jsonl or .parquet file, or "
                "a folder of them, that may be read."
            ) from error

    def _found(self) -> list[Path]:
        root = Path(self.path).expanduser()
        if root.is_dir():
            found = _walk(root, skip={"__pycache__"}, on_error=_give_up, follow=True)
            for path in found:
                require_one_split(path)
            files = [path for path in found if self._wanted(path)]
            if not files:
                raise DataError(
                    f"{root} is a folder without any text: no file in it that is not empty "
                    f"matches {' or '.join(self.patterns)}.\nCheck the path and the patterns."
                )
            return files
        if not root.exists():
            raise DataError(
                f"{root} does not exist (the current directory is {Path.cwd()}).\n"
                "Give a text, .jsonl or .parquet file, or a folder of them."
            )
        if not root.is_file():
            raise DataError(
                f"{root} is no file, and text is read twice.\nWrite the text to a file first."
            )
        if root.stat().st_size == 0:
            raise DataError(f"{root} is empty.\nGive a file with text in it.")
        return [root]

    def _wanted(self, path: Path) -> bool:
        matches = any(fnmatch.fnmatch(path.name, pattern) for pattern in self.patterns)
        return matches and path.stat().st_size > 0 and is_text(path)


def _give_up(error: OSError) -> None:
    raise error


def _walk(
    root: Path,
    *,
    skip: set[str],
    on_error: Callable[[OSError], None] | None = None,
    follow: bool = False,
) -> list[Path]:
    """All files below a folder that are not hidden, sorted by their path in it.

    A folder that cannot be read is left out, unless `on_error` raises. Where links are followed, a
    folder to which several lead is read once.
    """
    files, seen = [], set[str]()
    for folder, folders, names in os.walk(root, onerror=on_error, followlinks=follow):
        folders[:] = sorted(name for name in folders if name not in skip and name[0] != ".")
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        files += [Path(folder, name) for name in names if name[0] != "."]
    return sorted(
        (path for path in files if path.is_file()), key=lambda path: path.relative_to(root).parts
    )


def _fingerprint(files: Iterable[Path], *, root: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        name = os.path.relpath(path.resolve(), root)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()
