"""Rows of files and of Hugging Face datasets as they are, such as the questions of a task."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError, import_extra
from fidgpt.data.sources import open_unpacked

__all__ = ["hub_rows", "read_rows"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines, or of a Parquet file.

    Raises:
      DataError: it cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            pyarrow = import_extra("pyarrow.parquet", extra="parquet", purpose=f"Reading {path}")
            return pyarrow.read_table(path).to_pylist()
        with open_unpacked(path) as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} holds no rows that can be read: {error}.") from error


def hub_rows(path: str, *, name: str, split: str) -> Sequence[Any]:
    """Return the rows of a split of a dataset of the hub, downloaded once.

    Raises:
      DataError: the package `datasets` is not installed, or the dataset cannot be read.
    """
    datasets = import_extra("datasets", extra="datasets", purpose=f"Reading {path} from the hub")
    try:
        return datasets.load_dataset(path, name, split=split)
    except Exception as error:  # the library and the network raise exceptions of all kinds
        raise DataError(
            f"Cannot read the dataset {path} ({name}, {split}): {error}.\nCheck the network, or "
            "put the rows in a folder of your own, and name it as data."
        ) from error
