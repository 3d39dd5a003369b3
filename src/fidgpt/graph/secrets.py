"""Secrets: texts of a graph that name an environment variable, which is read when it is built.

A graph holds `${secret:NAME}`, and so does everything that is made of it: files, prints, pages,
drawings, differences and fingerprints. Only the constructor that takes it gets the value, and every
build reads it again. Errors show the reference in its place; commands pass their messages through
`redacted`. What is made of a graph alone needs none of that, and might change by it.
"""

import os
import re
from typing import Any

from fidgpt.errors import ConfigError
from fidgpt.graph import fiddle

_REFERENCE = re.compile(r"\$\{secret:\s*([^{}]*?)\s*\}")
_WRITTEN = re.compile(r"\$\{secret:[^{}]*\}?")  # a wrong one, too
_NAME = re.compile(r"\$\{secret:\s*[A-Za-z_][A-Za-z_0-9]*\s*\}")
_read: dict[str, str] = {}  # what stands in the place of each value that was read


class Secret(str):
    """A text with secrets in it, shown as it is written in the graph.

    Args:
      text: with their values.
      written: with references.
    """

    _written: str

    def __new__(cls, text: str, written: str) -> "Secret":
        new = super().__new__(cls, text)
        new._written = written
        return new

    def __repr__(self) -> str:
        return repr(self._written)

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (str(self), self._written)


def has_secrets(value: Any) -> bool:
    """Whether a plain value names a secret; of a container, whether something in it does."""
    if isinstance(value, str):
        return "${secret:" in value
    if isinstance(value, dict):
        return any(map(has_secrets, value.values()))
    return fiddle.kind_of(value) in (list, tuple) and any(map(has_secrets, value))


def require_names(text: str) -> None:
    """Make sure that each secret in a text names an environment variable.

    Raises:
      ConfigError: one does not, or has a default.
    """
    for match in _WRITTEN.finditer(text):
        if not _NAME.fullmatch(match[0]):
            raise ConfigError(
                f"'{match[0]}' does not name an environment variable: write ${{secret:NAME}}, "
                "with letters, digits and _ in the name; a secret has no default."
            )


def revealed(value: Any) -> Any:
    """Return a plain value with the values of its secrets.

    Raises:
      ConfigError: an environment variable is not set, or empty, or no name of one.
    """
    if not has_secrets(value):
        return value
    if isinstance(value, str):
        require_names(value)
        return Secret(_REFERENCE.sub(_value_of, value), value)
    if isinstance(value, dict):
        return {key: revealed(item) for key, item in value.items()}
    return type(value)(revealed(item) for item in value)


def _value_of(reference: re.Match[str]) -> str:
    name = reference[1]
    if not (value := os.environ.get(name)):
        raise ConfigError(
            f"{reference[0]} needs the environment variable {name}, which is not set: "
            f"export {name}=... on the machine that runs this."
        )
    _read[value] = reference[0]
    return value


def redacted(text: str) -> str:
    """Return a message in which references stand in place of the secrets that were read so far."""
    for value, written in sorted(_read.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(value, written)
    return text


def redacted_value(value: Any) -> Any:
    """Return a value made of dicts, lists and texts with those texts redacted."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_value(item) for key, item in value.items()}
    return [redacted_value(item) for item in value] if isinstance(value, list) else value
