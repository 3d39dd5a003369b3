"""Quantities that a formula asks for and that nobody around it says."""

from collections.abc import Iterator

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.structure.walk import Node, join, parts, step_to
from fidgpt.graph.typed.formula import is_formula


def formula_of(node: Node) -> Node | None:
    """The formula that an open quantity belongs to; None where it belongs to none."""
    above = node.parents[0][0] if node.parents else node
    holder = above.parents[0][0] if above.parents else above
    return holder if is_formula(holder.value) and above.value is not holder.value else None


def asked_in_vain(name: str, formula: Node) -> ConfigError:
    """That a formula asks for a tag where it cannot be heard, and what to write instead."""
    root = formula
    while root.parents:
        root = root.parents[0][0]
    said = list(_said(root, name))
    if any(place == formula.path for _, place in said):
        return ConfigError(
            f"{formula.path} is {formula.value.text}, and says {name} itself: it cannot be "
            "computed from itself.\n"
            f"  To change what it is now, write for example {formula.path}*=2.",
            place=formula.path,
        )
    remedy = "No part of this graph does: write the path of a number in its place."
    if said:
        holder, place = said[0]
        remedy = f"{place} says it for what is inside of {holder}: write {{{place}}}."
    return ConfigError(
        f"{formula.path} is {formula.value.text}, and no part around it says {name}.\n  {remedy}",
        place=formula.path,
    )


def _said(root: Node, name: str) -> Iterator[tuple[str, str]]:
    """The parts that say a quantity, each with the place in it."""
    for node in parts(root.value):
        for key, tags in node.value.__argument_tags__.items():
            is_said = node.value.__arguments__.get(key, fdl.NO_VALUE) is not fdl.NO_VALUE
            if is_said and any(tag.__name__ == name for tag in tags):
                yield node.path, join(node.path, step_to(key))
