"""Reading a column of text from a table on the disk: Parquet, or Arrow's own format."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError

_ROWS_AT_ONCE = 256


def read_table(path: Path, *, text_field: str) -> Iterator[str]:
    """The rows of a column in order; a row without a value is an empty text.

    Raises:
      DataError: pyarrow is missing, the file is damaged, or it has no such column of text.
    """
    kind = "Parquet" if path.suffix.lower() == ".parquet" else "Arrow"
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f"{path} is a file of {kind}, and reading it needs pyarrow, which is not installed.\n"
            'Install it with: pip install "fidgpt[parquet]"'
        ) from error
    try:
        columns = _parquet(path, text_field) if kind == "Parquet" else _arrow(path, text_field)
        for column in columns:
            for text in column.to_pylist():
                if text is not None and not isinstance(text, str):
                    raise DataError(
                        f"{path} has {type(text).__name__} in its column {text_field!r}, not text."
                        "\nName a column of text with text_field=... (or --text_field)."
                    )
                yield text or ""
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a readable {kind} file: {error}.\nIt may be cut short; get it again."
        ) from error


def _parquet(path: Path, text_field: str) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        _check_column(path, file.schema_arrow.names, text_field)
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[text_field]):
            yield batch.column(0)


def _arrow(path: Path, text_field: str) -> Iterator[Any]:
    """As Hugging Face's datasets keep them, a stream; or with an index behind it, a file."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, contextlib.ExitStack() as stack:
        try:
            reader: Any = stack.enter_context(pyarrow.ipc.open_file(file))
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:
            file.seek(0)
            reader = batches = stack.enter_context(pyarrow.ipc.open_stream(file))
        _check_column(path, reader.schema.names, text_field)
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield batch.column(text_field).slice(first, _ROWS_AT_ONCE)


def _check_column(path: Path, names: list[str], text_field: str) -> None:
    if text_field not in names:
        raise DataError(
            f"{path} has no column {text_field!r}; it has {', '.join(names)}.\n"
            "Name the column with text_field=... (or --text_field)."
        )
