"""Old files and new constructors: what was renamed or taken away since, as the constructors say.

A constructor says it by plain attributes, which this module alone reads:

    class Block(nn.Module):
        RENAMED = {"ffn": "mlp"}          # the old name of a parameter, and what it is called now
        REMOVED = {"use_bias": False}     # what is gone, and the value that it always has now

A package does the same for what it exports: `RENAMED = {"OldBlock": "Block"}` beside `__all__`.
"""

from collections.abc import Mapping
from typing import Any

from fidgpt.graph.errors import ConfigError


def renamed(owner: Any) -> Mapping[str, str]:
    """The names that a constructor or package has given up, each with its successor of today."""
    known = _declared(owner, "RENAMED")
    return {name: _last(known, name) for name in known}


def removed(owner: Any) -> Mapping[str, Any]:
    """The parameters that a constructor has given up, each with the value that stands for good."""
    return _declared(owner, "REMOVED")


class Migration:
    """An entry of an old file, as a constructor of today takes it.

    Attributes:
      changes: what it took, for a person to read.
    """

    def __init__(self, function: Any, names: set[str] | None, *, path: str) -> None:
        """Prepares the reading of one part.

        Args:
          function: what the part calls.
          names: its parameters; None where it takes any.
          path: the part's path.
        """
        self.changes: list[str] = []
        self._renamed = {} if names is None else renamed(function)
        self._removed = {} if names is None else removed(function)
        self._names = names
        self._path = path

    def section(self, written: Mapping[str, Any], *, is_value: bool = False) -> Mapping[str, Any]:
        """The arguments of a section of the file by their names of today.

        Raises:
          ConfigError: a parameter is gone, and had another value than the one that stands now.
        """
        if self._names is None or not (self._renamed or self._removed):
            return written
        found: dict[str, Any] = {}
        for name, value in written.items():
            if name in self._names:
                found[name] = value
            elif name in self._renamed:
                if self._renamed[name] in written:
                    both = f"{self._renamed[name]} and {name}"
                    raise ConfigError(f"it has both {both}, the old name: delete one.")
                found[self._renamed[name]] = value
                self._tell(f"{name} is called {self._renamed[name]} now")
            elif name in self._removed:
                self._drop(name, value, is_value)
            else:
                found[name] = value
        return found

    def _drop(self, name: str, value: Any, is_value: bool) -> None:
        stands = self._removed[name]
        if is_value and (type(value) is not type(stands) or value != stands):
            raise ConfigError(
                f"{name} was {value!r:.60}, and is gone: what is built now is as with "
                f"{stands!r:.60}."
            )
        self._tell(f"{name} is gone, and was {stands!r:.60}, as is built now")

    def _tell(self, what: str) -> None:
        text = f"{self._path or 'the root'}: {what}"
        if text not in self.changes:
            self.changes.append(text)


def _last(known: Mapping[str, str], name: str) -> str:
    """What a name has become, by however many renamings."""
    met = {name}
    while known[name] in known and known[name] not in met:
        name = known[name]
        met.add(name)
    return known[name]


def _declared(owner: Any, name: str) -> Mapping[str, Any]:
    try:
        found = getattr(owner, name, None)
    except Exception:  # whatever a third party's object does when it is asked
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        return {}
    return found
