"""Directives that begin a graph: `config:`, `config_file:` and `config_str:`."""

from pathlib import Path

import fiddle as fdl

from fidgpt.cli.catalogue.calls import call_with
from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.running.recall import load_told, recall
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
    """The graph in a file, at any path that etils' epath can read.

    Raises:
      ConfigError: it cannot be read, or holds no graph.
    """
    path, content = read_text(text)
    return recall(load_told(content, source=path, allowed=catalogue.packages), Path(path))


def from_text(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph that the text of a file describes.

    Raises:
      ConfigError: it describes none.
    """
    return load_told(text, source="the text", allowed=catalogue.packages)


def read_text(name: str) -> tuple[str, str]:
    """A file's path, made whole, and what is in it.

    Raises:
      ConfigError: it cannot be read.
    """
    from etils import epath  # late: most runs read no file

    if not name.strip():
        raise ConfigError("the name of a file is missing.")
    try:
        path = epath.Path(name).expanduser()
        return str(path), path.read_text(encoding="utf-8")
    except KeyError as error:
        raise ConfigError(f"{name} cannot be read: nothing here reads {error.args[0]}.") from None
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = getattr(error, "strerror", None) or _reason(error)
        raise ConfigError(f"{name} cannot be read: {reason}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return f"{error!s:.200}".splitlines()[0].rstrip(".") if str(error) else type(error).__name__
