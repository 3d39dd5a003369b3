"""Connections from earlier points of the residual stream, besides those inside of blocks."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fidgpt.model.context import Stream
from fidgpt.model.init import Constant, Init, with_init
from fidgpt.ranges import require_size

__all__ = ["Backout", "InputScalars", "Skip"]

_NEUTRAL = Constant(1.0)
_LITTLE = Constant(0.1)


@runtime_checkable
class Skip(Protocol):
    """Reads the stream at earlier points, counted by the layers before them."""

    def reads(self, num_layers: int) -> Sequence[int]:
        """Return the points whose streams are kept."""
        ...

    def before(self, x: Stream, layer: int, kept: Mapping[int, Stream]) -> Stream:
        """Return the input of a layer from the stream before it, and streams kept so far."""
        ...

    def leave(self, x: Stream, num_layers: int, kept: Mapping[int, Stream]) -> Stream:
        """Return the input of the last norm from the output of the last layer."""
        ...


class InputScalars(nn.Module):
    """Learned weights of the stream, and of the embedding, in the input of each layer.

    Layer i reads `residual[i] * x + input[i] * embedding` (as in
    https://github.com/KellerJordan/modded-nanogpt and nanochat).

    Args:
      num_layers: of the model.
      residual_init: of the weights of the stream; by default that changes nothing.
      input_init: of the weights of the embedding.
    """

    def __init__(
        self, *, num_layers: int, residual_init: Init = _NEUTRAL, input_init: Init = _LITTLE
    ) -> None:
        super().__init__()
        require_size(num_layers=num_layers)
        self.residual = with_init(nn.Parameter(torch.empty(num_layers)), residual_init)
        self.input = with_init(nn.Parameter(torch.empty(num_layers)), input_init)

    def reads(self, num_layers: int) -> Sequence[int]:
        return (0,)

    def before(self, x: Stream, layer: int, kept: Mapping[int, Stream]) -> Stream:
        return self.residual[layer] * x + self.input[layer] * kept[0]

    def leave(self, x: Stream, num_layers: int, kept: Mapping[int, Stream]) -> Stream:
        return x


class Backout(nn.Module):
    """Subtracts a learned share of the stream in the middle from that at the end.

    What early layers wrote for later ones need not be in what predicts a token (nanochat). The
    middle is after layer `num_layers // 2`, counted from 0.

    Args:
      init: of the share.
    """

    def __init__(self, *, init: Init = _LITTLE) -> None:
        super().__init__()
        self.amount = with_init(nn.Parameter(torch.empty(1)), init)

    def reads(self, num_layers: int) -> Sequence[int]:
        return (num_layers // 2 + 1,)

    def before(self, x: Stream, layer: int, kept: Mapping[int, Stream]) -> Stream:
        return x

    def leave(self, x: Stream, num_layers: int, kept: Mapping[int, Stream]) -> Stream:
        return x - self.amount * kept[self.reads(num_layers)[0]]
