"""Names and references of _target_ trees."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.storage.codec import ROOMS, SINGLE, TORCH_MODULES, find_name, is_tag, name_of
from fidgpt.graph.yaml import Foreign

_MARK = re.compile(r"(\\*)\$\{")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")
_MOST_HOPS = 100  # from one reference to the next
_LONGEST = 10_000  # characters; texts that repeat each other could grow without end


def escaped(text: str) -> str:
    """A text as it is written in a file, so that no `${` in it is taken for a reference."""
    return _MARK.sub(lambda match: f"{match[1] * 2}\\${{", text)


class References:
    """The references of a tree.

    A text that is nothing but `${path}` stands for the very value at the path: for a part, it is
    the same part in both places. Within a longer text a reference is replaced by what it names.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._holders = _holders(root)
        self._texts: dict[tuple[int, str], str] = {}

    def value(self, holder: Any, value: Any) -> Any:
        """What a value stands for that lies in the container `holder`; most stand for themselves.

        Raises:
          ConfigError: it names what is not there, or itself, or asks for more than a path.
        """
        return self._value(holder, value, 0)

    def _value(self, holder: Any, value: Any, hops: int) -> Any:
        keys: list[str] = []
        while True:
            if isinstance(value, str) and "${" in value:
                hops += 1
                if hops > _MOST_HOPS:
                    raise ConfigError(
                        f"{value!r:.80} leads back to itself, or through more than {_MOST_HOPS} "
                        "references."
                    )
                path = _whole(value)
                if path is None:
                    value = self._text(holder, value, hops)
                    if keys:
                        raise ConfigError(f"{value!r:.60} is a text, and has no {keys[-1]!r:.40}.")
                    return value
                holder, steps = self._start(holder, path)
                keys += reversed(steps)
                value = holder
            if not keys:
                return value
            holder, value = value, _entry(value, keys.pop())

    def _start(self, holder: Any, path: str) -> tuple[Any, list[str]]:
        """The container at which a path begins, and its steps from there."""
        up = len(path) - len(path.lstrip("."))
        if not up:
            return self._root, _steps(path)
        for _ in range(up - 1):
            holder = self._holders.get(id(holder))
            if holder is None:
                raise ConfigError(f"${{{path:.60}}} goes up beyond the top of the file.")
        return holder, _steps(path[up:])

    def _text(self, holder: Any, text: str, hops: int) -> str:
        known = (id(holder), text)
        if known not in self._texts:
            self._texts[known] = "".join(self._pieces(holder, text, hops))
        if len(self._texts[known]) > _LONGEST:
            raise ConfigError(f"{text!r:.60} becomes a text of more than {_LONGEST:,} characters.")
        return self._texts[known]

    def _pieces(self, holder: Any, text: str, hops: int) -> Iterator[str]:
        at = 0
        for match in _MARK.finditer(text):
            yield text[at : match.start()] + "\\" * (len(match[1]) // 2)
            at = match.end()
            if len(match[1]) % 2:
                yield "${"
                continue
            end = text.find("}", at)
            named = self._value(holder, f"${{{_path(text, at, end)}}}", hops)
            at = end + 1
            if isinstance(named, dict | list | Foreign):
                raise ConfigError(f"{text!r:.80} puts a {type(named).__name__} into a text.")
            yield str(named)
        yield text[at:]


def _holders(root: Any) -> dict[int, Any]:
    """The container that holds each container first."""
    found: dict[int, Any] = {id(root): None}
    todo = [root]
    while todo:
        holder = todo.pop()
        for item in holder.values() if isinstance(holder, dict) else holder:
            if isinstance(item, dict | list) and id(item) not in found:
                found[id(item)] = holder
                todo.append(item)
    return found


def _whole(text: str) -> str | None:
    """The path of a text that is one reference and nothing else."""
    is_one = text.startswith("${") and text.endswith("}") and text.count("${") == 1
    return _path(text, 2, text.find("}")) if is_one and text.find("}") == len(text) - 1 else None


def _path(text: str, begin: int, end: int) -> str:
    path = text[begin:end].strip() if end >= 0 else ""
    if not path.strip(".") or "${" in path:
        raise _no_path(text)
    if ":" in path:
        raise ConfigError(
            f"{text!r:.80} asks the resolver {path.partition(':')[0]!r:.40}, which would run code: "
            "write the value that it gives."
        )
    return path


def _no_path(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r:.80} is no reference to a path: write ${{a.b}}, or \\${{ for the two signs."
    )


def _steps(path: str) -> list[str]:
    steps, at = [], 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _no_path(f"${{{path}}}")
        steps.append((match[1] or match[2]).strip("'\""))
        at = match.end()
    return steps


def _entry(value: Any, step: str) -> Any:
    if isinstance(value, list):
        if step.isdecimal() and int(step[:9]) < len(value):
            return value[int(step[:9])]
        raise ConfigError(f"there is no {step!r:.40} in a list of {len(value)}.")
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r:.40} is a plain value, and has no {step!r:.40}.")
    for key in (step, int(step) if step.isdecimal() and len(step) < 10 else step):
        if key in value:
            return value[key]
    raise ConfigError(f"there is no {step!r:.40}. {suggest(step, map(str, value))}")


def refusal(name: str, allowed: tuple[str, ...]) -> str | None:
    """Why a file may not ask for a name, known without importing anything; None where it may."""
    module = name.partition(":")[0]
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and ":" not in name):
        return f"{name!r:.80} is no dotted name, such as torch.nn.Linear."
    is_own = parts[0] == "fidgpt" and parts[1] in ROOMS if len(parts) > 1 else False
    is_own = is_own or _dotted(name) in [_dotted(f"fidgpt.{one}") for one in SINGLE]
    if is_own or _package(module, (*TORCH_MODULES, *allowed)):
        return None
    return (
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        "torch.nn, optimizers of torch.optim, and packages that you --allow."
    )


