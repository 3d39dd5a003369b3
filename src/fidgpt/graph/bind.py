"""Tags as variables, the graph as their scope: open quantities hear the nearest that is said."""

from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import Key, assign, default_of, every, given
from fidgpt.graph.clone import clone
from fidgpt.graph.errors import raise_all
from fidgpt.graph.scope import Conflict, Said, Scope, Scopes, Tag, look_up
from fidgpt.graph.walk import Node, join, nodes, parts, step_to, title


@dataclass(frozen=True, slots=True)
class Heard:
    """One open parameter and what it hears.

    Attributes:
      part: the part whose parameter it is.
      path: the parameter's path.
      key: its name, or its number where it has none.
      said: the value and the place that says it.
    """

    part: fdl.Buildable
    path: str
    key: Key
    said: Said


def bind(root: Any) -> Any:
    """A copy of the graph in which every open tagged parameter has its value.

    A parameter that carries a tag and no value is open. It takes the value of the nearest
    enclosing part that has one under that tag, or under a tag that it inherits from, as a name in
    Python means what the nearest enclosing scope binds it to. A value that is itself a part is
    computed in the scope of the place that says it. Where nobody says the quantity the parameter's
    own default stands. Binding twice changes nothing.

    Raises:
      ConfigErrors: all at once, every quantity that nobody says and every one that is said in two
        ways: to a shared part, by two arguments of one part, or under two tags of one parameter.
      ConfigError: a part contains itself, or a quantity is computed from itself.
    """
    bound = clone(root)
    for heard in resolve(bound):
        assign(heard.part, heard.key, heard.said.value)
    for node in parts(bound):
        for key in open_parameters(node.value):
            assign(node.value, key, default_of(node.value, key))
    return bound


def resolve(root: Any) -> list[Heard]:
    """What each open parameter of the graph hears, without changing anything.

    Raises:
      ConfigErrors: as `bind` does.
    """
    heard: list[Heard] = []
    mistakes: list[str] = []
    scopes = Scopes()
    for node in nodes(root):
        scopes.enter(node)
        for key, tags in open_parameters(node.value).items():
            found = _listen(node, tags, scopes.at(node, key))
            path = join(node.path, step_to(key))
            if isinstance(found, Said):
                heard.append(Heard(node.value, path, key, found))
            elif isinstance(found, Conflict):
                mistakes.append(_two_values(path, tags, found))
            elif default_of(node.value, key) is fdl.NO_VALUE:
                mistakes.append(_nobody_says(node, path, tags, key))
    raise_all(mistakes)
    return heard


def open_parameters(part: Any) -> dict[Key, frozenset[Tag]]:
    """The parameters of a part that carry a tag and have no value; none for a container."""
    if not isinstance(part, fdl.Buildable) or not any(part.__argument_tags__.values()):
        return {}
    known = given(part)
    tagged = {key: fdl.get_tags(part, key) for key in every(part) if key not in known}
    return {key: tags for key, tags in tagged.items() if tags}


def _listen(node: Node, tags: frozenset[Tag], scope: Scope) -> Said | Conflict | None:
    """What a parameter with these tags hears; with two tags, they must not disagree."""
    every_found = [look_up(tag, scope) for tag in sorted(tags, key=str)]
    first = None
    for found in every_found:
        if isinstance(found, Conflict):
            return found
        if isinstance(first, Said) and found is not None and not first.agrees(found):
            return Conflict(node, (first.path, first), (found.path, found))
        first = first or found
    return first


def _names(tags: frozenset[Tag]) -> str:
    return " and ".join(sorted(tag.__name__ for tag in tags))


def _nobody_says(node: Node, path: str, tags: frozenset[Tag], key: Key) -> str:
    name = sorted(tag.__name__ for tag in tags)[0]
    holder = node.parents[0][0].path if node.parents else ""
    around = f"cfg.{holder}".rstrip(".")
    return (
        f"{path} hears {_names(tags)}, and no part around it says {name}.\n"
        f"  Say it for this part alone:     set:{path}=...\n"
        f"  or on a part that encloses it:  {around}.<parameter> = {name}.new(...)"
    )


def _two_values(path: str, tags: frozenset[Tag], conflict: Conflict) -> str:
    sides = (conflict.first, conflict.second)
    is_shared = any(said is None or said.path != through for through, said in sides)
    others = ", or give each place a part of its own" if is_shared else ""
    reached = f"Both reach {title(conflict.node.value)}, which they share. " if is_shared else ""
    return "\n".join(
        [
            f"{path} hears {_names(tags)}, and hears two values of it:",
            *(f"  {_one_side(*side)}" for side in sides),
            f"  {reached}Say it there:  set:{path}=...{others}",
        ]
    )


def _one_side(path: str, said: Said | None) -> str:
    if said is None:
        return f"through {path}: nobody says it"
    value = f"{title(said.value)}(...)" if isinstance(said.value, fdl.Buildable) else said.value
    through = "" if path == said.path else f"through {path}: "
    return f"{through}{value!s:.60}, said by {said.path}"
