"""Documents of a dataset on the Hugging Face hub, read as a stream."""

import re
from collections.abc import Iterator
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
