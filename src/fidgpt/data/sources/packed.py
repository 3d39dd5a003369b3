"""Opening a file that may be packed, as its suffix says."""

import gzip
import io
from pathlib import Path

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
