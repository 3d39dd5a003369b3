"""Causal attention as plain matrix products, which CPUs are quick at in bfloat16."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fidgpt.model.kernels.blocks import gradients, mix
from fidgpt.model.kernels.scoring import Scoring
from fidgpt.model.kernels.sdpa import sdpa

# Kept weights of a layer take seq^2 * heads bytes a row or a little more.
_KEEP_UP_TO = 512


def blockwise(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
    *,
    block_size: int = 128,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Causal attention as matrix products of a block of queries with the keys up to its end.

    Keys after a block are never touched, which saves up to half of the work. The weights of long
    sequences exist for one block at a time, and the backward pass computes them anew, as in
    FlashAttention (Dao et al., 2022, arXiv:2205.14135, section 3.1); those of
    short ones are kept, which saves a seventh of the time. What is not plainly causal is left to
    `sdpa`.
    """
    if not (scoring.is_softmax and scoring.is_causal) or scoring.dropout:
        return sdpa(query, key, value, scoring)
    batch, kv_heads, seq = key.shape[:3]
    queries = query.reshape(batch * kv_heads, -1, seq, query.shape[-1])
    keys, values = (x.reshape(batch * kv_heads, seq, -1) for x in (key, value))
    keeps = seq <= _KEEP_UP_TO
    if torch.compiler.is_compiling() and not keeps:
        mixed = _forgetful(queries, keys, values, scoring.scale, block_size)
    else:
        mixed = _Blockwise.apply(queries, keys, values, scoring.scale, block_size, keeps)
    return mixed.view(*query.shape[:-1], -1)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        block_size: int,
        keeps: bool,
    ) -> Tensor:
        mixed, kept = mix(queries, keys, values, scale=scale, block_size=block_size, keeps=keeps)
        ctx.save_for_backward(queries, keys, values, mixed, *kept)
        ctx.scale, ctx.block_size = scale, block_size
        return mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        queries, keys, values, mixed, *kept = ctx.saved_tensors
        found = gradients(
            outer[0], queries, keys, values, mixed, kept, scale=ctx.scale, block_size=ctx.block_size
        )
        return *found, None, None, None


# Torch compiles the blocks of short sequences into what stands around them. Those of long ones it
# would compile one by one, and keep the weights that are to be forgotten: they are one operator.


@torch.library.custom_op("fidgpt::blockwise_attention", mutates_args=())
def _forgetful(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, block_size: int
) -> Tensor:
    return mix(queries, keys, values, scale=scale, block_size=block_size, keeps=False)[0]


@_forgetful.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, scale: float, block_size: int) -> Tensor:
    return queries.new_empty(*queries.shape[:-1], values.shape[-1])


@torch.library.custom_op("fidgpt::blockwise_attention_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mixed: Tensor,
    scale: float,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    saved = (queries, keys, values, mixed)
    return gradients(gradient, *saved, [], scale=scale, block_size=block_size)


@_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (queries, keys, values))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, ctx.block_size = inputs
    ctx.save_for_backward(*tensors, output)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.block_size), None, None


_forgetful.register_autograd(_gradients, setup_context=_remember)
