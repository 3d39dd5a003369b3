"""Connections from earlier points of the stream, smeared and gated embeddings, beside formulas."""

import torch
import torch.nn.functional as F
from small_models import filled, small_block, small_model

from fidgpt import model as lm
from fidgpt.model.generation import Sampling, write


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
