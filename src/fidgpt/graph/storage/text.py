"""Documents as JSON and YAML text, and JSON back."""

import json
import re
from collections import Counter
from typing import Any

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.expressions import read_float

_MOST = 96  # characters of a list or dict that stays on one line
_SECTIONS = 3  # how deep in a document the sections of a node lie
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def to_json(document: dict[str, Any]) -> str:
    """Return a document as JSON."""
    return _json(document, 0) + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    from fidgpt.graph.yaml import write_yaml  # late: most files are JSON

    if found := re.search("[\ud800-\udfff]", _to_json(document)):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return write_yaml(document, is_flow=_is_short)


def _json(value: Any, depth: int) -> str:
    if _is_short(value, depth):
        return _to_json(value)
    if isinstance(value, dict):
        items = [f"{_to_json(key)}: {_json(item, depth + 1)}" for key, item in value.items()]
    else:
        items = [_json(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    end = "\n" + " " * depth
    return f"{opening}{end} {f',{end} '.join(items)}{end}{closing}"


def _is_short(value: Any, depth: int) -> bool:
    """Return whether a value takes one line: a leaf, or a list or dict of few leaves.

    The sections of a node never do, so that a second argument adds a line and changes none.
    """
    if not isinstance(value, dict | list) or not value:
        return True
    if depth <= _SECTIONS:
        return False
    if isinstance(value, dict):
        ((key, item), *others) = value.items()
        return key != "dict" and not others and _is_short(item, depth)
    return not any(isinstance(one, dict | list) for one in value) and len(str(value)) <= _MOST


def read_json(text: str) -> Any:
    """Return the data of a JSON text.

    Raises:
      ConfigError: an object has a key twice, or a number is NaN, infinite, too large or too small.
      ValueError, RecursionError: it is not JSON.
    """
    return json.loads(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=read_float
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it has {twice!r:.60} twice in one place: remove one of them.")
    return found


def _refuse_constant(word: str) -> Any:
    raise ConfigError(f'{word} is not a JSON number: write {{"float": "{float(word)}"}}.')
