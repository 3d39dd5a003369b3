"""Where the values of a graph come from: who said what, as a story, and as a file of its own.

A file of provenance is a JSON object: for each path, oldest first, what was said there and by whom.
It is no part of the graph's content: a graph with another history has the same fingerprint.
"""

import json
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.history.sayings import (
    Memory,
    Remembered,
    Saying,
    record_item,
    said_by,
    sayings_of,
)
from fidgpt.graph.history.speaker import Speaker
from fidgpt.graph.history.story import Source, Story, story
from fidgpt.graph.history.telling import short_text, why_text
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import join, parts, step_to

__all__ = [
    "Saying",
    "Source",
    "Speaker",
    "Story",
    "dump_provenance",
    "record_item",
    "restore_provenance",
    "said_by",
    "story",
    "why_text",
]


def dump_provenance(root: Any) -> str:
    """What was said in a graph, as the text of a file: a line for each path."""
    lines = [
        f"{json.dumps(path, ensure_ascii=False)}: {json.dumps(said, ensure_ascii=False)}"
        for path, said in _every_saying(root)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def restore_provenance(root: Any, text: str, *, source: str = "") -> None:
    """Gives the parameters of a loaded graph the history that they had when it was saved.

    Of what was said only the text is known; a path that the graph has no more is passed over.

    Args:
      root: the graph.
      text: what `dump_provenance` wrote.
      source: what to put before each directive, as another run's directives are not this one's.

    Raises:
      ConfigError: the text is no such file.
    """
    told = _read(text)
    with Memory() as memory:
        for path, key, part in (*_arguments(root), *_items(root, told)):
            if path in told:
                memory.recall(part, key, [_as_saying(one, source) for one in told[path]])


def _arguments(root: Any) -> Iterator[tuple[str, Key, fdl.Buildable]]:
    """The path of each argument that can have a history."""
    for node in parts(root):
        path, known = node.path, list(node.value.__argument_history__)
        for key in dict.fromkeys([*known, *node.value.__signature_info__.parameters]):
            yield join(path, _step(key)), key, node.value


def _items(root: Any, told: dict[str, Any]) -> Iterator[tuple[str, Key, fdl.Buildable]]:
    """The paths into lists and dicts, each with the name of its history in the part above it."""
    owners = {
        join(node.path, step_to(key)): (node.value, key)
        for node in parts(root)
        for key in node.value.__arguments__
    }
    for path in told.keys() - owners.keys():
        for end in (at for at, letter in enumerate(path) if letter == "["):
            if path[:end] in owners:
                part, key = owners[path[:end]]
                yield path, f"{key}{path[end:]}", part


def _every_saying(root: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for node in parts(root):
        path = node.path
        for key in list(node.value.__argument_history__):
            said = sayings_of(node.value, key)
            if said and key != "__fn_or_cls__":
                yield join(path, _step(key)), [_as_json(one) for one in reversed(said)]


def _step(key: Key) -> str:
    """The step to an argument; to an item of one, whose history has both in its name."""
    owner, bracket, item = str(key).partition("[")
    return step_to(int(owner) if owner.isdigit() else owner) + bracket + item


def _as_json(saying: Saying) -> dict[str, Any]:
    value = None if saying.value is fdl.NO_VALUE else short_text(saying.value)
    words = {"value": value, "by": saying.by and str(saying.by), "where": saying.where}
    return {name: word for name, word in words.items() if name == "value" or word}


def _as_saying(written: dict[str, Any], source: str) -> Saying:
    value = fdl.NO_VALUE if written["value"] is None else Remembered(written["value"])
    by = Speaker.read(written["by"]) if written.get("by") else None
    # A run that went on has sayings of its own, and those of its beginning, which name it already.
    if by and by.run is None and source:
        by = by._replace(run=source)
    return Saying(value, by, written.get("where") or "")


def _read(text: str) -> dict[str, list[dict[str, Any]]]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the provenance is not JSON: {error}.") from None
    if not isinstance(told, dict) or not all(_is_told(said) for said in told.values()):
        raise ConfigError("the provenance is damaged: a path has a list of {value, by, where}.")
    return told


def _is_told(said: Any) -> bool:
    return isinstance(said, list) and all(
        isinstance(one, dict)
        and "value" in one
        and all(word is None or isinstance(word, str) for word in one.values())
        for one in said
    )
