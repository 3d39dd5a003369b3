"""Memory layouts of weights for fast generation on CPUs."""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.model.attention import Attention
from fidgpt.model.embedding import Unembedding
from fidgpt.model.linear import extended
from fidgpt.model.mla import LatentAttention
from fidgpt.model.mlp import multiple_of

__all__ = ["prepare_to_write"]


_NUMBERS_OF_A_LINE = 16  # float32 numbers per cache line


@torch.no_grad()
def prepare_to_write(model: nn.Module) -> None:
    """Optimize the memory layout of a model's weights on a CPU for generation.

    Generating a token is bound by the memory bandwidth of reading all weights, which depends on
    their layout. One core of a Zen 4 reads a float32 matrix of 3,072 rows and 768 columns at 13
    GB/s in row-major order, at 21 GB/s in column-major order, and at 25 GB/s in column-major order
    in large pages; a bfloat16 product with it takes 0.32 ms if packed by oneDNN, and 0.55 ms
    otherwise. Query, key and value projections are fused into one product. Results are the same up
    to rounding. No-op if FIDGPT_CPU_KERNELS=0.

    Args:
      model: a model in eval mode; it must not be trained or saved afterwards.
    """
    if not cpu.ENABLED:
        return
    for module in list(model.modules()):
        _join(module)
    packed: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(parent, LatentAttention) and name == "kv_up":
                continue  # its matrix is also used elsewhere
            if child not in packed and _is_product(child) and can_pack(child):
                plain: Any = child
                product = PackedLinear(plain.weight.detach(), getattr(plain, "bias", None))
                is_table = isinstance(child, Unembedding)
                packed[child] = PackedUnembedding(child, product) if is_table else product
            setattr(parent, name, packed.get(child, child))
    products: list[Any] = [module for module in model.modules() if _is_product(module)]
    weights = dict.fromkeys(product.weight for product in products)
    _lay_out([x for x in weights if x.device.type == "cpu" and x.dtype == torch.float32])


class Joined(nn.Module):
    """Mixin of attentions whose query, key and value projections are fused."""

    joined: nn.Linear
    widths: list[int]

    def projections(self, x: Float[Tensor, "batch seq hidden"]) -> Sequence[Tensor]:
        """Return queries, keys and values, each [batch, seq, number of its heads * head_dim]."""
        return self.joined(x).split(self.widths, dim=-1)


class PackedLinear(nn.Module):
    """`y = x W^T + b` with the weight packed by oneDNN.

    Args:
      weight: a bfloat16 matrix on the CPU.
      bias: bias; None for none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = _mkldnn()._reorder_linear_weight(weight, 1)
        self._bias = bias

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        return _mkldnn()._linear_pointwise(x, self._weight, self._bias, "none", [], "")


class PackedUnembedding(Unembedding):
    """An Unembedding with a packed copy of its table, which an embedding may share."""

    def __init__(self, plain: Unembedding, product: nn.Module) -> None:
        super().__init__(plain.weight, scale=plain.scale, softcap=plain.softcap)
        self._product = product

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        return self.finish(self._product(x))


def _is_product(module: nn.Module) -> bool:
    """Return whether a module uses its weight only in one matrix product."""
    linear = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    return linear or type(module) is Unembedding


def _join(module: nn.Module) -> None:
    """Fuse the query, key and value projections of an attention."""
    if type(module) is not Attention:
        return
    parts: list[Any] = [module.query, module.key, module.value]
    biases = [part.bias for part in parts if _is_product(part) and part.bias is not None]
    if not all(map(_is_product, parts)) or len(biases) not in (0, 3):
        return
    weight = torch.cat([part.weight for part in parts])
    joined = nn.Linear(*weight.shape[::-1], bias=bool(biases), device="meta")
    joined.weight = nn.Parameter(weight)
    if biases:
        joined.bias = nn.Parameter(torch.cat(biases))
    del module.query, module.key, module.value
    attention = extended(module, Joined)
    attention.joined = joined
    attention.widths = [part.out_features for part in parts]


def _lay_out(weights: Sequence[nn.Parameter]) -> None:
    """Move matrices to large pages, tall ones in column-major order."""
    sizes = [multiple_of(multiple=_NUMBERS_OF_A_LINE, value=weight.numel()) for weight in weights]
    for weight, memory in zip(weights, _large_pages(sum(sizes)).split(sizes), strict=True):
        rows, columns = weight.shape
        memory = memory[: weight.numel()]
        tall = rows >= columns
        moved = memory.view(columns, rows).t() if tall else memory.view(rows, columns)
        weight.data = moved.copy_(weight)


def _large_pages(count: int) -> Float[Tensor, " count"]:
    """Return memory in pages of 2 MiB if available, which cause fewer TLB misses."""
    if not count or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count)
    memory = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # for kernels built without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)


def can_pack(module: Any) -> bool:
    """Return whether oneDNN can pack a weight; torch's operators for this are private."""
    suits = module.weight.device.type == "cpu" and module.weight.dtype == torch.bfloat16
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    there = torch.backends.mkldnn.is_available() and all(hasattr(_mkldnn(), x) for x in operators)
    return suits and there and _mkldnn()._is_mkldnn_bf16_supported()


def _mkldnn() -> Any:
    return torch.ops.mkldnn