def find_target(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """The class or function of a dotted name; `module:qualname` says where the module ends.

    Raises:
      ConfigError: the name is not allowed, or there is nothing of that name.
    """
    if message := refusal(name, allowed):
        raise ConfigError(message)
    if ":" not in name:
        name = _with_colon(name, allowed)
    return find_name(name, allowed=allowed)


def find_constructor(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """As `find_target`, of what a part can call.

    Raises:
      ConfigError: as `find_target` does, or nothing can be called under the name.
    """
    found = find_target(name, allowed=allowed)
    if not callable(found) or is_tag(found):
        raise ConfigError(f"{name!r:.80} is no constructor.")
    return found


def dotted_name(thing: Any) -> str:
    """The shortest dotted name by which a file may ask for a class or function.

    Raises:
      ConfigError: it has no name, because it was defined inside a function or in a notebook.
    """
    name = name_of(thing)
    module, _, qualname = name.partition(":")
    if _package(module, ("torch",)):
        for package in TORCH_MODULES:
            if getattr(importlib.import_module(package), qualname, None) is thing:
                return f"{package}.{qualname}"
    return _dotted(name)


def _dotted(name: str) -> str:
    return name.replace(":", ".")


def _package(module: str, packages: tuple[str, ...]) -> str | None:
    """The first of some packages that a module belongs to."""
    inside = (one for one in packages if module == one or module.startswith(f"{one}."))
    return next(inside, None)


def _with_colon(name: str, allowed: tuple[str, ...]) -> str:
    """A dotted name with a colon where the module ends and what is in it begins."""
    if package := _package(name, allowed):
        return _split_by_files(name, package)
    module, _, qualname = name.rpartition(".")
    if name.startswith("torch."):
        return _where_torch_defines(module, qualname) or f"{module}:{qualname}"
    return f"{module}:{qualname}"


def _split_by_files(name: str, package: str) -> str:
    """Follows a name as far as there are modules; to look inside a package, Python imports it."""
    module = package
    rest = name.removeprefix(package).strip(".").split(".")
    while len(rest) > 1:
        try:
            found = importlib.util.find_spec(f"{module}.{rest[0]}")
        except ModuleNotFoundError:
            found = None
        except Exception as error:  # whatever the user's own package does when it is imported
            raise ConfigError(f"{module} cannot be imported for {name!r:.80}: {error}") from error
        if found is None:
            break
        module = f"{module}.{rest.pop(0)}"
    return f"{module}:{'.'.join(rest)}"


def _where_torch_defines(module: str, qualname: str) -> str | None:
    """`torch.nn:Linear` -> `torch.nn.modules.linear:Linear`, where the class is written."""
    if module not in TORCH_MODULES:
        return None
    known = vars(importlib.import_module(module))
    found = known.get(qualname)
    if not inspect.isclass(found):
        classes = [name for name, value in known.items() if inspect.isclass(value)]
        raise ConfigError(f"{module} has no class {qualname!r:.40}. {suggest(qualname, classes)}")
    return f"{found.__module__}:{found.__qualname__}"
