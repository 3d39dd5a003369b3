"""One section of a Levanter file while it is read: what was asked of it, and what is left."""

from dataclasses import dataclass, field
from typing import Any

from fidgpt.interop.yaml_in import Foreign

BLOCK = "model.blocks[0]"  # what all layers are like
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(slots=True)
class Plan:
    """What was found so far.

    Attributes:
      config: the named config to begin with.
      changes: directives that bring in other parts.
      wanted: values for paths of the graph.
      last: directives that come when those values are there.
      unmapped: paths of the file for which fidgpt has nothing, each with its value and why.
      mistakes: what is wrong with the file.
    """

    config: str = "config:base"
    changes: list[str] = field(default_factory=list)
    wanted: list[tuple[str, Any]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def said(self, path: str, otherwise: Any = 0) -> Any:
        """The value that is wanted for a path so far."""
        return dict(self.wanted).get(path, otherwise)


class Section:
    """A mapping of the file: each entry is taken out when it is asked for."""

    def __init__(self, plan: Plan, path: str, written: Any) -> None:
        self.plan = plan
        self.path = path
        self.left: dict[Any, Any] = {}
        if isinstance(written, Foreign):
            plan.unmapped.append(f"{path}: {written.tag} {written.value:.60} (is another file)")
        elif isinstance(written, dict):
            self.left = dict(written)
        elif written is not None:
            plan.mistakes.append(f"{path} is {shown(written)}, and a mapping is asked.")

    def section(self, key: str) -> "Section":
        """The section inside of this one; empty where nothing is said."""
        return Section(self.plan, self._at(key), self.left.pop(key, None))

    def inside(self, key: str, written: Any) -> "Section":
        """What was found at a place of this one, as a section."""
        return Section(self.plan, self._at(key), written)

    def take(self, key: str, default: Any, kind: type) -> Any:
        """A value of a kind, or the default where nothing is said, or null."""
        value = self.left.pop(key, None)
        if value is None:
            return default
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is kind:
            return value
        self.plan.mistakes.append(
            f"{self._at(key)} is {shown(value)}, and {_KINDS[kind]} is asked."
        )
        return default

    def takes(self, key: str, *kinds: type) -> bool:
        """Whether something of one of some kinds is said."""
        return type(self.left.get(key)) in kinds

    def unmap(self, key: str, value: Any, reason: str) -> None:
        """Notes that fidgpt has nothing for a value, said or by default."""
        self.plan.unmapped.append(f"{self._at(key)}: {shown(value)} ({reason})")

    def neutral(self, defaults: dict[str, Any]) -> None:
        """Takes out entries that say no more than what fidgpt does anyway."""
        for key, value in defaults.items():
            if key in self.left and (self.left[key] is None or self.left[key] == value):
                del self.left[key]

    def close(self) -> None:
        """Notes whatever is left."""
        for key, value in self.left.items():
            self.unmap(str(key), value, "fidgpt has nothing for it")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".removeprefix(".")


def shown(value: Any) -> str:
    """A value of the file in a message, however large it is."""
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Foreign):
        return f"{value.tag} {value.value:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.60}" if isinstance(value, str) else str(value)
