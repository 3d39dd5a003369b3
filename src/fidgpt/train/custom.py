"""Custom components, whose class or function is neither fidgpt's nor torch's, and their source."""

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

_KNOWN = {"fidgpt", "torch", "numpy", "jaxtyping", "tokenizers", "safetensors"}
_SKIPPED = {*vars(nn.Module()), "init"} - {"_modules"}  # of torch's modules


def is_custom(kind: object) -> bool:
    """Return whether a class or function is neither fidgpt's, nor torch's, nor Python's."""
    top = str(getattr(kind, "__module__", None) or "builtins").partition(".")[0]
    return top not in _KNOWN and top not in sys.stdlib_module_names


@functools.cache
def custom_class(kind: type) -> type | None:
    """Return the first custom class among a class and its bases."""
    return next((base for base in kind.__mro__ if is_custom(base)), None)


def custom_part(value: object) -> Any:
    """Return the custom class or function that a component is, or that it holds; None if none is.

    Followed are the attributes of fidgpt's and torch's own objects, and containers.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, functools.partial):
            waiting += [*part.keywords.values(), *part.args, part.func]
        elif isinstance(part, type) or inspect.isroutine(part):
            if is_custom(part) and not isinstance(part, type(len)):
                return part
        elif isinstance(part, list | tuple | dict):
            waiting += list(part.values() if isinstance(part, dict) else part)[:100]
        elif id(part) not in seen and not isinstance(part, Tensor):
            seen.add(id(part))
            if (custom := custom_class(type(part))) is not None:
                return custom
            if type(part).__module__.startswith(("fidgpt.", "torch.nn.")):
                held = getattr(part, "__dict__", {})
                waiting += [held[name] for name in held if name not in _SKIPPED]
    return None


def describe(path: str, part: object, custom: Any) -> str:
    """Return `path (Class, file:line)` of a component that is, or holds, something custom.

    Args:
      path: in the model or the run.
      part: the component.
      custom: the custom class or function.
    """
    try:
        file = Path(inspect.getsourcefile(custom) or "")
        short = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        where = f"{short}:{max(inspect.getsourcelines(custom)[1], 1)}"
    except (OSError, TypeError):  # made without a file
        where = custom.__module__
    is_custom_itself = custom_class(type(part)) is custom or custom is part
    kind = "" if is_custom_itself else f"{type(part).__name__} with "
    return f"{path} ({kind}{custom.__name__}, {where})"
