"""Linear layers whose frozen weight is held in four bits, under a trained low-rank adapter."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fidgpt.model.init import Init
from fidgpt.model.linear import LoRALinear
from fidgpt.placement import Dims

__all__ = ["QLoRALinear"]

# Dettmers et al., 2023, arXiv:2305.14314, appendix E: quantiles of a normal distribution.
_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_BLOCK = 64  # numbers per scale
NF4_CODES = ".base.codes"  # how the names of quantized weights end in checkpoints


def to_nf4(
    weight: Float[Tensor, "..."],
) -> tuple[UInt8[Tensor, " pairs"], Float[Tensor, " blocks"]]:
    """Quantize to the nearest of 16 levels, times the largest magnitude of each 64 numbers.

    A byte holds two codes, the first in its upper half.
    """
    blocks = weight.detach().float().reshape(-1, _BLOCK)
    scales = blocks.abs().amax(dim=1)
    levels = torch.tensor(_LEVELS, device=weight.device)
    unit = blocks / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
    codes = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2, out_int32=True).view(-1, 2)
    return (codes[:, 0] * 16 + codes[:, 1]).to(torch.uint8), scales


def from_nf4(
    codes: UInt8[Tensor, " pairs"], scales: Float[Tensor, " blocks"], dtype: torch.dtype
) -> Float[Tensor, " numbers"]:
    """Return the numbers of `to_nf4`, multiplied in float32 and rounded to `dtype`."""
    levels = torch.tensor(_LEVELS, device=codes.device)
    pairs = torch.cartesian_prod(levels, levels)  # by byte
    blocks = pairs.index_select(0, codes.int()).view(-1, _BLOCK)
    return (blocks * scales.float().unsqueeze(1)).to(dtype).flatten()


class NF4Weight(nn.Module):
    """A frozen matrix in NF4: 4.5 bits for each number.

    Called with a number format, it returns the matrix.

    Args:
      out_features: rows.
      in_features: columns.
      init: of the matrix that is quantized where no weights are loaded.

    Raises:
      ValueError: the matrix is not a multiple of 64 numbers.
    """

    codes: Tensor
    scales: Tensor
    keeps_float32 = True  # codes and scales are the same whatever the number format

    def __init__(self, out_features: int, in_features: int, *, init: Init) -> None:
        super().__init__()
        self.shape, self.init = (out_features, in_features), init
        size = math.prod(self.shape)
        if size % _BLOCK:
            raise ValueError(f"{out_features=} x {in_features=} must be a multiple of {_BLOCK}.")
        self.register_buffer("codes", torch.empty(size // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(size // _BLOCK, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """Quantize random values."""
        values = torch.empty(self.shape)
        self.init(values, torch.default_generator)
        self.quantize(values)

    @torch.no_grad()
    def quantize(self, weight: Float[Tensor, "out in"]) -> None:
        """Hold another matrix."""
        for held, new in zip(self.buffers(), to_nf4(weight.to(self.codes.device)), strict=True):
            held.copy_(new)

    def forward(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "out in"]:
        return from_nf4(self.codes, self.scales, dtype).view(self.shape)


class _Product(torch.autograd.Function):
    """`x W^T`, which keeps the codes of W for the backward pass, and not W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, rows: int) -> Tensor:
        ctx.held = codes, scales, rows
        return F.linear(x, from_nf4(codes, scales, x.dtype).view(rows, -1))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        (gradient,), (codes, scales, rows) = outer, ctx.held
        return gradient @ from_nf4(codes, scales, gradient.dtype).view(rows, -1), None, None, None


class QLoRALinear(LoRALinear):
    """A `LoRALinear` whose weight is frozen in NF4 (Dettmers et al., 2023, arXiv:2305.14314).

    Scales are not quantized again, as by default in transformers. `weight` is the dequantized
    matrix, which plain weights may be copied over inside `whole_weights`.

    Raises:
      ValueError: as in `LoRALinear`, or the weight is not a multiple of 64 numbers.
    """

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {}

    def reset_parameters(self) -> None:
        """Replace the weight by one in four bits; called by torch's constructor."""
        super().reset_parameters()
        self.base = NF4Weight(self.out_features, self.in_features, init=self.init)
        self.register_parameter("weight", None)

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The matrix, dequantized each time, or whole inside `whole_weights`."""
        whole = self._parameters.get("weight")
        return self.base() if whole is None else whole

    def product(self, input: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        """Return what the layer computes without its adapter."""
        out = _Product.apply(input, self.base.codes, self.base.scales, self.out_features)
        return out if self.bias is None else out + self.bias


def require_copies(model: nn.Module, sizes: Mapping[str, int]) -> None:
    """Raise ValueError if a mesh would shard or divide weights in four bits.

    Args:
      model: the model.
      sizes: of the axes of the mesh, by name.
    """
    wrong = [name for name, size in sizes.items() if name != "replicate" and size != 1]
    if wrong and any(isinstance(module, NF4Weight) for module in model.modules()):
        raise ValueError(
            f"every process holds all weights that are in four bits, and an axis {wrong[0]} would "
            "divide them: use replicate for several processes, or use_lora in place of use_qlora."
        )


class _Quantizing(TorchFunctionMode):
    """Quantizes weights as soon as they are filled, so that few are in memory at a time.

    Args:
      weights: whole matrices, and what holds their codes.
    """

    def __init__(self, weights: Iterable[tuple[Tensor, NF4Weight]]) -> None:
        super().__init__()
        self._left = {
            whole.untyped_storage().data_ptr(): [whole.numel(), whole, base]
            for whole, base in weights
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is Tensor.copy_ and (key := result.untyped_storage().data_ptr()) in self._left:
            entry = self._left[key]
            entry[0] -= result.numel()
            if entry[0] == 0:
                _, whole, base = self._left.pop(key)
                base.quantize(whole)
                whole.untyped_storage().resize_(0)
        return result


@contextmanager
def whole_weights(model: nn.Module, *, to_fill: bool = False) -> Iterator[None]:
    """Let weights in four bits be plain parameters, in main memory, inside the block.

    Args:
      model: whose `QLoRALinear` layers have memory.
      to_fill: begin with zeros, and quantize each weight as soon as `Tensor.copy_` has filled all
        of it; the others stay as they are.
    """
    layers = [module for module in model.modules() if isinstance(module, QLoRALinear)]
    bases = [layer.base for layer in layers]
    # Zeros take memory only once something is written over them.
    wholes = [torch.zeros(base.shape) if to_fill else base().cpu() for base in bases]
    for layer, whole in zip(layers, wholes, strict=True):
        del layer.base
        layer.register_parameter("weight", nn.Parameter(whole, requires_grad=False))
    try:
        with _Quantizing(zip(wholes, bases, strict=True)) if to_fill else nullcontext():
            yield
    finally:
        for layer, base in zip(layers, bases, strict=True):
            layer.register_parameter("weight", None)
            layer.base = base
