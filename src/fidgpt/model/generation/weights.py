"""Memory layouts of weights for fast generation on CPUs."""

import ctypes
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.model.attention import Attention
from fidgpt.model.embedding import Unembedding
from fidgpt.model.linear import extended
from fidgpt.model.mla import LatentAttention

__all__ = ["prepare_to_write"]


_MKLDNN: Any = torch.ops.mkldnn
_MADV_COLLAPSE = 25  # of Linux 6.1 and later; Python's mmap has no name for it


@torch.no_grad()
def prepare_to_write(model: nn.Module) -> None:
    """Optimize the memory layout of a model's weights on a CPU for generation.

    Generating a token is bound by the memory bandwidth of reading all weights, which depends on
    their layout. Weights in float32 and bfloat16 are packed by oneDNN, in large pages. On two cores
    of a Zen 4, which read 38 GB/s at best, a product of one token with 3,072 rows and 768 columns
    then reads 33 GB/s in float32 and 24 in bfloat16, in place of 13 and 11; with eight tokens 20 in
    place of 4 and 0.3. A single thread with AVX2 leaves float32 to MKL, which reads it at 22 GB/s
    on a Zen 3 if the longer dimension is innermost, and at 15 otherwise; oneDNN at 17. Query, key
    and value projections are fused into one product. Results are the same up to rounding. No-op if
    FIDGPT_CPU_KERNELS=0.

    Args:
      model: a model in eval mode; it must not be trained or saved afterwards.
    """
    if not cpu.ENABLED:
        return
    for module in list(model.modules()):
        _join(module)
    kept = [part.kv_up for part in model.modules() if isinstance(part, LatentAttention)]
    products = [part for part in model.modules() if _is_product(part) and part not in kept]
    for product in filter(can_pack, products):  # whose matrices are used in products alone
        change = _lay_out if _is_mkl_faster(product) else _pack
        change(product)


class Joined(nn.Module):
    """Mixin of attentions whose query, key and value projections are fused."""

    joined: nn.Linear
    widths: list[int]

    def projections(self, x: Float[Tensor, "batch seq hidden"]) -> Sequence[Tensor]:
        """Return queries, keys and values, each [batch, seq, number of its heads * head_dim]."""
        return self.joined(x).split(self.widths, dim=-1)


class Packed(nn.Module):
    """Mixin of linear layers and unembeddings whose weight is packed by oneDNN."""

    packed: Tensor

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        bias = getattr(self, "bias", None)
        product = _MKLDNN._linear_pointwise(x, self.packed, bias, "none", [], "")
        return self.finish(product) if isinstance(self, Unembedding) else product


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


def _is_mkl_faster(module: Any) -> bool:
    """Return whether MKL multiplies one token faster than oneDNN, for which it uses one thread."""
    is_avx2 = torch.backends.cpu.get_cpu_capability() == "AVX2" and torch.get_num_threads() == 1
    return is_avx2 and torch.backends.mkl.is_available() and module.weight.dtype == torch.float32


def _lay_out(module: Any) -> None:
    """Store a weight for MKL, with the longer dimension innermost."""
    weight = module.weight.detach()
    is_wide = weight.shape[1] > weight.shape[0]
    laid_out = weight.clone() if is_wide else weight.t().contiguous().t()
    _use_large_pages(laid_out.data_ptr(), size=laid_out.nbytes)
    module.weight = nn.Parameter(laid_out)


def _pack(module: Any) -> None:
    """Store a weight as oneDNN packs it; an unembedding keeps its table, which it may share."""
    weight = module.weight.detach()
    product = extended(module, Packed)
    product.packed = _MKLDNN._reorder_linear_weight(weight, 1)
    _use_large_pages(_MKLDNN.data_ptr(product.packed), size=weight.nbytes)
    if not isinstance(module, Unembedding):
        del module.weight


def _use_large_pages(begin: int, *, size: int) -> None:
    """Move memory to pages of 2 MiB where the system can, which cause fewer TLB misses."""
    if not sys.platform.startswith("linux"):
        return
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (begin + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        # An older kernel refuses, and the weight stays where it is.
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(whole), ctypes.c_int(_MADV_COLLAPSE)
        )


def can_pack(module: Any) -> bool:
    """Return whether oneDNN can pack a weight; torch's operators for this are private."""
    if not torch.backends.mkldnn.is_available() or module.weight.device.type != "cpu":
        return False
    dtype = module.weight.dtype
    is_fast = dtype == torch.bfloat16 and _MKLDNN._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or is_fast
