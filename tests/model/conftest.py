"""Small models, built as a person without Fiddle would build them."""

from collections.abc import Callable

import pytest
import torch

from fidgpt.model import (
    Attention,
    Block,
    Embedding,
    RMSNorm,
    RoPE,
    SwiGLU,
    Transformer,
    Unembedding,
    materialize,
    token_table,
)


def small_model(*, num_layers: int, tied: bool) -> Transformer:
    """A model of the shape of `base`: 50 tokens, a width of 32, heads of 8."""
    rope = RoPE(head_dim=8)

    def block() -> Block:
        return Block(
            attention_norm=RMSNorm(hidden_dim=32),
            attention=Attention(hidden_dim=32, head_dim=8, rope=rope),
            mlp_norm=RMSNorm(hidden_dim=32),
            mlp=SwiGLU(hidden_dim=32),
        )

    table = token_table(vocab_size=50, hidden_dim=32)
    return Transformer(
        hidden_dim=32,
        num_layers=num_layers,
        embedding=Embedding(table),
        blocks=[block],
        norm=RMSNorm(hidden_dim=32),
        unembedding=Unembedding(table if tied else token_table(vocab_size=50, hidden_dim=32)),
    )


@pytest.fixture
def make_meta_model() -> Callable[..., Transformer]:
    """`make_meta_model(num_layers=3, tied=True)`: a small model without memory."""

    def make(*, num_layers: int = 3, tied: bool = True) -> Transformer:
        with torch.device("meta"):
            return small_model(num_layers=num_layers, tied=tied)

    return make


@pytest.fixture
def make_model(make_meta_model: Callable[..., Transformer]) -> Callable[..., Transformer]:
    """`make_model(seed=0, num_layers=3, tied=True)`: the same on the CPU, ready to compute."""

    def make(*, seed: int = 0, num_layers: int = 3, tied: bool = True) -> Transformer:
        model = make_meta_model(num_layers=num_layers, tied=tied)
        materialize(model, device=torch.device("cpu"), seed=seed)
        return model.eval()

    return make
