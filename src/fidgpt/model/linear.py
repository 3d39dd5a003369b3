"""The matrix product of every part: torch's Linear, with its initialisation as a part."""

from typing import Protocol, runtime_checkable

from torch import nn

from fidgpt.model.init import GPT2_NORMAL, ZEROS, Init, carry


@runtime_checkable
class LinearFactory(Protocol):
    """Makes the linear maps of a part, which says their sizes, biases and starts.

    `Linear` is one; `functools.partial(LoRALinear, rank=8)` is another. What it makes maps
    [..., in_features] to [..., out_features] and has a parameter `weight`.
    """

    def __call__(
        self, in_features: int, out_features: int, *, bias: bool, init: Init
    ) -> nn.Module: ...


class Linear(nn.Linear):
    """`y = x W^T + b`, whose weight starts as `init` says and whose bias starts at zero."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, init: Init = GPT2_NORMAL
    ) -> None:
        self.init = init
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Called by torch's own constructor in place of its uniform initialisation."""
        carry(self.weight, self.init)
        if self.bias is not None:
            carry(self.bias, ZEROS)
