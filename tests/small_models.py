"""Small models, built as a person without Fiddle would build them."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fidgpt import model as lm

M = TypeVar("M", bound=nn.Module)
CPU = torch.device("cpu")


def small_block(
    attention: Callable[..., Any] = lm.Attention,
    mlp: Callable[..., nn.Module] = lm.SwiGLU,
    *,
    kind: Callable[..., nn.Module] = lm.Block,
    hidden_dim: int = 32,
) -> nn.Module:
    """A block with heads of 8."""
    return kind(
        attention_norm=lm.RMSNorm(hidden_dim=hidden_dim),
        attention=attention(hidden_dim=hidden_dim, head_dim=8),
        mlp_norm=lm.RMSNorm(hidden_dim=hidden_dim),
        mlp=mlp(hidden_dim=hidden_dim),
    )


def small_model(
    *blocks: Callable[[], nn.Module],
    num_layers: int = 2,
    tied: bool = True,
    positions: nn.Module | None = None,
    hidden_dim: int = 32,
    vocab_size: int = 50,
    kind: Callable[..., Any] = lm.Transformer,
    **options: Any,
) -> Any:
    """A Transformer of some blocks; its table has 50 tokens and a width of 32."""
    make_table = partial(lm.token_table, vocab_size=vocab_size, hidden_dim=hidden_dim)
    table = make_table()
    return kind(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        blocks=blocks,
        unembedding=lm.Unembedding(table if tied else make_table()),
        **{
            "embedding": lm.Embedding(table, positions=positions),
            "norm": lm.RMSNorm(hidden_dim=hidden_dim),
            **options,
        },
    )


def meta_model(*, num_layers: int = 3, tied: bool = True) -> Any:
    """A model of the shape of `base`, without memory."""
    with torch.device("meta"):
        block = partial(small_block, partial(lm.Attention, rope=lm.RoPE(head_dim=8)))
        return small_model(block, num_layers=num_layers, tied=tied)


def make_model(*, seed: int = 0, num_layers: int = 3, tied: bool = True) -> Any:
    """The same on the CPU, ready to compute."""
    return started(meta_model(num_layers=num_layers, tied=tied), seed=seed).eval()


def started(model: M, *, seed: int = 0) -> M:
    """A model, materialized on the CPU."""
    lm.materialize(model, device=CPU, seed=seed)
    return model


def filled(model: M, *, std: float = 0.3, seed: int = 0) -> M:
    """A model with parameters that are far from zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std, generator=generator)
    return model


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
