"""The words that an annotation allows, where it allows only some."""

import enum
import inspect
import typing
from typing import Any

from fidgpt.graph.signatures.annotations import members_of


def choices_of(hint: Any) -> list[str]:
    """True and False, the names of an enum or Literal, None; empty where others fit too."""
    words: list[str] = []
    for member in members_of(hint):
        if member is bool:
            words += ["True", "False"]
        elif member in (None, type(None)):
            words.append("None")
        elif typing.get_origin(member) is typing.Literal:
            words += [str(value) for value in typing.get_args(member)]
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            words += [item.name for item in member]
    return words
