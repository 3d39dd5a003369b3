"""A twin of a small model that holds zeros on the CPU, to try things on that start at once.

What is tried on it could be tried without memory just as well, but not as soon: torch's kernels
for the meta device are Python that loads sympy with its first `arange` and its compiler with its
first `clamp`, 1.4 s together, which a run of a small model would wait for as long as for all else.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fidgpt.model.cost.without_memory import twin_of

Model = TypeVar("Model", bound=nn.Module)

_SOON = 5e10  # operations that a CPU ends sooner than torch has loaded all that
_SMALL = 5e7  # numbers; of a larger model zeros, gradients and moments take gigabytes, and seconds
_IS_META = Tensor.is_meta.__get__  # pyright: ignore[reportAttributeAccessIssue]
# What a tensor without memory cannot tell.
_NUMBERS = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, Tensor.unique),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.nonzero, torch.unique, torch.equal, torch.allclose, torch.masked_select),
}


def with_zeros(model: Model, *, num_tokens: int, device: torch.device) -> Model | None:
    """A copy with the same ties; None where it, or a pass of `num_tokens`, would take a CPU long.

    Args:
      model: with memory or without; it is left as it is.
      num_tokens: of the forward pass that is to be tried.
      device: where the model would compute; on any but the CPU parts may compute in other ways.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    if device.type != "cpu" or size > _SMALL or 2 * size * num_tokens > _SOON:
        return None
    return twin_of(model, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


class AsWithoutMemory(TorchFunctionMode):
    """Inside, tensors say that they are without memory, and nobody can ask for their numbers.

    So a trial with zeros fails where one on the meta device would, and parts that look for meta
    tensors compute as they do there. A tensor that is made without a device comes without memory,
    as it would be on a wrong one.
    """

    def __enter__(self) -> "AsWithoutMemory":
        self._made = torch.device("meta")
        self._made.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _IS_META:
            return True
        if func in _NUMBERS:
            raise RuntimeError("a part of the model asks for the numbers of a tensor.")
        return func(*args, **(kwargs or {}))
