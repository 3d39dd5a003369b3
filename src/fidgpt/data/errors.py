"""The error that this package raises, and messages that its modules share."""

import importlib
import shlex
from pathlib import Path
from typing import Any

__all__ = ["DataError"]


class DataError(ValueError):
    """A corpus, tokenizer or directory is unusable; the message names the remedy."""


def delete_command(directory: Path) -> str:
    """Return the shell command that deletes a directory, quoted."""
    return shlex.join(["rm", "-r", str(directory)])


def import_extra(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional dependency; raise DataError naming the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the package {module}, which is not installed.\n"
            f'Install it with: pip install "fidgpt[{extra}]"'
        ) from error
