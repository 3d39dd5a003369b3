"""Datasets of the Hugging Face hub and tables."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubDataset:
    """A split of a dataset on the hub, one document a row; needs the extra `fidgpt[datasets]`.

    It is streamed twice, once to learn how much it is and once to tokenize it, and nothing but
    the tokens stays on the disk. What `save_to_disk` wrote is read by `TextFiles`, without the
    extra.

    Args:
      path: the dataset, such as "HuggingFaceFW/fineweb-edu".
      name: of the configuration, where the dataset has several.
      split: of the dataset.
      text_field: the column that holds the text.
      revision: a branch, a tag or a commit; a commit is read again without asking the hub.
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
        """The rows of the split in order; those without text are left out."""
        datasets = _datasets(self.path)
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
        except Exception as error:  # the library and the network raise all kinds
            raise DataError(
                f"Cannot read the dataset {self.path} ({self.split}): {error}.\n"
                "Check the names of the dataset, its configuration and its split, and the network."
            ) from error

    def identity(self) -> str:
        """The commit, which is asked for once, and the names."""
        names = f"{self.path} {self.name} {self.split} {self.text_field}"
        return f"hub {names} {self._resolved()}"

    def _resolved(self) -> str:
        """The commit, so that a branch that moves meanwhile changes nothing."""
        if self._commit is None:
            _datasets(self.path)
            from huggingface_hub import HfApi  # which `datasets` itself needs

            try:
                info = HfApi().dataset_info(self.path, revision=self.revision)
            except Exception as error:
                raise DataError(
                    f"Cannot ask the hub which commit {self.revision!r} of the dataset {self.path} "
                    f"is: {error}.\nCheck the name and the network, or name the commit: "
                    "HubDataset(path, revision=...)."
                ) from error
            self._commit = str(info.sha)
        return self._commit

    def _text(self, row: dict[str, Any]) -> str:
        if self.text_field not in row:
            raise DataError(
                f"The dataset {self.path} has no column {self.text_field!r}; it has "
                f"{', '.join(row)}.\nName the column with text_field=..."
            )
        text = row[self.text_field]
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"The dataset {self.path} has {type(text).__name__} in its column "
                f"{self.text_field!r}, not text.\nName a column of text with text_field=..."
            )
        return text or ""


def _datasets(path: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(
            f"Reading {path} from the hub needs the package datasets, which is not installed.\n"
            'Install it with: pip install "fidgpt[datasets]"'
        ) from error
    return datasets


_DICT, _INFO, _STATE = "dataset_dict.json", "dataset_info.json", "state.json"


def is_text(path: Path) -> bool:
    """Whether a file is none of those that describe such a folder, or were left there by a map."""
    folder = path.parent
    if path.name in (_DICT, _INFO, _STATE):
        return not any((folder / name).is_file() for name in (_DICT, _INFO))
    if path.suffix != ".arrow" or not all((folder / name).is_file() for name in (_INFO, _STATE)):
        return True
    named = _read(folder / _STATE).get("_data_files")
    return not named or path.name in [one.get("filename") for one in named]


def require_one_split(path: Path) -> None:
    """Raises DataError where a file is the list of several splits, of which none is to be guessed.

    Args:
      path: a file that was found; only that of this name is read.
    """
    splits = _read(path).get("splits", []) if path.name == _DICT else []
    if len(splits) > 1:
        raise DataError(
            f"{path.parent} holds the splits {', '.join(splits)} of a dataset.\n"
            f"Name one of them: {path.parent / splits[0]}."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        said: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # of somebody else, who gave a file the same name
    return said if isinstance(said, dict) else {}


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
