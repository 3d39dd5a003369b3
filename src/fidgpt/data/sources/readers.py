"""How one file is read as documents: plain text, JSON lines, and tables."""

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError
from fidgpt.data.sources.packed import kind_of, open_unpacked
from fidgpt.data.sources.tables import read_table

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
