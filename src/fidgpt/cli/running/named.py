"""The graphs that have a name: which there are, which is nearest, which somebody means."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.calls import needs_arguments
from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.cli.directives.spelling import is_base
from fidgpt.cli.index.frames import known_frames
from fidgpt.cli.running.reading import is_url
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.spelling.repro import nearest

_NOTHING: Mapping[str, Any] = {}


class NamedGraphs(Mapping[str, Any]):
    """The graph of each config that takes no arguments, by its directive, made when asked for.

    To ask for one raises a ConfigError where somebody's config is wrong.
    """

    def __init__(self, catalogue: Catalogue, *, made: Mapping[str, Any] = _NOTHING) -> None:
        """Knows those of a catalogue, and besides some that are `made` already."""
        self._catalogue = catalogue
        self._made = dict(made)
        self._directives: list[str] = []
        seen: set[int] = set()
        for name in sorted(catalogue.configs, key=lambda one: "." in one):  # bare names first
            function = catalogue.configs[name]
            if id(function) not in seen and not needs_arguments(function):
                seen.add(id(function))
                self._directives.append(f"config:{name}")
        self._directives += made.keys() - set(self._directives)

    def __getitem__(self, directive: str) -> Any:
        if directive not in self._directives:
            raise KeyError(directive)
        if directive not in self._made:
            self._made[directive] = compose([directive], self._catalogue)
        return self._made[directive]

    def __iter__(self) -> Iterator[str]:
        return iter(self._directives)

    def __len__(self) -> int:
        return len(self._directives)


def nearest_named(cfg: fdl.Config, catalogue: Catalogue) -> str:
    """The directive of the config that differs least from a graph.

    Raises:
      ConfigError: the graph cannot be bound.
    """
    return nearest(cfg, NamedGraphs(catalogue), known_frames())


def other_directive(text: str, catalogue: Catalogue) -> str:
    """The directive that makes the graph that somebody means by a name or a path.

    Args:
      text: a directive such as `config:debug`, the name of a config, a file, or the directory of
        a run.
      catalogue: what has a name.

    Raises:
      ConfigError: it is none of these.
    """
    if is_base(text):
        return text
    if is_url(text):
        is_file = text.endswith((".json", ".yaml", ".yml"))
        return f"config_file:{text}" if is_file else f"config_file:{text.rstrip('/')}/config.json"
    path = Path(text).expanduser()
    if (path / "config.json").is_file():
        return f"config_file:{path / 'config.json'}"
    if path.is_file():
        return f"config_file:{path}"
    name = text.partition("(")[0].strip()
    if name in catalogue.configs or _is_dotted(name, catalogue):
        return f"config:{text}"
    with at(f"--diff={text}"):
        if path.is_dir():
            raise ConfigError("this directory holds no run: there is no config.json in it.")
        raise ConfigError(
            f"there is no config, file or run directory of that name. "
            f"{suggest(name, catalogue.configs)}"
        )


def _is_dotted(name: str, catalogue: Catalogue) -> bool:
    """Whether a dotted name is that of a config in a module of somebody's own."""
    with contextlib.suppress(ConfigError):
        return "." in name and bool(catalogue.find("config", name))
    return False
