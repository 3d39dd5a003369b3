"""Which of a call's arguments its refusal is about, as far as its words tell.

A constructor is plain and raises a plain error, which knows of no place in a graph: its words are
all there is. They are compared here, and nowhere else, with the arguments that the call had.
"""

import re
from collections.abc import Mapping
from typing import Any


def shown(told: str, arguments: Mapping[Any, Any]) -> list[str]:
    """The names of the arguments that a text shows with their values, as `f"{name=}"` does."""
    return [
        name
        for name, value in arguments.items()
        if f"{name}=" in told and _stands_in(f"{name}={value!r}", told)
    ]


def shown_last(told: str, arguments: Mapping[str, Any]) -> list[str]:
    """The names of those that are, or hold, a number behind the last colon of a text.

    So torch's optimizers refuse: `Invalid learning rate: -1.0`.
    """
    last = told.rpartition(":")[2].replace(",", " ").split()
    return [
        name
        for name, value in arguments.items()
        if any(repr(one) in last for one in (value if isinstance(value, list | tuple) else [value]))
    ]


def _stands_in(words: str, told: str) -> bool:
    """Whether a text has some words that are no part of a longer name or number."""
    return re.search(rf"(?<![\w.\]]){re.escape(words)}(?!\w|\.\d)", told) is not None
