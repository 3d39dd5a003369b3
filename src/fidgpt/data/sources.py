"""Sources of documents: files of text, JSON lines or tables; Hugging Face datasets."""

import contextlib
import fnmatch
import functools
import gzip
import hashlib
import io
import itertools
import json
import os
import platform
import re
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fidgpt.data.documents import Document, MarkedText, text_of
from fidgpt.data.errors import DataError, import_extra
from fidgpt.files import read_json
from fidgpt.ranges import require_size

__all__ = ["HubDataset", "RemoteFiles", "Source", "StandardLibrary", "TextFiles"]


_BY_PYARROW = {".bz2": "bz2", ".lz4": "lz4", ".zst": "zstd"}
_UNPACKED = {".gz", *_BY_PYARROW}
_UNSUPPORTED = {".7z", ".lzma", ".rar", ".tar", ".tgz", ".xz", ".zip"}
_TESTS = ("test", "tests", "idle_test")
_NOT_CODE = (*_TESTS, "encodings", "pydoc_data", "site-packages", "dist-packages")
_LIBRARY = Path(sysconfig.get_path("stdlib"))
_EXCLUDE = 'exclude it from its folder: TextFiles(folder, patterns=["*.txt"]) or --pattern "*.txt"'
_ROWS_AT_ONCE = 256
_TRIED_ROWS = 1000  # by --dry_run


@runtime_checkable
class Source(Protocol):
    """Documents in a fixed order, and a cheap fingerprint of them."""

    def documents(self) -> Iterator[Document]:
        """Yield the non-empty documents; every call yields the same ones."""
        ...

    def identity(self) -> str:
        """Return a string that changes whenever the documents do, without reading them."""
        ...


@runtime_checkable
class RowReader(Protocol):
    """Makes documents of rows, such as `Conversations`.

    Attributes:
      columns: of a table that it reads; None for all.
      example: of a row in JSON, for messages.
    """

    @property
    def columns(self) -> Sequence[str] | None: ...

    @property
    def example(self) -> str: ...

    def document(self, row: Any, /, *, place: str) -> Document:
        """Return the document of a row; raise DataError naming its place if there is none."""
        ...

    def identity(self) -> str:
        """Return a string that changes whenever the documents would."""
        ...


class Fields(NamedTuple):
    """The fields of rows that hold documents.

    Attributes:
      text: the field of the text.
      counted: the field of the spans that count in the loss; None if all of a text does.
    """

    text: str
    counted: str | None = None

    @property
    def columns(self) -> Sequence[str]:
        return [name for name in self if name is not None]

    @property
    def example(self) -> str:
        return f'{{"{self.text}": "..."}}'

    def identity(self) -> str:
        return "" if self.counted is None else f" counted={self.counted}"

    def document(self, row: Any, *, place: str) -> Document:
        """Return the document of a row, an empty text for null.

        Args:
          row: values by field.
          place: of the row, for messages.

        Raises:
          DataError: the row has no text, or spans that are not in it.
        """
        if not isinstance(row, Mapping) or not isinstance(row.get(self.text, 0), str | None):
            raise DataError(
                f"{place} has no text in the field {self.text!r}; it holds {row!r:.80}.\n"
                "Name the field with text_field=... (or --text_field)."
            )
        text, spans = row[self.text] or "", row.get(self.counted)
        if not text or spans is None:
            return text
        if not all(0 <= begin <= stop <= len(text) for begin, stop in spans):
            raise DataError(
                f"{place} has {spans!r:.80} in the field {self.counted!r}: it must be a list of "
                f"pairs of characters from 0 to {len(text)}, the length of the text."
            )
        return MarkedText(text, spans)


