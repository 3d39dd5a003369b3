"""Interpolations such as `${model.width}` in a tree of plain data: which value each one names."""

import re
from collections.abc import Iterator
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.interop.yaml_in import Foreign

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
