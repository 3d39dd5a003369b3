"""Which config of the index the directives of a command line begin with."""

from collections.abc import Sequence

from fidgpt.cli.directives.spelling import DEFAULT_CONFIG
from fidgpt.cli.index.store import Index

_FILES = ("config_file:", "config_str:")


def chosen_config(directives: Sequence[str]) -> str:
    """The name of the config, with the arguments that it is given; of a file, the directive."""
    first = directives[0].strip() if directives else ""
    if first.startswith(_FILES):
        return first
    kind, _, rest = first.partition(":")
    if kind.strip() != "config":
        return DEFAULT_CONFIG
    name, _, arguments = rest.partition("(")
    return rest.strip() if arguments.strip(" )") else name.strip()


def directive_for(name: str) -> str:
    """The directive that begins with a config by the name that it has in the index."""
    return name if name.startswith(_FILES) else f"config:{name}"


def is_listed_nowhere(name: str) -> bool:
    """Whether no list can have a config: it is in a module, a file, or given arguments."""
    return not name.replace("_", "a").isalnum()


def knobs_of_chosen(directives: Sequence[str], index: Index) -> tuple[str, list[dict]]:
    """The name of the config that directives begin with, and its knobs.

    Raises:
      ConfigError: there is no such config, or it cannot be looked at without its arguments.
    """
    name = chosen_config(directives)
    knobs = index.get("knobs", {})
    if name in knobs:
        return name, knobs[name]
    from fidgpt.graph import ConfigError, suggest  # late: only a mistake waits for it

    if name in index["configs"]:
        raise ConfigError(f"config:{name} cannot be looked at: it fails, or needs arguments.")
    raise ConfigError(f"there is no config {name!r}. {suggest(name, index['configs'])}")