class StandardLibrary:
    """The source code of the running Python's standard library, without tests.

    About 10 MB in 600 documents, one per file, in the order of their paths. Tables and manuals in
    the form of code (`encodings`, `pydoc_data`) and files that are not UTF-8 are skipped.
    """

    def documents(self) -> Iterator[str]:
        """Yield one document per file."""
        for path in self._files():
            with contextlib.suppress(UnicodeDecodeError, OSError):
                if text := path.read_bytes().decode("utf-8"):
                    yield text

    def identity(self) -> str:
        """Return the Python version, and a hash of the files' paths, sizes and timestamps."""
        return f"stdlib {platform.python_version()} {self._hash()}"

    @staticmethod
    @functools.cache  # a process runs on one library, whatever becomes of its files
    def _hash() -> str:
        return _fingerprint(StandardLibrary._files(), root=_LIBRARY)

    @staticmethod
    def _files() -> list[Path]:
        return [path for path in _walk(_LIBRARY, skip=_NOT_CODE) if path.suffix == ".py"]


@dataclass(eq=False)
class TextFiles:
    """A file of text, or a folder of such files in the order of their paths.

    `.jsonl` and `.ndjson` files hold one document per line, in the field `text_field`, and so do
    `.json` files whose first line is an object with that field; `.parquet` and `.arrow` files hold
    one per row. Rows without text are skipped. A split written by Hugging Face's `save_to_disk` is
    such a folder; its metadata is skipped. Any other file is UTF-8 text: one document, or several
    if it is longer than `document_chars` characters, cut at line ends, so that a corpus of one
    large file can be split too. `.gz`, `.bz2`, `.lz4` and `.zst` files are decompressed. Tables and
    all compressions but gzip need the extra `fidgpt[parquet]`. In a folder, files are read whose
    names match one of `patterns`, through symbolic links too; hidden and empty files are skipped.

    A row may hold, in the field `counted_field`, a list of the spans of its text that count in the
    loss: pairs of the first character and the one after the last. See `MarkedText`. All of a text
    counts if its row has no such field. `rows` makes documents of other rows, as `Conversations`
    does; a `.json` file may then be one list of them.
    """

    path: str | Path
    _: KW_ONLY
    text_field: str = "text"
    counted_field: str | None = None
    patterns: Sequence[str] = ("*",)
    document_chars: int = 64 * 1024
    rows: RowReader | None = None

    def __post_init__(self) -> None:
        require_size(document_chars=self.document_chars)
        if not str(self.path):
            raise ValueError("path='' must name a file or a folder.")
        if "://" in str(self.path):
            raise ValueError(
                f"path={str(self.path)!r} is a URL, and a text is read from this machine: download "
                "it, or read a store by RemoteFiles(url), and the hub by HubDataset(name)."
            )

    def documents(self) -> Iterator[Document]:
        """Yield the documents of each file in turn."""
        for path in self._files():
            with _explaining(str(path), _OF_FILE):
                yield from filter(None, self._read(path))

    def require_present(self) -> None:
        """Raise DataError if there is no text at the path, or a first row holds no document."""
        for _ in itertools.islice(self.documents(), _TRIED_ROWS):
            pass

    def identity(self) -> str:
        """Return the options, and a hash of the files' paths, sizes and modification times."""
        files = self._files()
        root = Path(self.path).expanduser().resolve()
        options = f"{self.text_field} {self.document_chars}{self._reader.identity()}"
        return f"files {root} {options} {_fingerprint(files, root=root)}"

    @property
    def _reader(self) -> RowReader:
        return self.rows or Fields(self.text_field, self.counted_field)

    def _read(self, path: Path) -> Iterator[Document]:
        """Yield the documents of a file, whose suffix determines its format."""
        reader = self._reader
        match kind_of(path):
            case ".parquet" | ".arrow":
                return _read_table(path, reader)
            case ".jsonl" | ".ndjson":
                return _read_json_lines(path, reader)
            case ".json" if _has_lines(path, reader):
                return _read_json_lines(path, reader)
            case ".json" if self.rows is not None:
                return _read_json_list(path, reader)
            case _ if self.rows is None:
                return _read_text(path, document_chars=self.document_chars)
        raise DataError(
            f"{path} has no rows.\nGive a .jsonl, .json or .parquet file of rows such as "
            f"{reader.example}, or a folder of them."
        )

    def _files(self) -> list[Path]:
        root = Path(self.path).expanduser()
        if root.is_dir():
            paths = _walk(root, follows_links=True)
            for path in paths:
                require_one_split(path)
            texts = [path for path in paths if _matches(path, self.patterns) and is_text(path)]
            problem = f"is a folder without text that matches {' or '.join(self.patterns)}"
        else:
            texts = [root] if root.exists() else []
            problem = f"does not exist (the current directory is {Path.cwd()})"
            problem = "is empty" if texts else problem
        files = [path for path in texts if path.stat().st_size]
        if not files:
            raise DataError(
                f"{root} {problem}.\nGive a readable text, .jsonl or .parquet file, or a folder of "
                "them."
            )
        return files


