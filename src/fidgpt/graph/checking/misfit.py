"""The item that is to blame where a list, tuple or dict does not fit its annotation."""

import inspect
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.signatures.annotations import members_of
from fidgpt.graph.signatures.hints import element_hint, fits, key_hint
from fidgpt.graph.structure.walk import join, title

_SHOWN = 60  # letters of a value


class Misfit(NamedTuple):
    """A value that does not fit.

    Attributes:
      path: where it is.
      value: what it is.
      hint: the annotation there.
      num_others: how many more do not fit in the same list or dict.
    """

    path: str
    value: Any
    hint: Any
    num_others: int = 0


def misfit_in(path: str, value: Any, hint: Any) -> Misfit:
    """The first item in a value that does not fit, however deep; the value where it is no item.

    Args:
      path: the place of the value.
      value: what does not fit.
      hint: the annotation that it does not fit.
    """
    found = Misfit(path, value, hint)
    while wrong := list(_wrong_items(found)):
        found = wrong[0]._replace(num_others=len(wrong) - 1)
    return found


def shown(value: Any) -> str:
    """A value in a message, on one line."""
    if isinstance(value, fdl.Buildable):
        return f"the part {title(value)}"
    text = " ".join(repr(value).split()) if isinstance(value, list | tuple | dict) else repr(value)
    return f"{text:.{_SHOWN}}"


def _wrong_items(one: Misfit) -> Iterator[Misfit]:
    if not (isinstance(one.value, list | tuple | dict) and _is_asked(one.value, one.hint)):
        return
    if isinstance(one.value, dict):
        if not all(fits(key, key_hint(one.hint)) for key in one.value):
            return
        items = [(f"[{key!r}]", key, item) for key, item in one.value.items()]
    else:
        items = [(f"[{i}]", i, item) for i, item in enumerate(one.value)]
    for step, key, item in items:
        hint = element_hint(one.hint, key)
        if not fits(item, hint):
            yield Misfit(join(one.path, step), item, hint)


def _is_asked(value: Any, hint: Any) -> bool:
    """Whether a hint asks for such a container, whatever is in it."""
    origins = [typing.get_origin(one) or one for one in members_of(hint)]
    return any(
        typing.is_typeddict(one) or (inspect.isclass(one) and isinstance(value, one))
        for one in origins
    )
