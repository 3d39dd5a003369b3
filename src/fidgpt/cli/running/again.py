"""How to make a graph again: the directives, or the whole command, that say it."""

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.calls import needs_arguments
from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.cli.directives.spelling import DEFAULT_CONFIG, is_by_machine, split_directive
from fidgpt.cli.index.frames import known_frames
from fidgpt.cli.running.named import NamedGraphs
from fidgpt.cli.running.remembered import FILES, own_base, remembered
from fidgpt.cli.running.saying import train_command
from fidgpt.graph import ConfigError, diff_text, fingerprint
from fidgpt.graph.spelling.repro import Repro, repro
from fidgpt.graph.views.imports import shortest

_MOST_KEPT = 256  # graphs that are kept, since others begin like them


def command_for(
    cfg: fdl.Config,
    catalogue: Catalogue,
    *,
    directives: Sequence[str] = (),
    allowed: Sequence[str] = (),
) -> str:
    """The shortest command found that makes a graph, and what it cannot make.

    Args:
      cfg: the graph.
      catalogue: what has a name.
      directives: those that made it, which may name a config of somebody's own, or give arguments;
        where they are not known, what the graph remembers of them is tried.
      allowed: packages that the command is to allow too.

    Raises:
      ConfigError: the graph holds what has no name.
    """
    begins_with_file = not directives or split_directive(directives[0])[0] in FILES
    said = remembered(cfg) if begins_with_file else list(directives)
    bases = NamedGraphs(catalogue, made=own_base(said, catalogue))
    found = _found(cfg, bases, catalogue, said=said)
    if found.is_same:
        return f"{train_command(found.directives, allowed=allowed)}\n"
    text = f"{train_command(found.directives, allowed=allowed)}\n{_rest(found)}"
    if directives and fingerprint(compose(directives, catalogue)) == fingerprint(cfg):
        said = train_command(directives, allowed=allowed)
        text += f"# As it was said, the very same:\n#   {said}\n"
    return text


def directives_from(cfg: fdl.Config, first: str, catalogue: Catalogue) -> str:
    """The directives, one on a line, that make `cfg` of the graph that `first` makes.

    Raises:
      ConfigError: a graph holds what has no name.
    """
    found = _found(cfg, {first: compose([first], catalogue)}, catalogue)
    lines = "".join(f"{shlex.quote(f'--config={one}')}\n" for one in found.directives[1:])
    rest = _rest(found)
    return lines + rest if lines or rest else "no difference\n"


def _found(
    cfg: fdl.Config, bases: Mapping[str, Any], catalogue: Catalogue, *, said: Sequence[str] = ()
) -> Repro:
    portable = [one for one in said if split_directive(one)[0] not in FILES]
    portable = [one for one in portable if not is_by_machine(one)]
    own = [one for one in portable if split_directive(one)[0] == "fiddler"]
    return repro(
        cfg,
        bases,
        compose=_composing(catalogue),
        frames=known_frames() if len(bases) > 1 else {},
        fiddlers=dict.fromkeys([*_plain_fiddlers(catalogue), *own]),
        known=_with_base(portable) if len(portable) == len(said) else (),
        part_name=lambda function: part_name(function, catalogue),
    )


def _composing(catalogue: Catalogue) -> Callable[[Sequence[str]], Any]:
    """Makes the graphs of directives, each by its last directive from that of those before it."""

    @functools.lru_cache(maxsize=_MOST_KEPT)
    def made(said: tuple[str, ...]) -> Any:
        *first, last = said
        return compose([last], catalogue, base=made(tuple(first)) if first else None)

    return lambda said: made(tuple(said))


def _with_base(said: list[str]) -> list[str]:
    """Directives with the config that they begin with unless they say so."""
    is_said = not said or split_directive(said[0])[0] == "config"
    return said if is_said else [f"config:{DEFAULT_CONFIG}", *said]


def _plain_fiddlers(catalogue: Catalogue) -> list[str]:
    return [
        f"fiddler:{name}"
        for name, function in catalogue.fiddlers.items()
        if not is_by_machine(f"fiddler:{name}") and not needs_arguments(function, given=1)
    ]


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


def _rest(found: Repro) -> str:
    """What no directive can say, as comments."""
    if found.is_same:
        return ""
    lines = diff_text(found.left).splitlines() if found.left else ["in what no difference shows"]
    return "".join(["# No directive says the rest:\n", *(f"#   {line}\n" for line in lines)])