@dataclass(eq=False)
class RemoteFiles:
    """Files of an object store, such as `s3://bucket/folder`, read as `TextFiles` reads files.

    Any file system of fsspec will do whose package is installed: `s3://` needs s3fs, `gs://` gcsfs
    and `hf://` huggingface_hub. Files are copied to this machine one at a time, and deleted again.
    """

    url: str
    _: KW_ONLY
    text_field: str = "text"
    patterns: Sequence[str] = ("*",)

    def require_present(self) -> None:
        """Raise DataError if the package of the store is not installed."""
        import fsspec.utils

        with _explaining(self.url, _OF_STORE):
            fsspec.get_filesystem_class(fsspec.utils.get_protocol(self.url))

    def documents(self) -> Iterator[Document]:
        """Yield the documents of each file in turn."""
        system, files = self._listed()
        with tempfile.TemporaryDirectory() as folder:
            for name in files:
                copy = Path(folder, Path(name).name)
                with _explaining(self.url, _OF_STORE):
                    system.get_file(name, str(copy))
                yield from TextFiles(copy, text_field=self.text_field).documents()
                copy.unlink()

    def identity(self) -> str:
        """Return the URL, and a hash of the names of files and of what the store knows of them."""
        system, files = self._listed()
        digest = hashlib.sha256()
        with _explaining(self.url, _OF_STORE):
            for name in files:
                digest.update(f"{name}\0{system.size(name)}\0{system.ukey(name)}\n".encode())
        return f"remote {self.url} {self.text_field} {digest.hexdigest()}"

    def _listed(self) -> tuple[Any, list[str]]:
        """Return the file system, and the paths of the files in their order.

        Raises:
          DataError: there are none, or the store cannot be read.
        """
        import fsspec

        with _explaining(self.url, _OF_STORE):
            system, path = fsspec.url_to_fs(self.url)
            entries = system.find(path, detail=True)
        filled = sorted(name for name, facts in entries.items() if facts["size"])
        names = [name for name in filled if _matches(Path(name), self.patterns)]
        if not names:
            raise DataError(f"{self.url} has no file with text that matches {self.patterns}.")
        return system, names


