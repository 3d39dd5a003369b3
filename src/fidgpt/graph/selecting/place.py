"""One place of a graph: what holds it, what is asked there, and what it holds now."""

from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.checking.asked import asked
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.history.sayings import record_item
from fidgpt.graph.signatures.annotations import is_unknown
from fidgpt.graph.signatures.hints import fits, name_of
from fidgpt.graph.structure.arguments import Key, assign, unset
from fidgpt.graph.structure.walk import IS_PART, parts, title

Within = tuple[fdl.Buildable, Key, str]  # a part, one of its arguments, and the steps from there
Opened = tuple[fdl.Buildable, Key, fdl.Buildable]  # a part, one of its arguments, and its value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads.

    Attributes:
      container: the part, list, tuple or dict that holds the place.
      key: the place in it.
      hint: what the annotation asks there.
      path: the whole path.
      holder: the path of the container.
      within: of an item of a list or dict, the part and the argument that it lies in, and the
        steps from there.
      opens: parts that stand for a default on the way, each with the part and the argument that
        will hold it as soon as a value is put here.
    """

    container: Any
    key: Key
    hint: Any
    path: str
    holder: str
    within: Within | None = None
    opens: tuple[Opened, ...] = ()

    @property
    def value(self) -> Any:
        """The value now, or `fdl.NO_VALUE` where nobody set one."""
        if IS_PART[type(self.container)]:
            return self.container.__arguments__.get(self.key, fdl.NO_VALUE)
        return self.container[self.key]

    def refuse(self, value: Any) -> None:
        """Says why a value may not be put here, and changes nothing.

        Raises:
          ConfigError: the value does not fit the annotation, or puts a plain value in the place
            of a part, or would change a tuple.
        """
        if isinstance(self.container, tuple):
            raise ConfigError(f"{self.holder} is a tuple: set it whole, as {self.container!r:.60}.")
        if not fits(value, self.hint):
            why = f"{self.path} takes {name_of(self.hint)}, not {describe(value)}."
            raise ConfigError(why + asked(value, self.hint))
        if not is_unknown(self.hint) or isinstance(value, fdl.Buildable):
            return
        if isinstance(self.value, fdl.Buildable):
            raise ConfigError(
                f"{self.path} is the part {title(self.value)}, which {describe(value)} "
                "cannot replace: set one of its parameters."
            )

    def put(self, value: Any) -> None:
        """Sets the value, as an assignment in Python would.

        Raises:
          ConfigError: as `refuse` does.
        """
        self.refuse(value)
        self.fill(value)

    def fill(self, value: Any) -> None:
        """Sets a value that `refuse` had nothing against."""
        container = self.container
        if self.opens:
            container = self.opens[0][0]
        for _, key, opened in self.opens:
            if key not in container.__arguments__:  # another place may have opened it since
                assign(container, key, opened)
            container = container.__arguments__[key]
        if IS_PART[type(container)]:
            assign(container, self.key, value)
            return
        self.container[self.key] = value
        if self.within:
            record_item(*self.within, value)

    def clear(self) -> None:
        """Takes the value away, so that the default stands or the quantity is open again."""
        if self.value is fdl.NO_VALUE:
            return
        if IS_PART[type(self.container)]:
            unset(self.container, self.key)
        else:
            del self.container[self.key]


def inside_of(above: Place, key: Key) -> Within | None:
    """The part and the argument that an item of a list or dict lies in, and the steps to it."""
    if isinstance(above.container, fdl.Buildable):
        return above.container, above.key, f"[{key!r}]"
    if above.within is None:
        return None
    part, argument, steps = above.within
    return part, argument, f"{steps}[{key!r}]"


def describe(value: Any) -> str:
    """A value in a message: what a part calls, or a plain value and its type."""
    if isinstance(value, fdl.Buildable):
        return f"the part {title(value)}"
    if isinstance(value, list | tuple | dict) and parts(value):
        count = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        return f"a {type(value).__name__} of {count} with parts in it"
    return f"{value!r:.60} ({type(value).__name__})"
