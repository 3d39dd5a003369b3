"""RoPE against transformers' Llama, and what it promises about distances."""

import pytest
import torch

from fidgpt.model import RoPE

SEQ = 64


def heads(head_dim: int, seed: int, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, SEQ, head_dim, generator=generator)


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize(("head_dim", "theta"), [(16, 10_000.0), (64, 500_000.0)])
def test_equals_llamas_rotary_embedding_of_transformers(head_dim, theta):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    query, key = heads(head_dim, seed=0), heads(head_dim, seed=1, count=1)
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    cos, sin = LlamaRotaryEmbedding(config)(query, torch.arange(SEQ)[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    for ours, theirs in zip(
        RoPE(head_dim=head_dim, theta=theta)(query, key), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_equals_a_rotation_of_complex_numbers():
    """Pair k at position p, as a complex number, times exp(i p theta^(-2k / head_dim))."""
    query, key = heads(8, seed=0), heads(8, seed=1)
    rates = 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turns = torch.polar(torch.ones(SEQ, 4).double(), torch.arange(SEQ).double()[:, None] * rates)
    for ours, x in zip(RoPE(head_dim=8, theta=100.0)(query, key), (query, key), strict=True):
        turned = torch.complex(x[..., :4].double(), x[..., 4:].double()) * turns
        expected = torch.cat([turned.real, turned.imag], dim=-1)
        torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=0)


def test_scores_depend_on_the_distance_alone():
    query = heads(16, seed=0)[:, :, :1].expand(-1, -1, SEQ, -1)
    key = heads(16, seed=1)[:, :, :1].expand(-1, -1, SEQ, -1)
    turned_query, turned_key = RoPE(head_dim=16)(query, key)
    scores = turned_query @ turned_key.mT
    for distance in (0, 1, 7, 40):
        diagonal = scores.diagonal(-distance, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))
    assert (scores[..., 8, 1] - scores[..., 8, 2]).abs().min() > 1e-3


def test_the_first_position_is_not_turned_and_no_length_changes():
    query, key = heads(16, seed=0), heads(16, seed=1)
    turned, _ = RoPE(head_dim=16)(query, key)
    assert torch.equal(turned[:, :, 0], query[:, :, 0])
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))


def test_keeps_the_number_format_of_its_input():
    query = heads(16, seed=0)
    exact, _ = RoPE(head_dim=16)(query, query)
    turned, _ = RoPE(head_dim=16)(query.bfloat16(), query.bfloat16())
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), exact, atol=0.05, rtol=0.02)


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="head_dim=15"):
        RoPE(head_dim=15)
