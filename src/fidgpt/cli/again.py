"""How to make a graph again, and which graph somebody means: between directives and names."""

import inspect
import shlex
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue import Catalogue
from fidgpt.cli.directives import compose, is_by_machine, split_directive
from fidgpt.graph import ConfigError, diff_text, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.repro import Repro, repro
from fidgpt.graph.views.imports import shortest


def command_for(cfg: fdl.Config, catalogue: Catalogue, *, begun_with: str = "") -> str:
    """The shortest command found that makes a graph, and what it cannot make.

    Args:
      cfg: the graph.
      catalogue: what has a name.
      begun_with: the directive that the graph began with, which may name a config of somebody's
        own, or give arguments to one; "" where it is not known.

    Raises:
      ConfigError: the graph holds what has no name.
    """
    bases = named_graphs(catalogue)
    if split_directive(begun_with)[0] == "config":
        bases |= {begun_with: compose([begun_with], catalogue)}
    found = _found(cfg, bases, catalogue)
    words = ["python", "train.py", *(f"--config={one}" for one in found.directives)]
    return f"{shlex.join(words)}\n{_rest(found)}"


def directives_from(cfg: fdl.Config, first: str, catalogue: Catalogue) -> str:
    """The directives, one on a line, that make `cfg` of the graph that `first` makes.

    Raises:
      ConfigError: a graph holds what has no name.
    """
    found = _found(cfg, {first: compose([first], catalogue)}, catalogue)
    lines = "".join(f"{shlex.quote(f'--config={one}')}\n" for one in found.directives[1:])
    rest = _rest(found)
    return lines + rest if lines or rest else "no difference\n"


def named_graphs(catalogue: Catalogue) -> dict[str, Any]:
    """The graph of each config that can be made without arguments, by its directive."""
    graphs: dict[str, Any] = {}
    seen: set[int] = set()
    for name in sorted(catalogue.configs, key=lambda one: "." in one):  # bare names first
        function = catalogue.configs[name]
        if id(function) in seen or _required(function, skip=0):
            continue
        seen.add(id(function))
        try:
            graphs[f"config:{name}"] = compose([f"config:{name}"], catalogue)
        except ConfigError:  # somebody's config that is wrong is no way to make this one
            continue
    return graphs


def other_directive(text: str, catalogue: Catalogue) -> str:
    """The directive that makes the graph that somebody means by a name or a path.

    Args:
      text: a directive such as `config:debug`, the name of a config, a file, or the directory of
        a run.
      catalogue: what has a name.

    Raises:
      ConfigError: it is none of these.
    """
    if split_directive(text)[0] in ("config", "config_file", "config_str"):
        return text
    path = Path(text).expanduser()
    if (path / "config.json").is_file():
        return f"config_file:{path / 'config.json'}"
    if path.is_file():
        return f"config_file:{path}"
    name = text.partition("(")[0].strip()
    if name in catalogue.configs:
        return f"config:{text}"
    with at(f"--diff={text}"):
        if path.is_dir():
            raise ConfigError("this directory holds no run: there is no config.json in it.")
        raise ConfigError(
            f"there is no config, file or run directory of that name. "
            f"{suggest(name, catalogue.configs)}"
        )


def _found(cfg: fdl.Config, bases: dict[str, Any], catalogue: Catalogue) -> Repro:
    return repro(
        cfg,
        bases,
        compose=lambda said: compose(said, catalogue),
        fiddlers=_plain_fiddlers(catalogue),
        part_name=lambda function: part_name(function, catalogue),
    )


def part_name(function: Any, catalogue: Catalogue) -> str:
    """The shortest name under which the catalogue has a constructor; its own where it has none."""
    name = getattr(function, "__qualname__", repr(function))
    module = shortest(getattr(function, "__module__", "builtins"), name.partition(".")[0])
    names = (name, f"{module.rpartition('.')[2]}.{name}", f"{module}.{name}")
    return next((one for one in names if _stands_for(one, function, catalogue)), name)


def _stands_for(name: str, function: Any, catalogue: Catalogue) -> bool:
    try:
        return catalogue.parts[name] is function
    except (KeyError, ConfigError):
        return False


def _plain_fiddlers(catalogue: Catalogue) -> list[str]:
    return [
        f"fiddler:{name}"
        for name, function in catalogue.fiddlers.items()
        if not is_by_machine(f"fiddler:{name}") and not _required(function, skip=1)
    ]


def _required(function: Any, *, skip: int) -> bool:
    """Whether a function cannot be called without arguments, past those that it is given."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    return any(one.default is one.empty and one.kind not in variadic for one in parameters)


def _rest(found: Repro) -> str:
    """What no directive can say, as comments."""
    if found.is_same:
        return ""
    lines = diff_text(found.left).splitlines() if found.left else ["in what no difference shows"]
    return "".join(["# No directive says the rest:\n", *(f"#   {line}\n" for line in lines)])
