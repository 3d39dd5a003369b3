"""Counts of operations against torch's own counter, and shared parameters by name."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.model import (
    GELU,
    Attention,
    Block,
    Embedding,
    LearnedPositions,
    RoPE,
    SwiGLU,
    Transformer,
    Unembedding,
    sdpa,
    token_table,
)
from fidgpt.model.attention import Kernel
from fidgpt.model.cost import TRAINING_PASSES, flops_per_token, shared_parameters

SEQ, BATCH = 128, 2


def model(
    mlp: type[nn.Module],
    *,
    num_kv_heads: int | None = None,
    rope: RoPE | None = None,
    kernel: Kernel = sdpa,
) -> Transformer:
    table = token_table(vocab_size=1000, hidden_dim=256)

    def block() -> Block:
        return Block(
            attention_norm=nn.LayerNorm(256),
            attention=Attention(
                hidden_dim=256,
                head_dim=64,
                num_kv_heads=num_kv_heads,
                rope=rope,
                kernel=kernel,
                bias=True,
            ),
            mlp_norm=nn.LayerNorm(256),
            mlp=mlp(hidden_dim=256, bias=True),
        )

    positions = LearnedPositions(seq_len=SEQ, hidden_dim=256) if rope is None else None
    return Transformer(
        hidden_dim=256,
        num_layers=3,
        embedding=Embedding(table, positions=positions),
        blocks=[block],
        norm=nn.LayerNorm(256),
        unembedding=Unembedding(table),
    )


def like_gpt2() -> Transformer:
    return model(GELU)


def like_base() -> Transformer:
    return model(SwiGLU, num_kv_heads=2, rope=RoPE(head_dim=64))


def counted(module: Transformer, *, backward: bool) -> float:
    """By torch, per token. It counts all scores of a causal attention, as we do."""
    with FlopCounterMode(display=False) as counter:
        logits = module(torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta"))
        if backward:
            logits.sum().backward()
    return counter.get_total_flops() / (BATCH * SEQ)


@pytest.mark.parametrize("build", [like_gpt2, like_base])
def test_the_forward_pass_costs_what_torch_counts(build):
    with torch.device("meta"):
        module = build()
    assert flops_per_token(module, seq_len=SEQ) == pytest.approx(
        counted(module, backward=False), rel=1e-2
    )


def test_a_training_step_costs_three_times_as_much():
    """Of attention's own share the fused backward does 5 products for 2, so it is left out here."""
    with torch.device("meta"):
        module = model(GELU, kernel=lambda query, key, value, dropout: query + key + value)
    products = flops_per_token(module, seq_len=0)
    assert TRAINING_PASSES * products == pytest.approx(counted(module, backward=True), rel=1e-2)


def test_gpt2_124m_costs_two_operations_per_weight_and_its_scores():
    """Closed form: 2 (12 layers * 12 * 768^2 + 50,257 * 768) + 12 layers * 4 * 1,024 * 768."""
    from fidgpt.cli.runs import build_trainer
    from fidgpt.configs import gpt2_124m

    module = build_trainer(gpt2_124m()).model
    weights = 12 * 12 * 768**2 + 50_257 * 768
    assert flops_per_token(module, seq_len=1024) == 2 * weights + 12 * 4 * 1024 * 768


def test_a_module_that_every_layer_holds_computes_in_every_layer():
    layer = nn.Linear(8, 8)
    assert flops_per_token(nn.Sequential(layer, layer, layer), seq_len=1) == 3 * 2 * 64


def test_shared_parameters_are_named_once_with_their_other_names():
    with torch.device("meta"):
        module = like_gpt2()
        assert shared_parameters(module) == {"embedding.weight": ["unembedding.weight"]}
        module.unembedding = Unembedding(token_table(vocab_size=1000, hidden_dim=256))
        assert shared_parameters(module) == {}
        for block in module.blocks:
            block.attention_norm = module.norm
    names = [f"blocks.{i}.attention_norm" for i in range(3)] + ["norm"]
    assert shared_parameters(module) == {
        f"{names[0]}.{kind}": [f"{name}.{kind}" for name in names[1:]]
        for kind in ("weight", "bias")
    }
