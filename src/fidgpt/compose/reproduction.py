"""The command that reproduces a run."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.compose.catalogue import Catalogue, needs_arguments
from fidgpt.compose.directives import compose
from fidgpt.compose.runs import train_command
from fidgpt.compose.sources import is_url
from fidgpt.compose.spelling import DEFAULT_CONFIG, is_base, is_by_machine, split_directive
from fidgpt.graph import ConfigError, diff_text, fingerprint, parts, suggest
from fidgpt.graph.assignments import sources_of
from fidgpt.graph.codegen import shortest
from fidgpt.graph.errors import at
from fidgpt.graph.reproduce import Repro, nearest, repro

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
    return nearest(cfg, NamedGraphs(catalogue))


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


FILES = ("config_file", "config_str", "patch")  # what they hold, nobody else may have


def remembered(cfg: fdl.Config) -> list[str]:
    """The directives that a graph remembers, in order, as far as something of each is left."""
    said: dict[tuple[bool, int], list[str]] = {}
    for one in sources_of(node.value for node in parts(cfg)):
        if one.kind == "directive":
            said.setdefault((one.run is None, one.number), []).append(one.text)
    # What was said of an earlier run, which has its name before it, goes before what is new; and
    # a run that went on with directives counts them from 1 again.
    ordered = sorted(
        (is_new, nth, number, one)
        for (is_new, number), all_of_it in said.items()
        for nth, one in enumerate(all_of_it)
    )
    return [one for *_, one in ordered if split_directive(one)[0] not in FILES]


def begun_with(cfg: fdl.Config, catalogue: Catalogue) -> str | None:
    """The config that a graph remembers to have begun with, as a directive; None: it knows none."""
    return next(iter(own_base(remembered(cfg), catalogue)), None)


def own_base(said: list[str], catalogue: Catalogue) -> dict[str, Any]:
    """The graph that some directives begin with, where a config's name makes it."""
    if not said or split_directive(said[0])[0] != "config":
        return {}
    try:
        return {said[0]: compose(said[:1], catalogue)}
    except ConfigError:  # of an old run, whose config has another name today
        return {}


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
