"""The command that reproduces a config."""

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.compose import directives as registry
from fidgpt.compose.catalogue import Catalogue, needs_arguments
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.report import is_noop
from fidgpt.compose.sources import RESUMED, is_url
from fidgpt.errors import at
from fidgpt.graph import ConfigError, codec, diff_text, parts, provenance, suggest
from fidgpt.graph.reproduce import Repro, nearest, repro

_MOST_KEPT = 256  # graphs that are kept, since others begin like them


def allow_flags(allowed: Iterable[str]) -> list[str]:
    """Return the flags that allow a command some packages of the user's."""
    return [f"--allow={package}" for package in allowed]


def program(name: str) -> list[str]:
    """Return how to call `train` or `sweep` as this command was: installed, or by its script."""
    is_installed = os.path.basename(sys.argv[0]).startswith("fidgpt")
    return ["fidgpt", name] if is_installed else ["python", f"{name}.py"]


def train_command(directives: Iterable[str], *, allowed: Iterable[str] = ()) -> str:
    """Return the line that trains what directives make, with some packages allowed."""
    flags = [f"--config={directive}" for directive in directives]
    return shlex.join([*program("train"), *allow_flags(allowed), *flags])


def named_graphs(catalogue: Catalogue) -> dict[str, Any]:
    """Return the graph of each config that needs no arguments, by its directive.

    Configs that fail are left out; of several names for one function the first counts.
    """
    names: dict[Any, str] = {}
    for name in sorted(catalogue.configs, key=lambda key: "." in key):  # bare names first
        names.setdefault(catalogue.configs[name], f"config:{name}")
    graphs: dict[str, Any] = {}
    for function, directive in names.items():
        with contextlib.suppress(ConfigError):
            if not needs_arguments(function):
                graphs[directive] = compose([directive], catalogue).config
    return graphs


def base_of(composition: Composition) -> str:
    """Return the directive of the config that a graph began with, or of the nearest if unknown.

    Raises:
      ConfigError: the graph cannot be bound.
    """
    first = composition.effects[0].meant if composition.effects else ""
    if registry.split_directive(first)[0] == "config":
        return first
    remembered_first = _first_of(_sources(composition.config))
    if _is_composable(remembered_first, composition.catalogue):
        return remembered_first[0]
    return nearest(composition.config, named_graphs(composition.catalogue))


def _first_of(sources: Sequence[provenance.Source]) -> list[str]:
    """Return the directive that began what others then changed; none if that was no named config.

    A graph that no directive began is `config:base`.
    """
    begun = [source for source in sources if source.run and RESUMED not in source.run]
    firsts = [source.meant or source.text for source in begun if source.number == begun[0].number]
    named = [text for text in firsts if registry.split_directive(text)[0] == "config"]
    is_default = bool(firsts) and not any(map(registry.is_base, firsts))
    return named[:1] or [f"config:{registry.DEFAULT_CONFIG}"] * is_default


def directive_for(text: str, catalogue: Catalogue) -> str:
    """Return the directive for the graph that a user means by a name or a path.

    Args:
      text: a directive such as `config:debug`, the name of a config, a file, or the directory of
        a run.
      catalogue: what has a name.

    Raises:
      ConfigError: it is none of these.
    """
    if registry.is_base(text):
        return text
    name = text.partition("(")[0].strip()
    with contextlib.suppress(ConfigError):
        if name in catalogue.configs or ("." in name and catalogue.find("config", name)):
            return f"config:{text}"
    if is_url(text) and not text.endswith((".json", ".yaml", ".yml")):
        return f"config_file:{text.rstrip('/')}/config.json"
    if is_url(text) or Path(text).expanduser().exists():
        return f"config_file:{text}"
    with at(f"--diff={text}"):
        raise ConfigError(
            f"there is no config, file or run directory of that name. "
            f"{suggest(name, catalogue.configs)}"
        )


def _is_portable(directive: str) -> bool:
    kind = registry.kind_of(directive)
    is_fixed = registry.VARIABLE.search(directive) is None
    return is_fixed and (kind is None or kind.portable)


