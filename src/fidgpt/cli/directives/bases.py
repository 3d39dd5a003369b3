"""Directives that begin a graph: `config:`, `config_file:` and `config_str:`."""

import fiddle as fdl

from fidgpt.cli.catalogue.calls import call_with
from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.running.reading import read_text
from fidgpt.graph import ConfigError, clone
from fidgpt.graph.typed.calls import parse_call


def from_function(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph that a named function returns, as a copy: it may return one that it keeps.

    Raises:
      ConfigError: there is no such function, it fails, or returns no graph.
    """
    call = parse_call(text)
    root = call_with(catalogue.find("config", call.name), call)
    if not isinstance(root, fdl.Config):
        raise ConfigError(
            f"{call.name} returns {type(root).__name__}, and a config is a fdl.Config."
        )
    return clone(root)


def from_file(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph in a file, at any path that etils' epath or fsspec can read.

    Raises:
      ConfigError: it cannot be read, or holds no graph.
    """
    from fidgpt.cli.running.recall import load_told, recall  # late: most graphs are not of files

    path, content = read_text(text)
    return recall(load_told(content, source=path, allowed=catalogue.packages), path)


def from_text(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph that the text of a file describes.

    Raises:
      ConfigError: it describes none.
    """
    from fidgpt.cli.running.recall import load_told

    return load_told(text, source="the text", allowed=catalogue.packages)
