"""Who said an argument or an item: each value that it was given, the newest first, in few words."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.history.sayings import Saying, left_open_by, sayings_of
from fidgpt.graph.page.tables import Texts
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import is_node, title
from fidgpt.graph.views.outline import leaf_text

Told = dict[str, Any]  # a value as text, and the numbers of the directive and of the line of code
_FEW = 8  # items of a list that are written out


def who(part: fdl.Buildable, key: Key, places: Texts, *, step: str = "") -> list[Told]:
    """What was said to an argument, or to an item at `step` inside of it.

    What was said twice in the same words at one place is there once.
    """
    told = [_told(said, places) for said in sayings_of(part, key, step)]
    return [one for i, one in enumerate(told) if i == 0 or one != told[i - 1]]


def steps_said(part: fdl.Buildable) -> dict[str, list[str]]:
    """The items inside of each argument of which something was said, each as the step to it."""
    found: dict[str, list[str]] = {}
    for name in part.__argument_history__:
        key, bracket, item = str(name).partition("[")
        if bracket:
            found.setdefault(key, []).append(bracket + item)
    return found


def who_left_open(part: fdl.Buildable, key: Key, places: Texts) -> Told | None:
    """Who gave an argument its tag and no value, if it is known."""
    said = left_open_by(part, key)
    return None if said is None else _told(said, places)


def said_text(value: Any) -> str:
    """A value as one would write it, on one line; of a part only its name."""
    if value is fdl.NO_VALUE:
        return "taken away"
    if isinstance(value, fdl.Buildable):
        return f"{title(value)}()"
    if not is_node(value):
        return leaf_text(value)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    if len(items) > _FEW or any(map(is_node, items)):
        return f"{type(value).__name__} of {len(items)}"
    return leaf_text(value)


def _told(said: Saying, places: Texts) -> Told:
    told: Told = {"text": said_text(said.value)}
    if said.by:
        told["by"] = places.number(str(said.by))
    if said.where:
        told["where"] = places.number(said.where)
    return told
