"""JSON as data: no entry said twice, and no number that JSON does not have."""

import json
import math
import re
from collections import Counter
from typing import Any

from fidgpt.graph.errors import ConfigError

_ZERO = re.compile(r"[-+]?[0.]*([eE].*)?")


def read_json(text: str) -> Any:
    """The data of a JSON text.

    Raises:
      ConfigError: an object says a key twice, or a number is none, or too large.
      ValueError, RecursionError: it is no JSON.
    """
    return json.loads(
        text, object_pairs_hook=_once_each, parse_constant=_no_number, parse_float=read_float
    )


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The entries of an object; of two with one key, JSON itself would drop the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it says {twice!r:.60} twice in one place: leave one of them.")
    return found


def _no_number(word: str) -> Any:
    raise ConfigError(f'{word} is no number of JSON: write {{"float": "{float(word)}"}}.')


def read_float(text: str) -> float:
    """The float that a text is.

    Raises:
      ConfigError: it is so large, or so small, that an infinity, or a zero, would be left of it.
    """
    value = float(text)
    if math.isinf(value):
        raise ConfigError(f"{text:.40} is too large a number.")
    if not value and not _ZERO.fullmatch(text):
        raise ConfigError(f"{text:.40} is too small a number: as a float it would be 0.0.")
    return value
