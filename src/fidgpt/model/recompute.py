"""Activation checkpointing: blocks that forget what they computed, and compute it again."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fidgpt.model.blocks import BlockFactory
from fidgpt.model.extended import extended

_PRODUCTS = {
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.mm.default",
    "aten._grouped_mm.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_mm.default",
    "fidgpt.blockwise_attention.default",
    "fidgpt.grouped_linear.default",
}


@runtime_checkable
class Keep(Protocol):
    """Says which results a block keeps though it computes again."""

    def __call__(self, operation: str, /) -> bool:
        """Whether to keep what an operation of torch's gives, such as `aten.mm.default`."""
        ...


def keep_products(operation: str) -> bool:
    """Matrix products and attention: all else of a block is cheap to compute, and large to keep."""
    return operation in _PRODUCTS


class Recompute:
    """A factory whose blocks keep little for the backward pass, and compute it once more there.

    A third more computing for a fraction of the memory (Chen et al., 2016, arXiv:1604.06174).
    Losses and gradients are those of the block itself, bit for bit, dropout included: the state
    of random numbers is put back for the second time.

    Args:
      block: makes the block, which stays of its class and keeps its names.
      keep: which results are kept; only the block's input unless said.
    """

    MAY_STAND_AROUND: ClassVar[Mapping[str, str]] = {"block": "live"}

    def __init__(self, block: BlockFactory, *, keep: Keep | None = None) -> None:
        self._make = block
        self._keep = keep

    def __call__(self) -> nn.Module:
        """A block; what it computes in evaluation and generation it computes once."""
        block = extended(self._make(), Recomputed)
        block.recompute_keeps = self._keep
        return block


class Recomputed(nn.Module):
    """What `Recompute` makes of a block."""

    recompute_keeps: Keep | None

    def forward(self, *args: Any) -> Any:
        """The block's own, computed again when gradients need it."""
        if not torch.is_grad_enabled():
            return super().forward(*args)
        if self.recompute_keeps is None:
            return checkpoint(super().forward, *args, use_reentrant=False)
        contexts = partial(
            create_selective_checkpoint_contexts, partial(_policy, self.recompute_keeps)
        )
        return checkpoint(super().forward, *args, use_reentrant=False, context_fn=contexts)


def _policy(
    keep: Keep, context: object, operation: object, *args: object, **kwargs: object
) -> CheckpointPolicy:
    kept = keep(str(operation))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
