"""Sources of text."""

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
from fidgpt.data.errors import DataError

_BY_PYARROW = {".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd"}
_UNPACKED = {".gz", *_BY_PYARROW}
_STRANGE = {".7z", ".lzma", ".rar", ".tar", ".tgz", ".xz", ".zip"}


def kind_of(path: Path) -> str:
    """The suffix of what a file holds once it is unpacked, in small letters."""
    inner = Path(path.stem) if path.suffix.lower() in _UNPACKED else path
    return inner.suffix.lower()


def open_unpacked(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """What a file holds, as it is read.

    Raises:
      DataError: it is packed in another way, or reading it needs pyarrow, which is missing.
      OSError: it cannot be opened.
    """
    if kind_of(path) in _STRANGE:
        raise DataError(
            f"{path} is packed, and only {', '.join(sorted(_UNPACKED))} are unpacked here.\n"
            "Unpack it first, or, if it lies in a folder, leave it out: "
            'TextFiles(folder, patterns=["*.txt"]) or --pattern "*.txt".'
        )
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(path)
        case ".bz2" | ".lz4" | ".zst" as suffix:
            return _open_by_pyarrow(path, _BY_PYARROW[suffix])
        case _:
            return path.open("rb")


def _open_by_pyarrow(path: Path, compression: str) -> io.BufferedReader:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f"{path} is packed, and unpacking it needs pyarrow, which is not installed.\n"
            'Install it with: pip install "fidgpt[parquet]"'
        ) from error
    return io.BufferedReader(pyarrow.input_stream(str(path), compression=compression))


_LONGEST_LINE = 1 << 26  # bytes; what is longer is no line of a text


def read_file(path: Path, *, text_field: str, document_chars: int) -> Iterator[str]:
    """The documents of a file, told apart by its suffix; what is packed is unpacked on the way."""
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
            f"Cannot read {path}: {reason}.\nCheck that the file is whole and may be read."
        ) from error


def _read_text(path: Path, *, document_chars: int) -> Iterator[str]:
    """The file in pieces that end at line ends, so that a large file never fills the memory."""
    with io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", newline="") as file:
        try:
            while piece := file.read(document_chars):
                yield piece + file.readline(document_chars)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x})"
                f".\nConvert it, for example with `iconv -f latin1 -t utf-8`, or, if it lies in a "
                'folder, leave it out: TextFiles(folder, patterns=["*.txt"]) or --pattern "*.txt".'
            ) from error


def _has_lines(path: Path, text_field: str) -> bool:
    """Whether a file of JSON has an object a line, as large texts often do, and not one in all."""
    with open_unpacked(path) as file:
        first = file.readline(_LONGEST_LINE)
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
            f"{place} holds half of a surrogate pair, which is no character and has no UTF-8 form."
            "\nRemove that line, or write the character whole."
        ) from error
    return text


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
