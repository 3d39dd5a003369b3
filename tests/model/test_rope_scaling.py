"""RoPE's scalings and its partial form against those of transformers."""

from typing import Any

import pytest
import torch

from fidgpt.model import RoPE
from fidgpt.model.positions import LinearScaling, Llama3Scaling, NTKScaling, RoPEScaling, YaRN

SEQ = 96
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
CASES: list[tuple[RoPEScaling | None, dict[str, Any]]] = [
    (LinearScaling(factor=4.0), dict(rope_type="linear", factor=4.0)),
    (
        Llama3Scaling(original_seq_len=64, **LLAMA3),
        dict(rope_type="llama3", original_max_position_embeddings=64, **LLAMA3),
    ),
    (
        YaRN(factor=16.0, original_seq_len=48),
        dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=48),
    ),
    (
        YaRN(factor=4.0, original_seq_len=32, beta_fast=8.0, amplitude=1.5, truncate=False),
        dict(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            beta_fast=8,
            attention_factor=1.5,
            truncate=False,
        ),
    ),
]


def heads(head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, SEQ, head_dim, generator=generator), torch.randn(
        2, 1, SEQ, head_dim, generator=generator
    )


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize(("scaling", "theirs"), CASES, ids=lambda one: type(one).__name__)
def test_equals_transformers(scaling: RoPEScaling, theirs: dict[str, Any], head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    theta = 5_000.0
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=768,
        rope_parameters={"rope_theta": theta, **theirs},
    )
    query, key = heads(head_dim)
    cos, sin = LlamaRotaryEmbedding(config)(query, torch.arange(SEQ)[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    turned = RoPE(head_dim=head_dim, theta=theta, scaling=scaling)(query, key)
    for ours, reference in zip(turned, expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=5e-5, rtol=0)


def test_ntk_scaling_is_a_larger_base() -> None:
    """Theta * factor^(d / (d - 2)), of which the slowest pair turns `factor` times as slowly."""
    head_dim, theta, factor = 32, 10_000.0, 4.0
    query, key = heads(head_dim)
    scaled = RoPE(head_dim=head_dim, theta=theta, scaling=NTKScaling(factor=factor))
    larger = RoPE(head_dim=head_dim, theta=theta * factor ** (head_dim / (head_dim - 2)))
    for ours, reference in zip(scaled(query, key), larger(query, key), strict=True):
        torch.testing.assert_close(ours, reference, atol=5e-5, rtol=0)


def test_only_the_first_dimensions_turn() -> None:
    query, key = heads(64)
    turned, _ = RoPE(head_dim=64, rotary_dim=16)(query, key)
    whole, _ = RoPE(head_dim=16)(query[..., :16], key[..., :16])
    torch.testing.assert_close(turned[..., :16], whole)
    assert torch.equal(turned[..., 16:], query[..., 16:])


@pytest.mark.parametrize("rotary_dim", [3, 0, 18])
def test_dimensions_that_cannot_be_paired(rotary_dim: int) -> None:
    with pytest.raises(ValueError, match=f"rotary_dim={rotary_dim} of head_dim=16"):
        RoPE(head_dim=16, rotary_dim=rotary_dim)
    RoPE(head_dim=15, rotary_dim=8)


@pytest.mark.parametrize("kind", [LinearScaling, NTKScaling])
@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_waves_have_a_length(kind, factor):
    with pytest.raises(ValueError, match="factor=.* above 0"):
        kind(factor=factor)
