"""Which config of the index the directives of a command line begin with."""

from collections.abc import Sequence

from fidgpt.cli.index.store import Index

DEFAULT_CONFIG = "base"


def chosen_config(directives: Sequence[str]) -> str | None:
    """Its name; None where they begin with a file."""
    if not directives:
        return DEFAULT_CONFIG
    kind, _, rest = directives[0].partition(":")
    if kind == "config":
        return rest.partition("(")[0].strip()
    return None if kind in ("config_file", "config_str") else DEFAULT_CONFIG


def knobs_of_chosen(directives: Sequence[str], index: Index) -> tuple[str, list[dict]]:
    """The name of the config that directives begin with, and its knobs.

    Raises:
      ConfigError: there is no such config, or it cannot be looked at without its arguments.
    """
    name = chosen_config(directives)
    knobs = index.get("knobs", {})
    if name is not None and name in knobs:
        return name, knobs[name]
    from fidgpt.graph import ConfigError, suggest  # late: only a mistake waits for it

    if name is None:
        raise ConfigError("what a file can set is shown by --print; name a config:NAME here.")
    if name in index["configs"]:
        raise ConfigError(f"config:{name} cannot be looked at: it fails, or needs arguments.")
    raise ConfigError(f"there is no config {name!r}. {suggest(name, index['configs'])}")
