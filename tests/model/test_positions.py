"""Positions and embeddings against closed forms."""

import pytest
import torch
from small_models import drawn

from fidgpt import model as lm
from fidgpt.model import NTKScaling
from fidgpt.model.embedding import ValueEmbedding

X = 100 * drawn(2, 3, 4)


def test_embedding_and_unembedding_compute_their_formulas():
    table, tokens, x = lm.token_table(vocab_size=7, hidden_dim=4), torch.tensor([[3, 0, 6]]), X
    positions = lm.LearnedPositions(seq_len=5, hidden_dim=4)
    assert torch.equal(lm.Embedding(table)(tokens), table[tokens])
    expected = 2 * table[tokens] + positions.weight[:3]
    scaled = lm.Embedding(table, positions=positions, scale=2.0)
    torch.testing.assert_close(scaled(tokens), expected)
    logits = torch.einsum("bsh,vh->bsv", x, table)
    torch.testing.assert_close(lm.Unembedding(table)(x), logits)
    capped = 30 * torch.tanh(logits / 4 / 30)
    torch.testing.assert_close(lm.Unembedding(table, scale=0.25, softcap=30.0)(x), capped)


def test_one_table_for_both_learns_from_both():
    table = lm.token_table(vocab_size=7, hidden_dim=4)
    embedding, unembedding = lm.Embedding(table), lm.Unembedding(table)
    assert embedding.weight is unembedding.weight
    unembedding(embedding(torch.tensor([[2]])))[0, 0, 5].backward()
    assert table.grad is not None
    torch.testing.assert_close(table.grad[2], table[5].detach())
    torch.testing.assert_close(table.grad[5], table[2].detach())


def test_a_token_that_comes_often_keeps_its_gradient_in_a_narrow_format():
    tokens = (torch.arange(4096) % 3).minimum(torch.tensor(1)).view(4, 1024)  # 0 and 1 of seven
    outer = drawn(4, 1024, 8) + 1
    table = torch.nn.Parameter(lm.token_table(vocab_size=7, hidden_dim=8).detach().bfloat16())
    lm.Embedding(table)(tokens).backward(outer.bfloat16())
    rows = outer.bfloat16().float().flatten(0, 1)
    exact = torch.zeros(7, 8).index_add_(0, tokens.flatten(), rows)
    assert table.grad is not None
    torch.testing.assert_close(table.grad.float(), exact, rtol=2**-8, atol=0)


def test_a_sequence_past_the_last_position_is_refused():
    positions = lm.LearnedPositions(seq_len=5, hidden_dim=4)
    assert positions(torch.arange(5).unsqueeze(0)).shape == (1, 5, 4)
    with pytest.raises(ValueError, match="6 tokens .* 5 learned positions"):
        positions(torch.arange(6).unsqueeze(0))


def test_sines_distinguish_positions():
    """The product of two depends on their distance alone (Vaswani et al., 2017, section 3.5)."""
    positions = lm.SinusoidalPositions(hidden_dim=16)
    table = positions(torch.arange(40).unsqueeze(0))[0]
    torch.testing.assert_close(table[:, 0], torch.arange(40.0).sin())
    products = table @ table.T
    torch.testing.assert_close(products[5, 9], products[25, 29])
    assert products.argmax(1).tolist() == list(range(40))


def test_a_value_embedding_adds_a_row_of_its_own_to_the_values():
    own = ValueEmbedding(vocab_size=7, num_kv_heads=2, head_dim=8)
    plain = lm.Attention(hidden_dim=32, head_dim=8, num_kv_heads=2)
    part = lm.Attention(hidden_dim=32, head_dim=8, num_kv_heads=2, value_embedding=own)
    part.load_state_dict(plain.state_dict(), strict=False)
    x, tokens = torch.randn(2, 3, 32), torch.tensor([[3, 0, 6], [1, 1, 1]])
    layout = lm.one_document(tokens)
    rows = 0.5 * own.weight[tokens]  # the gate starts at a half
    seen = rows.cumsum(1) / torch.arange(1, 4).view(1, 3, 1)
    with torch.no_grad():
        for one in (plain, part):  # every token looks at all before it alike
            one.get_parameter("query.weight").zero_()
    heads = seen.unflatten(-1, (2, 8)).repeat_interleave(2, dim=-2).flatten(-2)
    expected = plain(x, layout) + plain.out(heads)
    torch.testing.assert_close(part(x, layout), expected)
    part(x, layout).sum().backward()
    assert own.gate.grad is not None and own.gate.grad != 0
    assert own.weight.grad is not None
    assert own.weight.grad.any(-1).tolist() == [True, True, False, True, False, False, True]


def test_a_value_embedding_needs_tokens():
    own = ValueEmbedding(vocab_size=7, num_kv_heads=4, head_dim=8)
    part = lm.Attention(hidden_dim=32, head_dim=8, value_embedding=own)
    with pytest.raises(AssertionError, match="need the tokens of this pass"):
        part(torch.randn(2, 3, 32))


SEQ = 96


def heads(head_dim: int, seed: int = 0, count: int = 3) -> torch.Tensor:
    return drawn(2, count, SEQ, head_dim, seed=seed)


def test_equals_a_rotation_of_complex_numbers():
    """Pair k at position p, as a complex number, times exp(i p theta^(-2k / head_dim))."""
    query, key = heads(8, seed=0), heads(8, seed=1)
    rates = 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turns = torch.polar(torch.ones(SEQ, 4).double(), torch.arange(SEQ).double()[:, None] * rates)
    for ours, x in zip(lm.RoPE(head_dim=8, theta=100.0)(query, key), (query, key), strict=True):
        turned = torch.complex(x[..., :4].double(), x[..., 4:].double()) * turns
        expected = torch.cat([turned.real, turned.imag], dim=-1)
        torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=0)


def test_ntk_scaling_is_a_larger_base() -> None:
    """Theta * factor^(d / (d - 2)), of which the slowest pair turns `factor` times as slowly."""
    head_dim, theta, factor = 32, 10_000.0, 4.0
    query, key = heads(head_dim), heads(head_dim, seed=1)
    scaled = lm.RoPE(head_dim=head_dim, theta=theta, scaling=NTKScaling(factor=factor))
    larger = lm.RoPE(head_dim=head_dim, theta=theta * factor ** (head_dim / (head_dim - 2)))
    torch.testing.assert_close(scaled(query, key), larger(query, key), atol=5e-5, rtol=0)
