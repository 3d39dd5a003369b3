"""Where prepared corpora lie when nobody says where."""

import os
from pathlib import Path

from fidgpt.data.errors import DataError


def cache_directory() -> Path:
    """`$FIDGPT_CACHE`, else `$XDG_CACHE_HOME/fidgpt`, else `~/.cache/fidgpt`."""
    try:
        if own := os.environ.get("FIDGPT_CACHE"):
            return Path(own).expanduser()
        if common := os.environ.get("XDG_CACHE_HOME"):
            return Path(common).expanduser() / "fidgpt"
        return Path.home() / ".cache" / "fidgpt"
    except RuntimeError as error:
        raise DataError(
            f"There is no such home directory to keep prepared corpora in ({error})\n"
            "Set the environment variable FIDGPT_CACHE to a directory, or give cache_dir=... ."
        ) from error
