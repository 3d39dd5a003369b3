"""The file format: a graph as text that reads well in a diff, and a graph from such a text.

A file is an object with `format`, `version`, `fingerprint` and `parts`. Parts lie side by side
under their first path, each before what it holds, and name each other by it:

- `{"part": "model.blocks[0]"}` is a part for this place alone, made as it is written there. Equal
  parts are written once, and are as many as there are places.
- `{"shared": "model.rope"}` is one part for all places that name it. Where it is written, `one_in`
  says inside of what: each copy of that has one.

Each part says what it calls and what is `set`; which parameters carry `tags`; what its open
parameters `heard` when it was written, for the reader's sake; and the `defaults` of the rest, so
that a default that has changed since does not change an old run.
"""

import re
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import without_collection
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage.plain_json import read_json
from fidgpt.graph.storage.reading import Reading
from fidgpt.graph.storage.text import to_json, to_yaml
from fidgpt.graph.storage.writing import FORMAT, VERSION, write

_NOTHING = re.compile(r"(\s|#.*(\n|$)|---[ \t]*(\n|$)|\.\.\.[ \t]*(\n|$))*")
_YAML = re.compile(r"(%.*\n|#.*\n|---.*\n|\s)*[\"'A-Za-z_][^\n{]*:(\s|$)")
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@without_collection()
def dump(root: fdl.Buildable, *, form: Literal["json", "yaml"] = "json") -> str:
    """A graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    document = write(root)
    text = to_json(document) if form == "json" else to_yaml(document)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """The graph that a file holds, JSON or YAML.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    return load_with_changes(text, source=source, allowed=allowed)[0]


@without_collection()
def load_with_changes(
    text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    """The graph that a file holds, and what has changed since the file was written.

    A line for each parameter that was renamed or is gone, as its constructor declares, and for each
    default that is another one today; the file's stands. The arguments are those of `load`.

    Raises:
      ConfigError: as `load` does.
    """
    written = _parts_of(_data_of(text, source), source)
    try:
        with at(source):
            reading = Reading(written, allowed)
            return reading.root(), reading.changes
    except ConfigError:
        raise
    except _DAMAGED as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def _data_of(text: str, source: str) -> Any:
    """What a text says, as JSON or else as YAML."""
    text = text.removeprefix("\ufeff")  # the mark that some editors put before UTF-8 text
    if _NOTHING.fullmatch(text):
        raise ConfigError(f"{source} is empty: it holds no config.")
    try:
        with at(source):
            return read_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise ConfigError(f"{source} is not JSON: {error}.") from None
        if not _YAML.match(text):
            raise ConfigError(f"{source} is not a fidgpt config, neither JSON nor YAML.") from None
    from fidgpt.graph.storage.plain_yaml import read_yaml  # late: most files are JSON

    with at(source):
        return read_yaml(text)


def _parts_of(document: Any, source: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        is_patch = isinstance(document, dict) and document.get("format") == "fidgpt.patch"
        why = (
            "it is a patch, which changes one" if is_patch else f"it does not say format {FORMAT!r}"
        )
        raise ConfigError(f"{source} is not a fidgpt config: {why}.")
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{source} has version {document.get('version')!r:.40}, and this fidgpt reads "
            f"{VERSION}."
        )
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it holds no root part.")
    return written
