"""What is told of a quantity that nobody says, and of one that is said in two ways."""

from collections.abc import Iterator

import fiddle as fdl

from fidgpt.graph.binding.scope import Conflict, Said, Tag
from fidgpt.graph.binding.unsaid import asked_in_vain, formula_of
from fidgpt.graph.errors import ConfigError, listed
from fidgpt.graph.structure.walk import Node, join, title


def nobody_says(tags: frozenset[Tag], hearers: list[tuple[Node, str]]) -> Iterator[ConfigError]:
    """The mistakes of parameters, each with its part, that hear tags that nobody says."""
    name = sorted(tag.__name__ for tag in tags)[0]
    formulas = [found for node, _ in hearers if (found := formula_of(node))]
    yield from (asked_in_vain(name, one) for one in formulas)
    hearers = [one for one in hearers if formula_of(one[0]) is None]
    if not hearers:
        return
    paths = [path for _, path in hearers]
    them = "it" if len(paths) == 1 else "them"
    around = f"cfg.{_enclosing(hearers[0][0], paths)}".rstrip(".")
    yield ConfigError(
        f"{hearing(paths, tags)}, and no part around {them} says {name}.\n"
        f"  Say it for one part alone:  set:{paths[0]}=...\n"
        f"  or for all that is inside:  {around}.<parameter> = {name}.new(...)",
        place=paths[0],
        sources=paths,
    )


def _enclosing(node: Node, paths: list[str]) -> str:
    """The path of the nearest part above a node that is above all of some paths."""
    while node.parents:
        node = node.parents[0][0]
        inside = (join(node.path, "."), node.path + "[")
        is_part = isinstance(node.value, fdl.Buildable)
        if is_part and all(path.startswith(inside) for path in paths):
            break
    return node.path


def two_values(tags: frozenset[Tag], conflict: Conflict, paths: list[str]) -> ConfigError:
    """The mistake of parameters, by their paths, that would hear two values."""
    sides = (conflict.first, conflict.second)
    is_shared = any(said is None or said.path != through for through, said in sides)
    remedy = f"Say it there:  set:{paths[0]}=..."
    if is_shared:
        place = title(conflict.node.value)
        remedy = f"Both reach one {place}. {remedy}, or give each place its own {place}."
    lines = [
        f"{hearing(paths, tags)}, of which there are two values:",
        *(f"  {_one_side(*side)}" for side in sides),
        f"  {remedy}",
    ]
    ways = [path for through, said in sides for path in (through, said and said.path) if path]
    return ConfigError("\n".join(lines), place=paths[0], sources=[*paths, *ways])


def _one_side(path: str, said: Said | None) -> str:
    if said is None:
        return f"through {path}: nobody says it"
    value = f"{title(said.value)}(...)" if isinstance(said.value, fdl.Buildable) else said.value
    through = "" if path == said.path else f"through {path}: "
    return f"{through}{value!s:.60}, said by {said.path}"


def hearing(paths: list[str], tags: frozenset[Tag]) -> str:
    """That parameters hear tags, as the beginning of a sentence."""
    return f"{listed(paths, most=2)} {'hears' if len(paths) == 1 else 'hear'} {_names(tags)}"


def _names(tags: frozenset[Tag]) -> str:
    return " and ".join(sorted(tag.__name__ for tag in tags))
