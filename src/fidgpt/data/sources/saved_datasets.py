"""What Hugging Face's `save_to_disk` says of a folder that it wrote: which files of it are text."""

import json
from pathlib import Path
from typing import Any

from fidgpt.data.errors import DataError

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
