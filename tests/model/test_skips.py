"""Connections from earlier points of the stream, smeared and gated embeddings, beside formulas."""

import pytest
import torch
import torch.nn.functional as F
from small_models import drawn, filled, small_block, small_model

from fidgpt import model as lm
from fidgpt.model.generation import Sampling, write


def test_skips_are_their_formulas() -> None:
    skips = [lm.InputScalars(num_layers=3), lm.Backout()]
    model = filled(small_model(small_block, num_layers=3, skips=skips)).eval()
    tokens = torch.randint(50, (2, 5), generator=torch.Generator().manual_seed(0))
    scalars, backout = model.skips
    with torch.no_grad():
        x = first = model.embedding(tokens)
        middle = None
        for number, block in enumerate(model.blocks):
            x = block(scalars.residual[number] * x + scalars.input[number] * first)
            middle = x if number == 1 else middle
        expected = model.norm(x - backout.amount * middle)
        assert torch.equal(model.features(tokens), expected)


def test_an_embedding_gets_a_share_of_the_one_before_in_its_document() -> None:
    table = lm.token_table(vocab_size=50, hidden_dim=32)
    embedding = filled(lm.SmearedEmbedding(table, num_channels=4))
    tokens = torch.tensor([[3, 4, 0, 5, 6]])
    with torch.no_grad():
        x = table[tokens]
        share = embedding.amount * torch.sigmoid(x[..., :4] @ embedding.gate.T)
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        assert torch.allclose(embedding(tokens), x + share * before)
        ctx = lm.PackedDocuments(end_of_text=0)(tokens)
        before[:, 2] = 0
        assert torch.allclose(embedding(tokens, ctx), x + share * before)


def test_a_smeared_model_writes_with_a_cache_as_it_reads() -> None:
    table = lm.token_table(vocab_size=50, hidden_dim=32)
    model = filled(
        small_model(small_block, embedding=lm.SmearedEmbedding(table), tied=False)
    ).eval()
    prompts = [[3, 4, 5], [7]]
    choose = Sampling(seeds=[0, 1], temperature=0.0)
    steps = write(model, prompts, num_tokens=6, context=16, choose=choose)
    rows = [[*prompt] for prompt in prompts]
    for column in steps:
        for row, token in zip(rows, column, strict=True):
            with torch.no_grad():
                assert token == model(torch.tensor([row]))[0, -1].argmax()
            assert token is not None
            row.append(token)


def test_a_gated_value_embedding_is_its_formula() -> None:
    own = filled(lm.GatedValueEmbedding(vocab_size=7, num_kv_heads=2, head_dim=8, num_channels=3))
    tokens, x = torch.tensor([[1, 2, 6]]), drawn(1, 3, 16)
    with torch.no_grad():
        gate = 3 * torch.sigmoid(x[..., :3] @ own.gate.T)
        expected = own.weight[tokens].view(1, 3, 2, 8) * gate.unsqueeze(-1)
        assert torch.allclose(own(tokens, x), expected.flatten(-2))
    with pytest.raises(ValueError, match="needs the input of its attention"):
        own(tokens)