@dataclass(eq=False)
class HubDataset:
    """A split of a dataset on the Hugging Face hub, one document per row.

    It needs the extra `fidgpt[datasets]`. The dataset is streamed twice, to survey it and to
    tokenize it; only the tokens are stored. To read the output of `save_to_disk`, use `TextFiles`.

    Args:
      path: name of the dataset, such as "HuggingFaceFW/fineweb-edu".
      name: configuration of the dataset, if it has several.
      split: split of the dataset.
      text_field: the column that holds the text.
      rows: makes documents of rows, as `Conversations` does; None for texts.
      revision: branch, tag or commit; a commit needs no request to the hub.
    """

    path: str
    _: KW_ONLY
    name: str | None = None
    split: str = "train"
    text_field: str = "text"
    rows: RowReader | None = None
    revision: str = "main"

    def __post_init__(self) -> None:
        self._commit = self.revision if re.fullmatch("[0-9a-f]{40}", self.revision) else None

    def documents(self) -> Iterator[Document]:
        """Yield the texts of the split in order, without empty ones."""
        commit, reader = self._resolved(), self.rows or Fields(self.text_field)
        with _explaining(f"the dataset {self.path} ({self.split})", _OF_HUB):
            rows = self._library().load_dataset(
                self.path, name=self.name, split=self.split, revision=commit, streaming=True
            )
            for number, row in enumerate(rows, start=1):
                place = f"The dataset {self.path}, row {number},"
                if document := reader.document(row, place=place):
                    yield document

    def require_present(self) -> None:
        """Raise DataError if the package that reads datasets of the hub is not installed."""
        self._library()

    def identity(self) -> str:
        """Return the names and the commit."""
        names = f"{self.path} {self.name} {self.split} {self.text_field}"
        names += "" if self.rows is None else f" {self.rows.identity()}"
        return f"hub {names} {self._resolved()}"

    def _resolved(self) -> str:
        """Return the commit of the revision, resolved once, as a branch may move during the run."""
        if self._commit is None:
            self._library()
            from huggingface_hub import HfApi  # a dependency of `datasets`

            with _explaining(f"{self.revision!r} of the dataset {self.path}", _OF_HUB):
                self._commit = str(HfApi().dataset_info(self.path, revision=self.revision).sha)
        return self._commit

    def _library(self) -> Any:
        purpose = f"Reading {self.path} from the hub"
        return import_extra("datasets", extra="datasets", purpose=purpose)


_OF_FILE = (
    "Check that it is complete and readable. A text must be UTF-8: convert it, for example with "
    f"`iconv -f latin1 -t utf-8`, or {_EXCLUDE}."
)
_OF_STORE = (
    "Check the address and the access to it, and that the package of its store is installed."
)
_OF_HUB = "Check the network and the names of the dataset, its configuration, split and revision."


