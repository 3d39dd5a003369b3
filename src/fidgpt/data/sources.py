"""Sources of documents: files of text, JSON lines and tables, and the standard library."""

import fnmatch
import gzip
import hashlib
import io
import json
import os
import platform
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fidgpt.data.datasets import is_text, read_table, require_one_split
from fidgpt.data.errors import DataError, import_extra

__all__ = ["Source", "StandardLibrary", "TextFiles"]


_BY_PYARROW = {".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd"}
_UNPACKED = {".gz", *_BY_PYARROW}
_UNSUPPORTED = {".7z", ".lzma", ".rar", ".tar", ".tgz", ".xz", ".zip"}


def kind_of(path: Path) -> str:
    """Return the lower-case suffix of a file without that of its compression."""
    inner = Path(path.stem) if path.suffix.lower() in _UNPACKED else path
    return inner.suffix.lower()


def open_unpacked(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file, decompressing it on the fly.

    Raises:
      DataError: its compression is not supported, or needs pyarrow, which is missing.
      OSError: it cannot be opened.
    """
    if kind_of(path) in _UNSUPPORTED:
        raise DataError(
            f"{path} is compressed; only {', '.join(sorted(_UNPACKED))} are supported.\n"
            "Unpack it first, or, if it is in a folder, exclude it: "
            'TextFiles(folder, patterns=["*.txt"]) or --pattern "*.txt".'
        )
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(path)
        case ".bz2" | ".lz4" | ".zst" as suffix:
            pyarrow = import_extra("pyarrow", extra="parquet", purpose=f"Unpacking {path}")
            stream = pyarrow.input_stream(str(path), compression=_BY_PYARROW[suffix])
            return io.BufferedReader(stream)
        case _:
            return path.open("rb")


_MAX_LINE_BYTES = 1 << 26  # what is longer is not a line of text


def read_file(path: Path, *, text_field: str, document_chars: int) -> Iterator[str]:
    """Yield the documents of a file, in the format of its suffix."""
    kind = kind_of(path)
    try:
        if kind in (".jsonl", ".ndjson") or (kind == ".json" and _has_lines(path, text_field)):
            yield from _read_json_lines(path, text_field=text_field)
        elif kind in (".parquet", ".arrow"):
            yield from read_table(path, text_field=text_field)
        else:
            yield from _read_text(path, document_chars=document_chars)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"Cannot read {path}: {reason}.\nCheck that the file is complete and readable."
        ) from error


def _read_text(path: Path, *, document_chars: int) -> Iterator[str]:
    """Yield the file in pieces that end at line ends, so that large files need little memory."""
    with io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", newline="") as file:
        try:
            while piece := file.read(document_chars):
                yield piece + file.readline(document_chars)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x})"
                f".\nConvert it, for example with `iconv -f latin1 -t utf-8`, or, if it is in a "
                'folder, exclude it: TextFiles(folder, patterns=["*.txt"]) or --pattern "*.txt".'
            ) from error


def _has_lines(path: Path, text_field: str) -> bool:
    """Return whether a JSON file has one object a line rather than one in all."""
    with open_unpacked(path) as file:
        first = file.readline(_MAX_LINE_BYTES)
    try:
        row: Any = json.loads(first.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and text_field in row


def _read_json_lines(path: Path, *, text_field: str) -> Iterator[str]:
    with open_unpacked(path) as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            try:
                row: Any = json.loads(line.decode("utf-8-sig")) if line.strip() else None
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{place} is not UTF-8 text ({error.reason}).\nConvert the file, for example "
                    "with `iconv -f latin1 -t utf-8`."
                ) from error
            except (json.JSONDecodeError, RecursionError) as error:
                raise DataError(
                    f"{place} is not JSON ({error}).\nEach line must be one object, such as "
                    f'{{"{text_field}": "..."}}.'
                ) from error
            if row is not None:
                yield _text_of(row, text_field=text_field, place=place)


def _text_of(row: Any, *, text_field: str, place: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(text_field, 0), str | None):
        held = f"the fields {', '.join(row)}" if isinstance(row, dict) else type(row).__name__
        raise DataError(
            f"{place} has no text in the field {text_field!r}; it holds {held}.\n"
            "Name the field with text_field=... (or --text_field)."
        )
    text = row[text_field] or ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place} holds half of a surrogate pair, which is not a character."
            "\nRemove that line, or write the whole character."
        ) from error
    return text


_TESTS = {"test", "tests", "idle_test"}
_NOT_CODE = {"encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__"}


@runtime_checkable
class Source(Protocol):
    """Documents in a fixed order, with a cheap identity."""

    def documents(self) -> Iterator[str]:
        """Yield the documents, none of them empty; every call yields the same."""
        ...

    def identity(self) -> str:
        """Return a string that changes whenever the documents do; reads no contents."""
        ...


class StandardLibrary:
    """The source code of the standard library of the running Python, without its tests.

    About 10 MB in 600 documents, one a file, in the order of their paths, without tables and
    manuals in the form of code (`encodings`, `pydoc_data`) and files that are not UTF-8.
    """

    def documents(self) -> Iterator[str]:
        """Yield one document a file."""
        for path in self._files():
            try:
                text = path.read_bytes().decode("utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            if text:
                yield text

    def identity(self) -> str:
        """Return the Python version, and a hash of the paths, sizes and times of the files."""
        root = Path(sysconfig.get_path("stdlib"))
        return f"stdlib {platform.python_version()} {_fingerprint(self._files(), root=root)}"

    def _files(self) -> list[Path]:
        root = Path(sysconfig.get_path("stdlib"))
        files = [path for path in _walk(root, skip=_TESTS | _NOT_CODE) if path.suffix == ".py"]
        if not files:
            raise DataError(
                f"This Python has no source code of its standard library in {root}.\n"
                "Train on other text: TextFiles(path), or --source PATH."
            )
        return files


class TextFiles:
    """A file of text, or a folder of such files in the order of their paths.

    `.jsonl` and `.ndjson` give one document a line, and so does `.json` whose first line is an
    object with `text_field`; `.parquet` and `.arrow` give one a row, from that field. Rows without
    text are skipped. A split that Hugging Face's `save_to_disk` wrote is such a folder; its
    metadata is skipped. Any other file is plain UTF-8 text: one document, or, beyond
    `document_chars` characters, several that are cut at line ends, so that a corpus of one large
    file can be split by document too. `.gz`, `.bz2`, `.lz4` and `.zst` are decompressed. Tables and
    all of these but `.gz` need the extra `fidgpt[parquet]`. In a folder, including linked folders,
    only files whose names match one of `patterns` are read; hidden and empty ones are skipped.
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
        """Yield the documents of each file in turn."""
        for path in self._files():
            for text in read_file(
                path, text_field=self.text_field, document_chars=self.document_chars
            ):
                if text:
                    yield text

    def identity(self) -> str:
        """Return the options, and a hash of the paths, sizes and times of the files."""
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
                f"{place} cannot be accessed: {reason}.\nGive a readable text, .jsonl or .parquet "
                "file, or a folder of them."
            ) from error

    def _found(self) -> list[Path]:
        root = Path(self.path).expanduser()
        if root.is_dir():
            found = _walk(root, skip={"__pycache__"}, on_error=_raise, follow=True)
            for path in found:
                require_one_split(path)
            files = [path for path in found if self._wanted(path)]
            if not files:
                raise DataError(
                    f"{root} is a folder without text: no file in it that is not empty "
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
                f"{root} is not a regular file, and text is read twice.\nWrite it to a file first."
            )
        if root.stat().st_size == 0:
            raise DataError(f"{root} is empty.\nGive a file with text in it.")
        return [root]

    def _wanted(self, path: Path) -> bool:
        matches = any(fnmatch.fnmatch(path.name, pattern) for pattern in self.patterns)
        return matches and path.stat().st_size > 0 and is_text(path)


def _raise(error: OSError) -> None:
    raise error


def _walk(
    root: Path,
    *,
    skip: set[str],
    on_error: Callable[[OSError], None] | None = None,
    follow: bool = False,
) -> list[Path]:
    """Return all files below a folder that are not hidden, sorted by their path in it.

    Unreadable folders are skipped, unless `on_error` raises. A folder is read once even if several
    links lead to it.
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
