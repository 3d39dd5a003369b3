"""Sections of a Levanter file, and the directives collected from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fidgpt.graph.hints import fits
from fidgpt.graph.values import as_asked
from fidgpt.graph.yaml import Foreign

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

Row = tuple[str, Any, type, str]  # a key, its default in Levanter, its type, and our path


@dataclass(slots=True)
class Plan:
    """What was found so far.

    Attributes:
      config: the named config to start from.
      changes: directives that put in other components.
      wanted: values for paths of the graph.
      last: directives to apply once those values are set.
      unmapped: paths of the file for which fidgpt has no equivalent, each with its value and why.
      errors: what is wrong with the file.
    """

    config: str = "config:base"
    changes: list[str] = field(default_factory=list)
    wanted: dict[str, Any] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Section:
    """A mapping of the file, from which each entry is removed once it is read."""

    def __init__(self, plan: Plan, path: str, written: Any) -> None:
        self.plan = plan
        self.path = path
        self.left: dict[Any, Any] = {}
        if isinstance(written, Foreign):
            plan.unmapped.append(f"{path}: {written.tag} {written.value:.60} (is another file)")
        elif isinstance(written, dict):
            self.left = dict(written)
        elif written is not None:
            plan.errors.append(f"{path} is {shown(written)}, but must be a mapping.")

    def section(self, key: str) -> "Section":
        """Return the section inside this one; empty if unset."""
        return Section(self.plan, self._at(key), self.left.pop(key, None))

    def inside(self, key: str, written: Any) -> "Section":
        """Return a value of this section as a section of its own."""
        return Section(self.plan, self._at(key), written)

    def take(self, key: str, default: Any, kind: type) -> Any:
        """Return a value of a type, or the default if it is unset or null."""
        value = self.left.pop(key, None)
        if value is None:
            return default
        value = as_asked(value, kind)
        if fits(value, kind):
            return value
        self.error(key, value, _KINDS[kind])
        return default

    def want(self, *rows: Row) -> None:
        """Want the values of some keys at our paths."""
        for key, default, kind, path in rows:
            self.plan.wanted[path] = self.take(key, default, kind)

    def takes(self, key: str, *kinds: type) -> bool:
        """Whether a key has a value of one of some types."""
        return type(self.left.get(key)) in kinds

    def change(self, name: str, /, **arguments: Any) -> None:
        """Add a directive such as `fiddler:use_x(a=1)`."""
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        self.plan.changes.append(f"{name}({text})" if text else name)

    def error(self, key: str, value: Any, wanted: str) -> None:
        """Note a value that makes no sense."""
        self.plan.errors.append(f"{self._at(key)} is {shown(value)}, but must be {wanted}.")

    def unmap(self, key: str, value: Any, reason: str) -> None:
        """Note that fidgpt has no equivalent for a value, set or by default."""
        self.plan.unmapped.append(f"{self._at(key)}: {shown(value)} ({reason})")

    def neutral(self, defaults: Mapping[str, Any]) -> None:
        """Remove entries that only repeat what fidgpt does."""
        for key, value in defaults.items():
            if key in self.left and self.left[key] == value:
                del self.left[key]

    def drop(self, keys: Iterable[Any], reason: str = "") -> None:
        """Remove entries; with a reason, note that they have no equivalent."""
        for key in keys:
            value = self.left.pop(key, None)
            if value is not None and reason:
                self.unmap(str(key), value, reason)

    def close(self) -> None:
        """Note whatever is left and not null."""
        self.drop([*self.left], "fidgpt has no equivalent")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".removeprefix(".")


def shown(value: Any) -> str:
    """Return a value of the file for a message, however large it is."""
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Foreign):
        return f"{value.tag} {value.value:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value!s:.60}"