def remembered(cfg: fdl.Config) -> list[str]:
    """Return the directives that a graph's history names, in order, without directives in files."""
    meant = (source.meant or source.text for source in _sources(cfg))
    return [text for text in meant if _is_portable(text)]


def _sources(cfg: fdl.Config) -> list[provenance.Source]:
    """Return the directives that a graph's history names, in order.

    Those of a previous run, which has a name, come first; a resumed run counts from 1 again.
    """
    sources = provenance.sources_of(node.value for node in parts(cfg))
    directives = [source for source in sources if source.kind == "directive"]
    return sorted(directives, key=lambda source: (source.run is None, source.number))


def _is_composable(directives: Sequence[str], catalogue: Catalogue) -> bool:
    """Return whether directives make a graph; an old run's may name things that are gone."""
    if directives:
        with contextlib.suppress(ConfigError):
            compose(directives, catalogue)
            return True
    return False


def command_for(
    cfg: fdl.Config,
    catalogue: Catalogue,
    *,
    directives: Sequence[str] = (),
    allowed: Sequence[str] = (),
) -> str:
    """Return a command that makes a graph, and in comments what it cannot make.

    Args:
      cfg: the graph.
      catalogue: what has a name.
      directives: those that made it, which may name a config of the user's, or give arguments; if
        they are unknown, what the graph remembers of them is tried.
      allowed: packages that the command is to allow too.

    Raises:
      ConfigError: the graph holds what has no name.
    """
    is_known = bool(directives) and _is_portable(directives[0])
    start = [
        directive
        for directive in (directives if is_known else remembered(cfg))
        if _is_portable(directive) and not registry.is_by_machine(directive)
    ]
    if start and not registry.is_base(start[0]):
        start = [f"config:{registry.DEFAULT_CONFIG}", *start]
    result = _reproduced(cfg, start, catalogue)
    return f"{train_command(result.directives, allowed=allowed)}\n{_rest(result)}"


def directives_from(cfg: fdl.Config, first: str, catalogue: Catalogue) -> str:
    """Return the directives, one on a line, that make `cfg` of the graph that `first` makes.

    Raises:
      ConfigError: a graph holds what has no name.
    """
    result = _reproduced(cfg, [first], catalogue)
    lines = "".join(f"{shlex.quote(f'--config={d}')}\n" for d in result.directives[1:])
    return f"{lines}{_rest(result)}" or "no difference\n"


def _reproduced(cfg: fdl.Config, start: Sequence[str], catalogue: Catalogue) -> Repro:
    """Return directives that make a graph: some to start with, if they still make one, and more."""

    @functools.lru_cache(maxsize=_MOST_KEPT)
    def composed(*directives: str) -> Any:
        *first, last = directives
        base = composed(*first) if first else None
        return compose([last], catalogue, base=base).config

    if not _is_composable(start, catalogue):
        start = [nearest(cfg, named_graphs(catalogue))]
    result = repro(
        cfg,
        start,
        compose=lambda directives: composed(*directives),
        part_name=lambda function: part_name(function, catalogue),
    )
    # A command refuses directives that change nothing, which the original one may have allowed.
    effects = compose(result.directives, catalogue).effects
    return result._replace(directives=[one.text for one in effects if not is_noop(one)])


def part_name(function: Any, catalogue: Catalogue) -> str:
    """Return the shortest name of a constructor in a catalogue; its own if it has none there."""
    name = getattr(function, "__qualname__", repr(function))
    module = codec.shortest(getattr(function, "__module__", "builtins"), name.partition(".")[0])
    for spelling in (name, f"{module.rpartition('.')[2]}.{name}", f"{module}.{name}"):
        with contextlib.suppress(KeyError, ConfigError):
            if catalogue.parts[spelling] is function:
                return spelling
    return name


def _rest(result: Repro) -> str:
    """Return what no directive can express, as comments."""
    if result.is_same:
        return ""
    lines = diff_text(result.left).splitlines() if result.left else ["in ways no difference shows"]
    return "".join(["# No directive makes the rest:\n", *(f"#   {line}\n" for line in lines)])
