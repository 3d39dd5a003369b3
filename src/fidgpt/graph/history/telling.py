"""The story of a value in lines for a person."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.history.story import Story, story
from fidgpt.graph.structure.arguments import given
from fidgpt.graph.structure.walk import is_node, title
from fidgpt.graph.typed.formula import is_formula
from fidgpt.graph.views.outline import leaf_text

_MOST = 5  # sayings and sources in a text


def why_text(root: Any, path: str) -> str:
    """The story of a path in a few lines.

    Raises:
      ConfigError, ConfigErrors: as `story` does.
    """
    told = story(root, path)
    lines = [f"{told.path} = {_value_text(told)}", *(f"  {line}" for line in _chain(told))]
    doc = told.doc or (told.source.doc if told.source else "")
    return "\n".join([*lines, *([f"  {doc}"] if doc else [])]) + "\n"


def _chain(told: Story) -> Iterator[str]:
    if told.source is not None:
        yield f"heard through {' and '.join(told.through)} from {told.source.path}"
        if told.left_open is not None:
            yield f"  left open by {told.left_open.who}"
        yield f"{told.source.path} = {_value_text(told.source)}"
        yield from (f"  {line}" for line in _chain(told.source))
        yield from _sayings(told, is_over=True)
    elif told.default_of is not None:
        yield f"the default of {told.default_of}"
        yield from _sayings(told, is_over=True)
    elif told.holder is not None:
        yield from _sayings(told, is_over=False)
        yield f"in {told.holder.path}:"
        yield from (f"  {line}" for line in _chain(told.holder))
    else:
        yield from _sayings(told, is_over=False)
    for source in told.computed_from[:_MOST]:
        heard = f"  <- {source.heard_from}" if source.heard_from else ""
        yield f"computed from {source.path} = {short_text(source.value)}{heard}"


def _sayings(told: Story, *, is_over: bool) -> Iterator[str]:
    """What was said, newest first; all of it has lost where the place hears, or its default stands.

    A value taken away that was never there tells nothing.
    """
    for number, saying in enumerate(told.sayings[:_MOST]):
        if saying.value is fdl.NO_VALUE:
            yield f"taken away by {saying.who}"
        else:
            verb = "before, said by" if is_over or number else "said by"
            yield f"{short_text(saying.value)}  {verb} {saying.who}"
    if not told.sayings and not is_over and told.holder is None:
        yield "nobody recorded who said it"
    if len(told.sayings) > _MOST:
        yield f"and {len(told.sayings) - _MOST} times before"


def _value_text(told: Story) -> str:
    source = told
    while source.source is not None:
        source = source.source
    text = short_text(source.value)
    return text if source.result is fdl.NO_VALUE else f"{text} = {source.result!r:.60}"


def short_text(value: Any) -> str:
    """A value in a few words: a part by its name, a list of parts by theirs."""
    if value is fdl.NO_VALUE:
        return "not set"
    if isinstance(value, fdl.Buildable):
        return given(value)["text"] if is_formula(value) else title(value)
    if isinstance(value, dict) and any(map(is_node, value.values())):
        return f"a dict of {', '.join(map(str, value))}"
    if isinstance(value, list | tuple) and any(isinstance(one, fdl.Buildable) for one in value):
        return f"[{', '.join(map(short_text, value))}]"
    text = leaf_text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
