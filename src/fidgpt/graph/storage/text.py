"""A document as text, JSON or YAML, one value on a line, so that a difference in git reads well."""

import json
import math
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from fidgpt.graph.errors import ConfigError

_MOST = 96  # characters of a list or dict that stays on one line
_WORDS = {None: "null", True: "true", False: "false"}
_BRANCHES = frozenset({dict, list})
_SECTIONS = 3  # how deep in a document a part's `set` lies
_to_json = json.JSONEncoder(ensure_ascii=False).encode
# Texts that every reader of YAML takes for texts: no numbers, dates, nor words such as `no`.
_BARE = re.compile(r"[A-Za-z_][\w.\[\]/-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_NOT_BARE = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# What YAML takes for the end of a line, or does not take as it is; only texts in quotes have any.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NO_YAML = re.compile("[\ud800-\udfff]")
_LONGEST_KEY = 1000  # characters; what is longer, YAML takes for a key only behind a question mark


def to_json(document: dict[str, Any]) -> str:
    """The document as JSON."""
    lines: list[str] = []
    _write_json(lines, document, "", 0)
    return "\n".join(lines)[:-1] + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    lines: list[str] = []
    _write_yaml(lines, document, "", 0)
    text = _escaped("\n".join(lines) + "\n")
    if found := _NO_YAML.search(text):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return text


def _write_json(lines: list[str], value: Any, label: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one, with a comma at their end."""
    is_dict = type(value) is dict
    opening, closing = "{}" if is_dict else "[]"
    lines.append(f"{label}{opening}")
    start = " " * (depth + 1)
    for key, item in value.items() if is_dict else enumerate(value):
        name = f"{start}{encode_basestring(str(key))}: " if is_dict else start
        write = _WRITERS.get(type(item))
        if write is not None:  # as for most
            lines.append(f"{name}{write(item)},")
        elif _is_short(item, depth + 1):
            lines.append(f"{name}{_leaf(item)},")
        else:
            _write_json(lines, item, name, depth + 1)
    lines[-1] = lines[-1][:-1]
    lines.append(f"{start[1:]}{closing},")


def _leaf(value: Any) -> str:
    if type(value) is dict and len(value) == 1:  # by far the most are
        [(key, item)] = value.items()
        return f"{{{encode_basestring(key)}: {_leaf(item)}}}"
    write = _WRITERS.get(type(value), _to_json)
    return write(value)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else _to_json(value)


# What is written most, by type; Python's own writer begins anew each time, which takes longer.
_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: repr,
    float: _number,
    bool: _WORDS.__getitem__,
    type(None): _WORDS.__getitem__,
}


def _write_yaml(lines: list[str], value: Any, indent: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        label = (
            f"{indent}{_yaml_key(str(key), indent)}:" if isinstance(value, dict) else f"{indent}-"
        )
        if isinstance(item, str):
            lines.append(f"{label} {_yaml_text(item)}")
        elif _is_short(item, depth + 1):
            lines.append(f"{label} {_to_json(item)}")
        else:
            lines.append(label)
            _write_yaml(lines, item, f"{indent}  ", depth + 1)


def _yaml_key(text: str, indent: str) -> str:
    key = _yaml_text(text)
    return f"? {key}\n{indent}" if len(_escaped(key)) > _LONGEST_KEY else key


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


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
