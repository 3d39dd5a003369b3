"""The token table and what is added to it."""

import pytest
import torch

from fidgpt.model import Embedding, LearnedPositions, Unembedding, token_table


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


def test_a_sequence_past_the_last_position_is_refused():
    positions = LearnedPositions(seq_len=5, hidden_dim=4)
    assert positions(torch.zeros(1, 5, 4)).shape == (1, 5, 4)
    with pytest.raises(ValueError, match="6 tokens .* 5 learned positions"):
        positions(torch.zeros(1, 6, 4))
