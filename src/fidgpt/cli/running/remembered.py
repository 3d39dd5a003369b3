"""What a graph remembers of the directives that made it."""

from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.graph import ConfigError, parts
from fidgpt.graph.history.sayings import speakers

FILES = ("config_file", "config_str", "patch")  # what they hold, nobody else may have


def remembered(cfg: fdl.Config) -> list[str]:
    """The directives that a graph remembers, in order, as far as something of each is left."""
    said: dict[tuple[bool, int], list[str]] = {}
    for one in speakers(node.value for node in parts(cfg)):
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
