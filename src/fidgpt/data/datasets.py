"""Datasets of Hugging Face, on the hub or saved to disk, and Parquet and Arrow tables."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError, import_extra

__all__ = ["HubDataset"]


_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubDataset:
    """A split of a dataset on the hub, one document a row; needs the extra `fidgpt[datasets]`.

    It is streamed twice, once to survey it and once to tokenize it, and only the tokens are stored.
    What `save_to_disk` wrote is read by `TextFiles`, without the extra.

    Args:
      path: name of the dataset, such as "HuggingFaceFW/fineweb-edu".
      name: configuration of the dataset, if it has several.
      split: split of the dataset.
      text_field: the column that holds the text.
      revision: branch, tag or commit; a commit needs no request to the hub.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str | None = None,
        split: str = "train",
        text_field: str = "text",
        revision: str = "main",
    ) -> None:
        self.path = path
        self.name = name
        self.split = split
        self.text_field = text_field
        self.revision = revision
        self._commit = revision if _COMMIT.fullmatch(revision) else None

    def documents(self) -> Iterator[str]:
        """Yield the texts of the split in order, without empty ones."""
        datasets = self._import()
        try:
            rows = datasets.load_dataset(
                self.path,
                name=self.name,
                split=self.split,
                revision=self._resolved(),
                streaming=True,
            )
            for row in rows:
                if text := self._text(row):
                    yield text
        except DataError:
            raise
        except Exception as error:  # the library and the network raise exceptions of all kinds
            raise DataError(
                f"Cannot read the dataset {self.path} ({self.split}): {error}.\n"
                "Check the network and the names of the dataset, its configuration and its split."
            ) from error

    def identity(self) -> str:
        """Return the commit and the names."""
        names = f"{self.path} {self.name} {self.split} {self.text_field}"
        return f"hub {names} {self._resolved()}"

    def _resolved(self) -> str:
        """Return the commit, requested once, so that a branch may move meanwhile."""
        if self._commit is None:
            self._import()
            from huggingface_hub import HfApi  # a dependency of `datasets`

            try:
                info = HfApi().dataset_info(self.path, revision=self.revision)
            except Exception as error:
                raise DataError(
                    f"Cannot resolve {self.revision!r} of the dataset {self.path} to a commit: "
                    f"{error}.\nCheck the name and the network, or name the commit: "
                    "HubDataset(path, revision=...)."
                ) from error
            self._commit = str(info.sha)
        return self._commit

    def _text(self, row: dict[str, Any]) -> str:
        place = f"The dataset {self.path}"
        check_column(row, text_field=self.text_field, place=place)
        return checked_text(row[self.text_field], text_field=self.text_field, place=place)

    def _import(self) -> Any:
        purpose = f"Reading {self.path} from the hub"
        return import_extra("datasets", extra="datasets", purpose=purpose)


_DICT, _INFO, _STATE = "dataset_dict.json", "dataset_info.json", "state.json"


def is_text(path: Path) -> bool:
    """Return whether a file is text, and not metadata or a cache of a saved dataset."""
    folder = path.parent
    if path.name in (_DICT, _INFO, _STATE):
        return not any((folder / name).is_file() for name in (_DICT, _INFO))
    if path.suffix != ".arrow" or not all((folder / name).is_file() for name in (_INFO, _STATE)):
        return True
    named = _read(folder / _STATE).get("_data_files")
    return not named or path.name in [one.get("filename") for one in named]


def require_one_split(path: Path) -> None:
    """Raise DataError if a file is the list of splits of a saved dataset with several splits."""
    splits = _read(path).get("splits", []) if path.name == _DICT else []
    if len(splits) > 1:
        raise DataError(
            f"{path.parent} holds the splits {', '.join(splits)} of a dataset.\n"
            f"Give the folder of one of them: {path.parent / splits[0]}."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # another file of the same name
    return content if isinstance(content, dict) else {}


_ROWS_AT_ONCE = 256


def read_table(path: Path, *, text_field: str) -> Iterator[str]:
    """Yield the texts of a column in order, empty ones for missing values.

    Raises:
      DataError: pyarrow is missing, the file is damaged, or it has no such column of text.
    """
    kind = "Parquet" if path.suffix.lower() == ".parquet" else "Arrow"
    pyarrow = import_extra("pyarrow", extra="parquet", purpose=f"Reading {path}")
    try:
        columns = _parquet(path, text_field) if kind == "Parquet" else _arrow(path, text_field)
        for column in columns:
            for text in column.to_pylist():
                yield checked_text(text, text_field=text_field, place=str(path))
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a readable {kind} file: {error}.\nIt may be truncated; get it again."
        ) from error


def _parquet(path: Path, text_field: str) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        check_column(file.schema_arrow.names, text_field=text_field, place=str(path))
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[text_field]):
            yield batch.column(0)


def _arrow(path: Path, text_field: str) -> Iterator[Any]:
    """Read an Arrow file, or an Arrow stream as Hugging Face's datasets write them."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, contextlib.ExitStack() as stack:
        try:
            reader: Any = stack.enter_context(pyarrow.ipc.open_file(file))
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:
            file.seek(0)
            reader = batches = stack.enter_context(pyarrow.ipc.open_stream(file))
        check_column(reader.schema.names, text_field=text_field, place=str(path))
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield batch.column(text_field).slice(first, _ROWS_AT_ONCE)


def check_column(names: Iterable[str], *, text_field: str, place: str) -> None:
    """Raise DataError if a table has no such column."""
    if text_field not in names:
        raise DataError(
            f"{place} has no column {text_field!r}; it has {', '.join(names)}.\n"
            "Name the column with text_field=... (or --text_field)."
        )


def checked_text(value: Any, *, text_field: str, place: str) -> str:
    """Return the text of a column; raise DataError if it is something else."""
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"{place} has {type(value).__name__} in its column {text_field!r}, not text.\n"
            "Name a column of text with text_field=... (or --text_field)."
        )
    return value or ""
