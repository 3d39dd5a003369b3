"""Names and `${references}` in files that describe calls by `_target_`."""

import importlib
import importlib.util
import inspect
import re
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.storage.codec import ROOMS, SINGLE, TORCH_MODULES, find_name, name_of
from fidgpt.graph.yaml import Foreign

_MARK = re.compile(r"(\\*)\$\{")
_REFERENCE = re.compile(r"(\\*)\$\{([^{}]*)(\}?)")
_MAX_LENGTH = 10_000  # characters; texts that repeat each other could grow without end
_OWN = (
    *(f"fidgpt.{room}" for room in ROOMS),
    *(f"fidgpt.{one}".replace(":", ".") for one in SINGLE),
)


def escaped(text: str) -> str:
    """Return a text in which no `${` is taken for a reference."""
    return _MARK.sub(lambda match: f"{match[1] * 2}\\${{", text)


class References:
    """The references of a tree of plain data.

    A text that is one `${path}` stands for the very value at the path, so that a part is the same
    one in both places. Within a longer text a reference is replaced by the text of the value.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[tuple[int, str]] = []
        self._holders: dict[int, Any] = {}
        todo = [root]
        while todo:
            holder = todo.pop()
            for item in holder.values() if isinstance(holder, dict) else holder:
                if isinstance(item, dict | list) and id(item) not in self._holders:
                    self._holders[id(item)] = holder
                    todo.append(item)

    def value(self, holder: Any, value: Any) -> Any:
        """Return what a value in the container `holder` stands for, which mostly is itself.

        Raises:
          ConfigError: it names what is not there, or itself, or needs more than a path.
        """
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole[1]:
            return self._target(holder, whole)
        text = _REFERENCE.sub(lambda match: self._text(holder, match), value)
        if len(text) > _MAX_LENGTH:
            raise ConfigError(
                f"{value!r:.60} becomes a text of more than {_MAX_LENGTH:,} characters."
            )
        return text

    def _text(self, holder: Any, match: re.Match[str]) -> str:
        backslashes = "\\" * (len(match[1]) // 2)
        if len(match[1]) % 2:
            return backslashes + match[0].lstrip("\\")
        found = self._target(holder, match)
        if isinstance(found, dict | list | Foreign):
            raise ConfigError(f"{match.string!r:.80} puts a {type(found).__name__} into a text.")
        return f"{backslashes}{found}"

    def _target(self, holder: Any, match: re.Match[str]) -> Any:
        path = match[2].strip()
        steps = [step.strip("'\"") for step in re.findall(r"[^.\[\]]+", path)]
        if ":" in path:
            raise ConfigError(
                f"{match.string!r:.80} uses the resolver {path.partition(':')[0]!r:.40}, which "
                "would run code: write the value that it gives."
            )
        if not match[3] or not steps:
            raise ConfigError(
                f"{match.string!r:.80} is not a reference to a path: write ${{a.b}}, or \\${{ for "
                "the two characters."
            )
        if (id(holder), path) in self._open:
            raise ConfigError(f"{match.string!r:.80} leads back to itself.")
        self._open.append((id(holder), path))
        try:
            value = self._start(holder, path)
            for step in steps:
                value = self.value(value, _entry(value, step))
        finally:
            self._open.pop()
        return value

    def _start(self, holder: Any, path: str) -> Any:
        dots = len(path) - len(path.lstrip("."))
        for _ in range(dots - 1):
            if holder is self._root:
                raise ConfigError(f"${{{path:.60}}} goes up beyond the top of the file.")
            holder = self._holders[id(holder)]
        return holder if dots else self._root


def _entry(value: Any, step: str) -> Any:
    number = int(step) if step.isdecimal() and len(step) < 10 else None
    if isinstance(value, list):
        if number is not None and number < len(value):
            return value[number]
        raise ConfigError(f"there is no {step!r:.40} in a list of {len(value)}.")
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r:.40} is a plain value, and has no {step!r:.40}.")
    for key in (step, number):
        if key in value:
            return value[key]
    raise ConfigError(f"there is no {step!r:.40}. {suggest(step, map(str, value))}")


def refusal(name: str, allowed: tuple[str, ...]) -> str | None:
    """Return why a file may not use a name, without importing anything; None if it may."""
    parts = name.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and ":" not in name):
        return f"{name!r:.80} is not a dotted name, such as torch.nn.Linear."
    if _package(name.replace(":", "."), (*_OWN, *TORCH_MODULES, *allowed)):
        return None
    return (
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        "torch.nn, optimizers of torch.optim, and packages that you --allow."
    )


def find_target(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """Return the class or function of a dotted name; in `module:qualname` the module ends there.

    Raises:
      ConfigError: the name is not allowed, or nothing has it.
    """
    if message := refusal(name, allowed):
        raise ConfigError(message)
    if ":" not in name:
        package = _package(name, allowed)
        name = _split_module(name, package) if package else ":".join(name.rsplit(".", 1))
    module, _, qualname = name.partition(":")
    if module in TORCH_MODULES:
        classes = dict(inspect.getmembers(importlib.import_module(module), inspect.isclass))
        if qualname not in classes:
            raise ConfigError(
                f"{module} has no class {qualname!r:.40}. {suggest(qualname, classes)}"
            )
        name = name_of(classes[qualname])
    return find_name(name, allowed=allowed)


def dotted_name(thing: Any) -> str:
    """Return the shortest dotted name by which a file can name a class or function.

    Raises:
      ConfigError: it has none, because it was defined inside a function or in a notebook.
    """
    module, _, qualname = name_of(thing).partition(":")
    for package in TORCH_MODULES if module.startswith("torch.") else ():
        if getattr(importlib.import_module(package), qualname, None) is thing:
            return f"{package}.{qualname}"
    return f"{module}.{qualname}"


def _package(name: str, packages: tuple[str, ...]) -> str | None:
    """Return the first of some packages that a name belongs to."""
    inside = (one for one in packages if name == one or name.startswith(f"{one}."))
    return next(inside, None)


def _split_module(name: str, package: str) -> str:
    """Put a colon where the module of a name ends; Python imports packages to look into them."""
    module, rest = package, name.removeprefix(package).strip(".").split(".")
    try:
        while len(rest) > 1 and importlib.util.find_spec(f"{module}.{rest[0]}"):
            module = f"{module}.{rest.pop(0)}"
    except ModuleNotFoundError:
        pass  # the module is not a package
    except Exception as error:  # whatever the user's own package raises when it is imported
        raise ConfigError(f"{module} cannot be imported for {name!r:.80}: {error}") from error
    return f"{module}:{'.'.join(rest)}"
