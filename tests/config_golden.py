"""The golden of a named config: what its graph and its model hold, or how they differ from another.

A config that is made from another one is held as its difference from it, so that a default that
changes moves one line of one golden, and not of all.
"""

import re
from collections.abc import Callable

import fiddle as fdl
from parameter_listing import list_parameters

from fidgpt import configs
from fidgpt.cli.runs import build_trainer
from fidgpt.graph.history.story import story
from fidgpt.graph.text import Row, rows

PARENTS = {
    "debug": "base",
    "gpt2_124m": "base",
    "gpt2_355m": "gpt2_124m",
    "gpt2_774m": "gpt2_124m",
    "gpt2_1558m": "gpt2_124m",
}

Lines = dict[str, str]
_LAYERS = re.compile(r"(?<=\.)\d+(?:[.,]+\d+)*(?=\.)")


def golden_text(name: str) -> str:
    """What the golden of a config holds, as a text."""
    own, parent = lines_of(name), PARENTS.get(name)
    if parent is None:
        return "".join(f"{key}{text}\n" for key, text in own.items())
    other = lines_of(parent)
    gone = [f"- {key}\n" for key in other if key not in own]
    new = [f"{key}{text}\n" for key, text in own.items() if other.get(key) != text]
    return "".join([f"differs from {parent} in\n", *gone, *new])


def lines_of(name: str) -> Lines:
    """Every line of a config's graph and of its model's parameters, by what stands before it."""
    cfg = getattr(configs, name)()
    graph = {row.path or "the root": _text(row) for row in rows(cfg, defaults=True) if row.text}
    return graph | _parameters(cfg)


def causes(name: str, changed: list[str]) -> list[str]:
    """Who said what stands at the paths of the changed lines, as far as they are paths."""
    cfg = getattr(configs, name)()
    found = []
    for path in (line.split(" = ")[0] for line in changed if " = " in line):
        try:
            told = story(cfg, path)
        except ValueError:
            continue
        if told.default_of:
            found.append(f"{path}: a default of {told.default_of}")
        elif told.sayings:
            found.append(f"{path}: said by {told.sayings[0].who}")
    return list(dict.fromkeys(found))


def moved(read: Callable[[str], str]) -> list[str]:
    """The configs whose golden, as `read` gives it, is not what it would be now."""
    return [name for name in configs.__all__ if read(name) != golden_text(name)]


def _text(row: Row) -> str:
    """A heard value stands where it is said, so that here its source is enough."""
    value, _, source = row.text.partition("  <- ")
    if row.kind == "heard" and source:
        return f" <- {source}"
    return f" = {value}" + ("  (default)" if row.kind == "default" else "")


def _parameters(cfg: fdl.Config) -> Lines:
    count, *lines = list_parameters(build_trainer(cfg)).splitlines()
    found: Lines = {"parameters": f" = {count.split()[0]}"}
    group = ""
    for line in lines:
        label, _, text = line.partition(":")
        if not line.startswith(" "):
            group = label
            found[f"{group}:"] = text
            continue
        layers = _LAYERS.search(label)
        within = f" in layers {layers[0]}" if layers else ""
        found[f"{group}: {_LAYERS.sub('*', label.strip())}"] = f"{text}{within}"
    return found
