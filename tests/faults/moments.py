"""When a fault strikes: at a chosen call, or a chosen change of the disk, inside of a function."""

import functools
import importlib
import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Act = Callable[[], None]

# What a process does to the disk, as Python's audit hooks report it.
_CHANGES = frozenset(
    f"os.{name}" for name in ("rename", "remove", "truncate", "mkdir", "rmdir", "chmod", "link")
) | {"open"}


class Place(NamedTuple):
    """Somewhere in a run.

    Attributes:
      function: `module:name`, looked up where it is called.
      occurrence: its how manieth call, from 1.
      unit: what is counted in it, "calls" of any function or "disk" for changes of files.
      number: acts before that one; behind the function's last where there are not as many.
    """

    function: str
    occurrence: int
    unit: str
    number: int

    def arm(self, act: Act, folder: Path) -> None:
        """From now on the act happens there, once.

        Args:
          act: what happens.
          folder: where changes of files count.
        """
        seen = itertools.count(1)

        def around(function: Callable[[], Any]) -> Any:
            if next(seen) != self.occurrence:
                return function()
            left, pending = itertools.count(self.number, -1), [act]

            def count() -> None:
                if pending and next(left) == 0:
                    pending.pop()()

            if self.unit == "disk":
                sys.addaudithook(_hook(folder, count))
            else:
                sys.setprofile(_on_calls(count))
            try:
                result = function()
                sys.setprofile(None)
                if pending:
                    pending.pop()()
                return result
            finally:
                sys.setprofile(None)
                pending.clear()

        wrap(self.function, around)


class Survey:
    """How often functions are called in a run, and how much happens in each call.

    Attributes:
      counts: by function and unit, a number for each of its calls.
    """

    def __init__(self, functions: tuple[str, ...], folder: Path) -> None:
        self.counts: dict[str, dict[str, list[int]]] = {}
        self._calls: dict[int, int] = defaultdict(int)
        self._disk = itertools.count()
        sys.addaudithook(_hook(folder, lambda: next(self._disk)))
        threading.setprofile(_on_calls(self._count))
        sys.setprofile(_on_calls(self._count))
        for function in functions:
            self.counts[function] = {"calls": [], "disk": []}
            wrap(function, functools.partial(self._around, self.counts[function]))

    def _count(self) -> None:
        self._calls[threading.get_ident()] += 1

    def _around(self, counts: dict[str, list[int]], function: Callable[[], Any]) -> Any:
        thread = threading.get_ident()
        calls, disk = self._calls[thread], next(self._disk)
        result = function()
        counts["calls"].append(self._calls[thread] - calls)
        counts["disk"].append(next(self._disk) - disk - 1)
        return result


def wrap(function: str, around: Callable[[Callable[[], Any]], Any]) -> None:
    """Has every call of a function made by `around`.

    Raises:
      AttributeError: there is no such function any more.
    """
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return around(lambda: real(*arguments, **options))

    setattr(owner, name, wrapped)


def _on_calls(notify: Act) -> Callable[[object, str, object], None]:
    """Return a profile function that counts calls."""

    def profile(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            notify()

    return profile


def _hook(folder: Path, notify: Callable[[], Any]) -> Callable[[str, Any], None]:
    """Return a hook for changes in a folder; what is deleted as a tree has relative names."""

    def hook(event: str, arguments: Any) -> None:
        if event in _CHANGES:
            path = str(arguments[0])
            if not path.startswith("/") or str(folder) in path:
                notify()

    return hook
