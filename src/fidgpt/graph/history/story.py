"""Why a value is what it is: who said it, who said it before, and through what it was heard."""

import functools
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.binding.bind import Heard, bind, resolve
from fidgpt.graph.history.sayings import Saying, left_open_by, sayings_of
from fidgpt.graph.selecting.paths import Place, find_place
from fidgpt.graph.structure.arguments import Key, default_of, every, given, parameter_of
from fidgpt.graph.structure.quantities import computed, is_quantity
from fidgpt.graph.structure.walk import join, step_to, title
from fidgpt.graph.typed.formula import is_formula


@dataclass(frozen=True, slots=True)
class Source:
    """One of the values that a computed value is computed from.

    Attributes:
      path: the argument of the computation.
      value: what it is.
      heard_from: the place that says it, where it is heard.
    """

    path: str
    value: Any
    heard_from: str | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """How a parameter, or an item of a list or dict, came to its value.

    Attributes:
      path: the place.
      value: the value now, wherever it comes from; `fdl.NO_VALUE` where there is none.
      sayings: what was said in this very place, newest first; the first one stands, unless it
        took the value away.
      through: the tags by which the value is heard from another place; empty where it is not.
      left_open: who left the place open, where it is heard.
      source: the story of the place that says the value, where it is heard.
      holder: the story of the whole list or dict, where the place is an item of one.
      result: what a computed value comes to, where it can be known without its surroundings.
      computed_from: what it is computed from.
      default_of: the constructor whose default stands, with the place in which it is written.
      doc: the first words on the parameter, or on the quantity.
    """

    path: str
    value: Any
    sayings: list[Saying] = field(default_factory=list)
    through: tuple[str, ...] = ()
    left_open: Saying | None = None
    source: "Story | None" = None
    holder: "Story | None" = None
    result: Any = fdl.NO_VALUE
    computed_from: list[Source] = field(default_factory=list)
    default_of: str | None = None
    doc: str = ""


def story(root: Any, path: str) -> Story:
    """Why the parameter or item at a path has its value.

    Raises:
      ConfigError: there is no such place; the nearest names are suggested.
      ConfigErrors: the graph cannot be bound.
    """
    return _Teller(root).tell(find_place(root, path))


def sayings_at(place: Place) -> list[Saying]:
    """What was said in a very place, newest first; of an item, the part that holds it knows."""
    if isinstance(place.container, fdl.Buildable):
        return sayings_of(place.container, place.key)
    return sayings_of(*place.within) if place.within else []


class _Teller:
    """Knows what is heard in a graph."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._heard = {(id(one.part), one.key): one for one in resolve(root)}

    def tell(self, place: Place) -> Story:
        part, key, said = place.container, place.key, place.value
        if not isinstance(part, fdl.Buildable):
            return self._of_item(place)
        told = Story(place.path, said, sayings_of(part, key), doc=_doc(part, key))
        if heard := self._heard.get((id(part), key)):
            return replace(
                told,
                value=heard.said.value,
                through=_tag_names(part, key),
                left_open=left_open_by(part, key),
                source=self._of_source(heard),
            )
        if said is fdl.NO_VALUE and (default := default_of(part, key)) is not fdl.NO_VALUE:
            return replace(told, value=default, default_of=_definition(part))
        if is_quantity(said):
            sources = list(self._sources(said, place.path))
            return replace(told, result=self._result(place), computed_from=sources)
        return told

    def _of_item(self, place: Place) -> Story:
        """An item's own sayings are kept by the part that holds the list or dict."""
        owner = place
        while not isinstance(owner.container, fdl.Buildable) and owner.holder:
            owner = find_place(self._root, owner.holder)
        if not isinstance(owner.container, fdl.Buildable):  # the root itself is a list
            return Story(place.path, place.value)
        return Story(place.path, place.value, sayings_at(place), holder=self.tell(owner))

    def _of_source(self, heard: Heard) -> Story:
        said = heard.said
        path = join(said.node.path, step_to(said.key))
        return self.tell(Place(said.node.value, said.key, Any, path, said.node.path))

    def _sources(self, part: fdl.Buildable, path: str) -> Iterator[Source]:
        if is_formula(part):
            yield from self._named_in_formula(path)
            return
        known = given(part)
        for key, value in every(part).items():
            heard = self._heard.get((id(part), key))
            place = join(path, step_to(key))
            if heard:
                yield Source(place, heard.said.value, heard.said.path)
            elif key in known or value is not fdl.NO_VALUE:
                yield Source(place, value)

    def _named_in_formula(self, path: str) -> Iterator[Source]:
        """The values that a formula names, which are known once the graph is bound."""
        for name, value in given(find_place(self._bound, path).value)["values"].items():
            if isinstance(value, TaggedValueCls):
                value = given(value).get("value", fdl.NO_VALUE)
            yield Source(name, value if computed(value) is fdl.NO_VALUE else computed(value))

    def _result(self, place: Place) -> Any:
        """What a computed value comes to; nothing where it cannot be computed by itself."""
        return computed(find_place(self._bound, place.path).value)

    @functools.cached_property
    def _bound(self) -> Any:
        return bind(self._root)


def _tag_names(part: fdl.Buildable, key: Key) -> tuple[str, ...]:
    return tuple(sorted(tag.__name__ for tag in fdl.get_tags(part, key)))


def _definition(part: fdl.Buildable) -> str:
    """The name of what a part calls, and where that is written."""
    function = inspect.unwrap(fdl.get_callable(part))
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # built in, or typed into a shell
        return title(part)
    return f"{title(part)} ({(file or '').removeprefix(os.getcwd() + os.sep)}:{line})"


def _doc(part: fdl.Buildable, key: Key) -> str:
    """What the constructor's documentation says of a parameter, else what its tag says."""
    from fidgpt.graph.signatures.docs import doc_of

    parameter = parameter_of(part, key)
    found = doc_of(fdl.get_callable(part)).parameters
    name = parameter.name if parameter else str(key)
    if found.get(name):
        return f"{name} of {title(part)}: {' '.join(found[name].split())}"
    for tag in sorted(fdl.get_tags(part, key), key=str):
        return f"{tag.__name__}: {(inspect.getdoc(tag) or '').splitlines()[0]}"
    return ""
