"""The one error of this package: something about the user's text, tokenizer or disk."""

import shlex
from pathlib import Path


class DataError(ValueError):
    """What is wrong with a corpus, a tokenizer or a directory, where, and what to do about it."""


def removal(directory: Path) -> str:
    """The command that deletes a directory, whatever its name, as one copies it into a shell."""
    return shlex.join(["rm", "-r", str(directory)])