@contextlib.contextmanager
def _explaining(what: str, remedy: str) -> Iterator[None]:
    """Name what could not be read, and the remedy.

    Raises:
      DataError: something was raised inside.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # stores, libraries and the network raise exceptions of all kinds
        raise DataError(f"Cannot read {what}: {error}.\n{remedy}") from error


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)


def kind_of(path: Path) -> str:
    """Return the suffix of a file in lower case, ignoring the suffix of its compression."""
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
            f"Unpack it first, or {_EXCLUDE}."
        )
    suffix = path.suffix.lower()
    if suffix in _BY_PYARROW:
        pyarrow = import_extra("pyarrow", extra="parquet", purpose=f"Unpacking {path}")
        stream = pyarrow.input_stream(str(path), compression=_BY_PYARROW[suffix])
        return io.BufferedReader(stream)
    return gzip.GzipFile(path) if suffix == ".gz" else path.open("rb")


def _read_text(path: Path, *, document_chars: int) -> Iterator[str]:
    """Yield the file in pieces cut at line ends, so that large files need little memory."""
    with io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", newline="") as file:
        while piece := file.read(document_chars):
            yield piece + file.readline(document_chars)


def _has_lines(path: Path, reader: RowReader) -> bool:
    """Return whether a JSON file has one object per line rather than a single one."""
    with open_unpacked(path) as file:
        first = file.readline()
    try:
        row: Any = json.loads(first.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and (reader.columns is None or reader.columns[0] in row)


def _read_json_list(path: Path, reader: RowReader) -> Iterator[Document]:
    """Yield the documents of a file that is one list of rows, or a single row."""
    with open_unpacked(path) as file:
        rows = json.loads(file.read().decode("utf-8-sig"))
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
        yield reader.document(row, place=f"{path}, row {number},")


def _read_json_lines(path: Path, reader: RowReader) -> Iterator[Document]:
    with open_unpacked(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                row = json.loads(line.decode("utf-8-sig"))
                document = reader.document(row, place=place)
                text_of(document).encode()  # fails for unpaired surrogates
            except DataError:
                raise
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{place} is not JSON in UTF-8 ({error}).\nEach line must be an object, such "
                    f"as {reader.example}."
                ) from error
            yield document


def _read_table(path: Path, reader: RowReader) -> Iterator[Document]:
    """Yield the documents of a table in order, with empty strings for missing texts.

    Raises:
      DataError: pyarrow is missing, or the file has no such column of text.
    """
    import_extra("pyarrow", extra="parquet", purpose=f"Reading {path}")
    with contextlib.ExitStack() as stack:
        names, batches = _table(path, reader, stack)
        columns, number = names, 0
        if reader.columns is not None:
            reader.document(dict.fromkeys(names), place=str(path))
            columns = [name for name in reader.columns if name in names]
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                for row in batch.select(columns).slice(first, _ROWS_AT_ONCE).to_pylist():
                    number += 1
                    yield reader.document(row, place=f"{path}, row {number},")


def _table(path: Path, reader: RowReader, stack: contextlib.ExitStack) -> tuple[list[str], Any]:
    """Return the column names of a table, and its batches of rows."""
    import pyarrow.parquet

    if path.suffix.lower() == ".parquet":
        table = stack.enter_context(pyarrow.parquet.ParquetFile(path))
        batches: Any = table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=reader.columns)
        return table.schema_arrow.names, batches
    file = stack.enter_context(pyarrow.memory_map(str(path)))
    try:
        opened: Any = stack.enter_context(pyarrow.ipc.open_file(file))
        batches = map(opened.get_batch, range(opened.num_record_batches))
    except pyarrow.ArrowInvalid:  # the streaming format, which Hugging Face's datasets write
        file.seek(0)
        opened = batches = stack.enter_context(pyarrow.ipc.open_stream(file))
    return opened.schema.names, batches


_DICT, _INFO, _STATE = "dataset_dict.json", "dataset_info.json", "state.json"


def is_text(path: Path) -> bool:
    """Return whether a file is text rather than metadata or a cache of a saved dataset."""
    folder = path.parent
    if path.name in (_DICT, _INFO, _STATE):
        return not any((folder / name).is_file() for name in (_DICT, _INFO))
    if path.suffix != ".arrow" or not all((folder / name).is_file() for name in (_INFO, _STATE)):
        return True
    data_files = read_json(folder / _STATE).get("_data_files")
    return not data_files or path.name in [file.get("filename") for file in data_files]


def require_one_split(path: Path) -> None:
    """Raise DataError if a file is the list of splits of a saved dataset with several splits."""
    splits = read_json(path).get("splits", []) if path.name == _DICT else []
    if len(splits) > 1:
        raise DataError(
            f"{path.parent} holds the splits {', '.join(splits)} of a dataset.\n"
            f"Give the folder of one of them: {path.parent / splits[0]}."
        )


def _walk(root: Path, *, skip: Iterable[str] = (), follows_links: bool = False) -> list[Path]:
    """Return all files below a folder that are not hidden, sorted by relative path.

    Args:
      root: the folder.
      skip: names of folders to skip.
      follows_links: whether to follow links to folders, each folder once.

    Raises:
      DataError: a folder cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}.")

    files, seen = [], set[str]()
    for folder, folders, names in os.walk(root, onerror=fail, followlinks=follows_links):
        hidden = {"__pycache__", *skip}
        folders[:] = sorted(name for name in folders if name not in hidden and name[0] != ".")
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        files += [Path(folder, name) for name in names if name[0] != "."]
    files = [path for path in files if path.is_file()]
    return sorted(files, key=lambda path: path.relative_to(root).parts)


def _fingerprint(files: list[Path], *, root: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        name = os.path.relpath(path.resolve(), root)
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()
