"""A compiled step of one token: traced once, reused for every token, in a process of its own."""

from pathlib import Path

from forked import run_program

# Without the checks of shapes that tests run under, which the compiler would trace too.
PROGRAM = """
from functools import partial

import torch
from fidgpt.model import (
    ALiBi, Attention, Block, Embedding, LearnedPositions, RMSNorm, RoPE, SwiGLU, Transformer,
    Unembedding, materialize, token_table,
)
from fidgpt.model.cache import StaticCache
from fidgpt.model.generation import likeliest, next_logits, write

traced = 0
ready = False


def counting(graph, inputs):
    from torch._dynamo.backends.debugging import aot_eager

    global traced
    traced += 1
    assert not ready, "traced again"
    return aot_eager(graph, inputs)


def block(attention):
    return Block(
        attention_norm=RMSNorm(hidden_dim=16),
        attention=attention(hidden_dim=16, head_dim=8),
        mlp_norm=RMSNorm(hidden_dim=16),
        mlp=SwiGLU(hidden_dim=16),
    )


def step(model, tokens, layout):
    global ready
    logits = compiled(model, tokens, layout)
    ready = True
    return logits


rope = RoPE(head_dim=8)
table = token_table(vocab_size=40, hidden_dim=16)
model = Transformer(
    hidden_dim=16,
    num_layers=2,
    embedding=Embedding(table, positions=LearnedPositions(seq_len=64, hidden_dim=16)),
    blocks=[
        partial(block, partial(Attention, window=5, rope=rope)),
        partial(block, partial(Attention, num_kv_heads=1, rope=rope, scores=[ALiBi()])),
    ],
    norm=RMSNorm(hidden_dim=16),
    unembedding=Unembedding(token_table(vocab_size=40, hidden_dim=16)),
)
materialize(model, device=torch.device("cpu"), seed=0)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
model.eval()
compiled = torch.compile(next_logits, backend=counting, fullgraph=True, dynamic=False)
for prompts in ([[1, 2, 3]], [[1, 2, 3], [4, 5, 6, 7, 8, 9]]):
    ready, traced = False, 0
    options = dict(num_tokens=20, context=64, choose=lambda logits, tokens: likeliest(logits))
    eager = list(write(model, prompts, **options))
    assert list(write(model, prompts, cache=StaticCache, step=step, **options)) == eager
    assert traced == 1, traced
    assert len({token for tokens in eager for token in tokens}) > 3
"""


def test_a_step_is_compiled_once_for_all_tokens(tmp_path: Path):
    run_program(PROGRAM, folder=tmp_path)
