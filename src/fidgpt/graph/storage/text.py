"""A document as text, JSON or YAML, one value on a line, so that a difference in git reads well."""

import json
import math
import re
from json.encoder import encode_basestring
from typing import Any

from fidgpt.graph.errors import ConfigError

_MOST = 96  # characters of a list or dict that stays on one line
_WORDS = {None: "null", True: "true", False: "false"}
_WORDLY = (bool, type(None))
_BRANCHES = frozenset({dict, list})
_SECTIONS = 3  # how deep in a document a part's `set` lies
_to_json = json.JSONEncoder(ensure_ascii=False).encode
# Texts that every reader of YAML takes for texts: no numbers, dates, nor words such as `no`.
_BARE = re.compile(r"[A-Za-z_][\w.\[\]/-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_NOT_BARE = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_NO_YAML = re.compile("[\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")


def to_json(document: dict[str, Any]) -> str:
    """The document as JSON."""
    lines: list[str] = []
    _write_json(lines, document, "", "", 0)
    return "\n".join(lines) + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    lines: list[str] = []
    _write_yaml(lines, document, "", 0)
    text = "\n".join(lines) + "\n"
    if found := _NO_YAML.search(text):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return text


def _write_json(lines: list[str], value: Any, label: str, comma: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one, `depth` levels deep."""
    indent = " " * depth
    is_dict = type(value) is dict
    opening, closing = "{}" if is_dict else "[]"
    lines.append(f"{indent}{label}{opening}")
    left = len(value)
    for key, item in value.items() if is_dict else enumerate(value):
        left -= 1
        name = f"{encode_basestring(str(key))}: " if is_dict else ""
        end = "," if left else ""
        kind = type(item)
        if kind is str:  # most are, or numbers
            lines.append(f"{indent} {name}{encode_basestring(item)}{end}")
        elif kind is int:
            lines.append(f"{indent} {name}{item}{end}")
        elif _is_short(item, depth + 1):
            lines.append(f"{indent} {name}{_leaf(item)}{end}")
        else:
            _write_json(lines, item, name, end, depth + 1)
    lines.append(f"{indent}{closing}{comma}")


def _leaf(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if kind is int or (kind is float and math.isfinite(value)):
        return repr(value)
    if kind is dict and len(value) == 1:  # by far the most are
        [(key, item)] = value.items()
        return f"{{{encode_basestring(key)}: {_leaf(item)}}}"
    return _WORDS[value] if kind in _WORDLY else _to_json(value)


def _write_yaml(lines: list[str], value: Any, indent: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        label = f"{indent}{_yaml_text(str(key))}:" if isinstance(value, dict) else f"{indent}-"
        if isinstance(item, str):
            lines.append(f"{label} {_yaml_text(item)}")
        elif _is_short(item, depth + 1):
            lines.append(f"{label} {_to_json(item)}")
        else:
            lines.append(label)
            _write_yaml(lines, item, f"{indent}  ", depth + 1)


def _yaml_text(text: str) -> str:
    is_bare = _BARE.fullmatch(text) and text.lower() not in _NOT_BARE
    return text if is_bare else encode_basestring(text)


def _is_short(value: Any, depth: int) -> bool:
    """Whether a value is written on one line: as a list or dict that holds no other, or but one.

    The sections of a part are never, so that a second argument adds a line and changes none.
    """
    kind = type(value)
    if kind not in _BRANCHES or not value:
        return True
    if depth <= _SECTIONS:
        return False
    if kind is dict:
        ((key, item), *others) = value.items()
        return key != "dict" and not others and _is_short(item, depth)
    return _BRANCHES.isdisjoint(map(type, value)) and len(str(value)) <= _MOST
