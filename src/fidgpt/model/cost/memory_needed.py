"""Whether a model fails only because its tensors have no memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class MemoryNeeded(RuntimeError):
    """A call failed on tensors without memory, and passes where they have some."""


class TellsMemoryNeeded(TorchFunctionMode):
    """Inside, a call that fails is tried again with zeros in place of tensors without memory.

    Torch itself has no class for such failures, of which there are many: another device's tensor
    beside one that has none, a question for a number, a shape that depends on numbers.

    Raises:
      MemoryNeeded: the second try passes.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        try:
            return func(*args, **keywords)
        except Exception as error:
            try:
                func(*_with_memory(args), **_with_memory(keywords))
            except Exception:  # whatever is wrong with the call itself
                raise error from None
            raise MemoryNeeded(str(error)) from error


def _with_memory(value: Any) -> Any:
    """Arguments with zeros for the tensors among them that have no memory."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value, device="cpu") if value.is_meta else value
    if isinstance(value, dict):
        return {key: _with_memory(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_memory, value))
    return value
