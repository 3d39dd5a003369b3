"""Short causal convolutions with a filter for each channel."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext
from fidgpt.model.init import ZEROS, Init, with_init
from fidgpt.placement import Dims
from fidgpt.ranges import require_size

Channels = Float[Tensor, "batch seq channels"]


@dataclass(frozen=True)
class UniformFilters:
    """A uniform distribution in +-1 / sqrt(size of a filter), as of torch's convolutions."""

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        end = 1 / math.sqrt(tensor.shape[-1])
        nn.init.uniform_(tensor, -end, end, generator=generator)


class CausalFilter(nn.Conv1d):
    """`y_t = sum_j w_j x_(t-j)` in each channel, over the last `size` tokens of a document.

    Args:
      channels: number of channels.
      size: length of a filter in tokens, including the present one.
      bias: adds a bias.
      init: of the filters.

    Raises:
      ValueError: a size is below 1.
    """

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {"columns": {"weight": 0, "bias": 0}}

    def __init__(
        self, channels: int, *, size: int, bias: bool = False, init: Init | None = None
    ) -> None:
        require_size(channels=channels, size=size)
        self.init = init or UniformFilters()
        super().__init__(channels, channels, size, groups=channels, bias=bias)

    def reset_parameters(self) -> None:
        """Initialize the parameters; called by torch's constructor."""
        with_init(self.weight, self.init)
        if self.bias is not None:
            with_init(self.bias, ZEROS)

    def forward(self, x: Channels, ctx: AttentionContext) -> Channels:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the filtered channels; a cache keeps the latest inputs.

        A sum of shifted products: on CPUs torch's convolution takes 3 times as long in bfloat16,
        and it knows no documents.
        """
        seq, ahead = x.shape[1], self.kernel_size[0] - 1
        (before,) = ctx.state(self) or [x.new_zeros(len(x), ahead, x.shape[2])]
        whole = torch.cat([before, x], dim=1)
        ctx.keep_state(self, [whole[:, seq:]])
        if ctx.contiguous:
            out = _Filtered.apply(whole, self.weight.squeeze(1))
            return out if self.bias is None else out + self.bias
        taps = self.weight.squeeze(1).unbind(1)
        out = x * taps[-1] if self.bias is None else torch.addcmul(self.bias, x, taps[-1])
        for distance in range(1, ahead + 1):  # a token has as many before it as its position
            earlier = whole[:, ahead - distance : ahead - distance + seq]
            earlier = torch.where(ctx.positions.unsqueeze(-1) >= distance, earlier, 0.0)
            out = torch.addcmul(out, earlier, taps[-1 - distance])
        return out


class _Filtered(torch.autograd.Function):
    """The filtered channels of rows of one document, and their gradients.

    The gradient of each shifted part is added where it belongs; torch would first make a tensor of
    the size of the whole one for each of them.
    """

    @staticmethod
    def forward(ctx: Any, whole: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(whole, weight)
        size = weight.shape[1]
        seq = whole.shape[1] - size + 1
        out = whole[:, :seq] * weight[:, 0]
        for tap in range(1, size):
            out.addcmul_(whole[:, tap : tap + seq], weight[:, tap])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        whole, weight = ctx.saved_tensors
        seq, of_whole, of_weight = grads[0].shape[1], torch.zeros_like(whole), []
        for tap in range(weight.shape[1]):
            of_whole[:, tap : tap + seq].addcmul_(grads[0], weight[:, tap])
            of_weight.append((grads[0] * whole[:, tap : tap + seq]).sum((0, 1)))
        return of_whole, torch.stack(of_weight, dim=1)
