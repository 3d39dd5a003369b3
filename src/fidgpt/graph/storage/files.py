"""Config files: written, read and migrated."""

import re
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import Resolved
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage.document import FORMAT, VERSION, Reading, write
from fidgpt.graph.storage.text import read_json, to_json, to_yaml

_NOTHING = re.compile(r"(\s|#.*(\n|$)|---[ \t]*(\n|$)|\.\.\.[ \t]*(\n|$))*")
_YAML = re.compile(r"(%.*\n|#.*\n|---.*\n|\s)*[\"'A-Za-z_][^\n{]*:(\s|$)")
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@gc_paused()
def dump(root: fdl.Buildable | Resolved, *, form: Literal["json", "yaml"] = "json") -> str:
    """Return a graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    document = write(root)
    text = to_json(document) if form == "json" else to_yaml(document)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """Return the graph that a file holds, JSON or YAML.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is not such a file, or names what it may not, or what does not exist.
    """
    return load_with_changes(text, source=source, allowed=allowed)[0]


@gc_paused()
def load_with_changes(
    text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    """Return the graph that a file holds, and what has changed since the file was written.

    There is a line for each parameter that was renamed or removed, as its constructor declares, and
    for each default that is another one today; that of the file is kept.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: as `load` does.
    """
    document = read_document(text, source, FORMAT)
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it holds no root part.")
    try:
        with at(source):
            reading = Reading(written, allowed)
            return reading.root(), reading.changes
    except ConfigError:
        raise
    except DAMAGED as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def read_document(text: str, source: str, form: str) -> dict[str, Any]:
    """Return the document of a file of a format, whose version is checked.

    Raises:
      ConfigError: the text is not such a document.
    """
    what = form.removeprefix("fidgpt.")
    document = _data_of(text.removeprefix("\ufeff"), source, what)  # a mark of some editors
    found = document.get("format") if isinstance(document, dict) else None
    if found != form:
        others = {
            FORMAT: "it is a whole config",
            "fidgpt.patch": "it is a patch, which changes one",
        }
        why = others.get(str(found), f"its format is not {form!r}")
        raise ConfigError(f"{source} is not a fidgpt {what}: {why}.")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise ConfigError(f"{source} has version {version!r:.40}, and this fidgpt reads {VERSION}.")
    return document


def _data_of(text: str, source: str, what: str) -> Any:
    """Return the data of a text, which is JSON or else YAML."""
    if _NOTHING.fullmatch(text):
        raise ConfigError(f"{source} is empty: it holds no {what}.")
    try:
        with at(source):
            return read_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise ConfigError(f"{source} is not JSON: {error}.") from None
    if not _YAML.match(text):
        raise ConfigError(f"{source} is not a fidgpt {what}, neither JSON nor YAML.")
    with at(source):
        from fidgpt.graph.yaml import read_yaml  # late: most files are JSON

        return read_yaml(text)
