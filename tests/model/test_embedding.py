"""The token table and what is added to it."""

import pytest
import torch

from fidgpt.model import (
    Attention,
    Embedding,
    LearnedPositions,
    SinusoidalPositions,
    Unembedding,
    one_document,
    token_table,
)
from fidgpt.model.embedding import ValueEmbedding


def test_a_token_reads_its_row_and_a_position_adds_its_own():
    table = token_table(vocab_size=7, hidden_dim=4)
    positions = LearnedPositions(seq_len=5, hidden_dim=4)
    tokens = torch.tensor([[3, 0, 6], [1, 1, 1]])
    assert torch.equal(Embedding(table)(tokens), table[tokens])
    expected = table[tokens] + positions.weight[:3]
    assert torch.equal(Embedding(table, positions=positions)(tokens), expected)


def test_the_unembedding_scores_every_row():
    table = token_table(vocab_size=7, hidden_dim=4)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(Unembedding(table)(x), torch.einsum("bsh,vh->bsv", x, table))


def test_one_table_for_both_learns_from_both():
    table = token_table(vocab_size=7, hidden_dim=4)
    embedding, unembedding = Embedding(table), Unembedding(table)
    assert embedding.weight is unembedding.weight
    unembedding(embedding(torch.tensor([[2]])))[0, 0, 5].backward()
    assert table.grad is not None
    torch.testing.assert_close(table.grad[2], table[5].detach())
    torch.testing.assert_close(table.grad[5], table[2].detach())


def test_a_token_that_comes_often_keeps_its_gradient_in_a_narrow_format():
    tokens = (torch.arange(4096) % 3).minimum(torch.tensor(1)).view(4, 1024)  # 0 and 1 of seven
    outer = torch.randn(4, 1024, 8, generator=torch.Generator().manual_seed(0)) + 1
    table = torch.nn.Parameter(token_table(vocab_size=7, hidden_dim=8).detach().bfloat16())
    Embedding(table)(tokens).backward(outer.bfloat16())
    exact = torch.zeros(7, 8).index_add_(
        0, tokens.flatten(), outer.bfloat16().float().flatten(0, 1)
    )
    assert table.grad is not None
    torch.testing.assert_close(table.grad.float(), exact, rtol=2**-8, atol=0)


def test_a_sequence_past_the_last_position_is_refused():
    positions = LearnedPositions(seq_len=5, hidden_dim=4)
    assert positions(torch.arange(5).unsqueeze(0)).shape == (1, 5, 4)
    with pytest.raises(ValueError, match="6 tokens .* 5 learned positions"):
        positions(torch.arange(6).unsqueeze(0))


def test_sines_tell_positions_apart_and_shift_alike():
    """The product of two depends on their distance alone (Vaswani et al., 2017, section 3.5)."""
    positions = SinusoidalPositions(hidden_dim=16)
    table = positions(torch.arange(40).unsqueeze(0))[0]
    torch.testing.assert_close(table[:, 0], torch.arange(40.0).sin())
    products = table @ table.T
    torch.testing.assert_close(products[5, 9], products[25, 29])
    assert products.argmax(1).tolist() == list(range(40))
    with pytest.raises(ValueError, match="hidden_dim=7 must be even"):
        SinusoidalPositions(hidden_dim=7)


def test_scales_and_the_cap_are_those_of_the_formula():
    table = token_table(vocab_size=7, hidden_dim=4)
    tokens = torch.tensor([[3, 0]])
    torch.testing.assert_close(Embedding(table, scale=2.0)(tokens), 2 * table[tokens])
    x = 100 * torch.randn(2, 3, 4)
    logits = x @ table.T / 4
    expected = 30 * torch.tanh(logits / 30)
    torch.testing.assert_close(Unembedding(table, scale=0.25, softcap=30.0)(x), expected)


def test_a_value_embedding_adds_a_row_of_its_own_to_the_values():
    own = ValueEmbedding(vocab_size=7, num_kv_heads=2, head_dim=8)
    plain = Attention(hidden_dim=32, head_dim=8, num_kv_heads=2)
    part = Attention(hidden_dim=32, head_dim=8, num_kv_heads=2, value_embedding=own)
    part.load_state_dict(plain.state_dict(), strict=False)
    x, tokens = torch.randn(2, 3, 32), torch.tensor([[3, 0, 6], [1, 1, 1]])
    layout = one_document(tokens)
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


def test_a_value_embedding_without_tokens_says_so():
    own = ValueEmbedding(vocab_size=7, num_kv_heads=4, head_dim=8)
    part = Attention(hidden_dim=32, head_dim=8, value_embedding=own)
    with pytest.raises(ValueError, match="ValueEmbedding needs the tokens"):
        part(torch.randn(2, 3, 32))
