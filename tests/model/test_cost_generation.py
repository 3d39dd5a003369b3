"""What the cache of generation takes, foretold, against one that was filled."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.cost import cache_bytes, without_memory
from fidgpt.model import (
    Attention,
    Block,
    Embedding,
    RMSNorm,
    Shared,
    SwiGLU,
    Transformer,
    Unembedding,
    materialize,
    one_document,
    token_table,
)
from fidgpt.model.cache import Cache
from fidgpt.model.mla import LatentAttention

HIDDEN, CONTEXT, WINDOW = 64, 40, 16
SIZES: dict[str, Any] = {"hidden_dim": HIDDEN, "head_dim": 16}
POSITION = 8  # bytes of where a token stands
Make = Callable[[], nn.Module]


def model(*attentions: Make, share: bool = False) -> Transformer:
    table = token_table(vocab_size=50, hidden_dim=HIDDEN)

    def block(attention: Make) -> Block:
        return Block(
            attention_norm=RMSNorm(hidden_dim=HIDDEN),
            attention=attention(),  # pyright: ignore[reportArgumentType]
            mlp_norm=RMSNorm(hidden_dim=HIDDEN),
            mlp=SwiGLU(hidden_dim=HIDDEN),
        )

    blocks = [partial(block, attention) for attention in attentions]
    return Transformer(
        hidden_dim=HIDDEN,
        num_layers=6,
        embedding=Embedding(table),
        blocks=[Shared(one) for one in blocks] if share else blocks,
        norm=RMSNorm(hidden_dim=HIDDEN),
        unembedding=Unembedding(table),
    )


GROUPED = partial(Attention, **SIZES, num_kv_heads=2)
LATENT = partial(LatentAttention, **SIZES, kv_rank=24, rope_head_dim=8)
WINDOWED = partial(Attention, **SIZES, window=WINDOW)


@pytest.mark.parametrize(
    ("attentions", "share"),
    [
        ([GROUPED], False),
        ([LATENT], False),
        ([WINDOWED, GROUPED], False),
        ([WINDOWED, WINDOWED, LATENT], False),
        ([GROUPED], True),
    ],
    ids=["grouped", "latent", "windowed", "mixed", "one block for all"],
)
@torch.no_grad()
def test_a_filled_cache_takes_what_was_foretold(attentions: list[Make], share: bool) -> None:
    module = model(*attentions, share=share)
    cache = Cache(capacity=CONTEXT)
    materialize(module, device=torch.device("cpu"), seed=0)
    tokens = torch.zeros(1, CONTEXT, dtype=torch.long)
    module.features(tokens, replace(one_document(tokens), cache=cache))
    assert cache_bytes(without_memory(module), context=CONTEXT) == cache.bytes()


def test_closed_forms() -> None:
    """Keys and values of the kept heads; a latent and a shared key; and positions once."""
    layers = 6
    grouped = layers * 2 * 2 * 16 * 4
    assert cache_bytes(without_memory(model(GROUPED)), context=1) == grouped + POSITION
    latent = layers * (24 + 8) * 4
    assert cache_bytes(without_memory(model(LATENT)), context=1) == latent + POSITION
    half = without_memory(model(GROUPED)).to(torch.bfloat16)
    assert cache_bytes(half, context=100) == 100 * (grouped // 2 + POSITION)
    windowed = layers * 2 * 4 * 16 * 4
    found = cache_bytes(without_memory(model(WINDOWED)), context=1000)
    assert WINDOW * windowed <= found <= WINDOW * windowed + 1000 * POSITION
