"""Weights laid out for writing give the same logits, in whatever format."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.model import (
    Attention,
    Embedding,
    Linear,
    LoRALinear,
    Normal,
    Unembedding,
    materialize,
    token_table,
)
from fidgpt.model.cpu.weights import PackedLinear, _can_pack
from fidgpt.model.generation import prepare_to_write
from fidgpt.model.mla import LatentAttention


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_logits_stay(make_model, dtype, tied):
    model = make_model(tied=tied).to(dtype)
    nn.init.normal_(model.blocks[0].attention.query.weight)
    model.unembedding.scale, model.unembedding.softcap = 0.5, 3.0
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = model(tokens)
    prepare_to_write(model)
    for shown in (tokens, tokens[:1, :1]):
        logits = model(shown)
        tolerance = {torch.bfloat16: 2e-2}.get(dtype, 1e-5)
        wanted = expected[: len(shown), : shown.shape[1]]
        torch.testing.assert_close(logits, wanted, atol=tolerance, rtol=tolerance)
    assert model.device.type == "cpu"


def test_tall_float32_weights_stand_column_by_column(make_model):
    model = make_model(tied=True)
    prepare_to_write(model)
    assert model.embedding.weight is model.unembedding.weight
    assert model.embedding.weight.stride() == (1, 50)
    mlp = model.blocks[0].mlp
    assert mlp.up.weight.stride() == (1, mlp.up.weight.shape[0])
    assert mlp.down.weight.is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values_become_one_product(bias):
    sizes: dict[str, Any] = dict(hidden_dim=32, head_dim=8, num_heads=6, num_kv_heads=2)
    attention = Attention(**sizes, bias=bias, init=Normal(std=0.2))
    materialize(attention, device=torch.device("cpu"), seed=0)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    expected = attention(x)
    prepare_to_write(attention)
    assert [name for name, _ in attention.named_children()] == ["out", "joined"]
    assert attention.get_parameter("joined.weight").shape == (80, 32)
    torch.testing.assert_close(attention(x), expected, atol=1e-6, rtol=1e-6)


class Tripled(Attention):
    """Looks at its own projections."""

    def forward(self, x, ctx=None):
        return super().forward(x, ctx) + self.query(x)


def test_projections_that_are_more_than_products_stay_apart():
    sizes: dict[str, Any] = dict(hidden_dim=16, head_dim=8)
    lora = Attention(**sizes, linear=partial(LoRALinear, rank=2))
    own = Tripled(**sizes)
    model = nn.ModuleList([lora, own])
    prepare_to_write(model)
    assert isinstance(lora.query, LoRALinear)
    assert isinstance(own.query, Linear)


def test_a_shared_linear_is_packed_once():
    shared = Linear(8, 8, bias=True)
    nn.init.normal_(shared.weight)
    nn.init.normal_(shared.bias)
    inner = nn.Sequential(shared, nn.ReLU())
    model = nn.ModuleList([inner, shared]).bfloat16()
    if not _can_pack(shared):
        pytest.skip("this machine has no bfloat16 to pack for")
    x = torch.randn(3, 8).bfloat16()
    expected = shared(x)
    prepare_to_write(model)
    assert isinstance(model[1], PackedLinear)
    assert inner[0] is model[1]
    torch.testing.assert_close(model[1](x), expected, atol=1e-2, rtol=1e-2)


def test_a_matrix_that_is_used_by_itself_stays():
    model = nn.ModuleList([LatentAttention(hidden_dim=16, head_dim=8, rope_head_dim=4, kv_rank=8)])
    prepare_to_write(model.bfloat16())
    assert isinstance(model[0].kv_up, Linear)


class Doubled(Linear):
    """Does more with its weight than a product."""

    def forward(self, input):  # torch's own name
        return 2 * super().forward(input)


def test_what_is_no_plain_product_is_left_alone():
    model = nn.Sequential(Doubled(8, 8), nn.LayerNorm(8)).bfloat16()
    prepare_to_write(model)
    assert isinstance(model[0], Doubled)
    table = token_table(vocab_size=9, hidden_dim=4)
    prepare_to_write(nn.ModuleList([Embedding(table), Unembedding(table)]))
    assert table.stride() == (1, 9)
