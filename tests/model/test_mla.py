"""Latent attention in its two forms; interop compares it with transformers' DeepSeek."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model.cache import Cache
from fidgpt.model.context import counted
from fidgpt.model.linear import LoRALinear
from fidgpt.model.mla import LatentAttention, latent_rank, rotary_share, yarn_scale
from fidgpt.model.reports import collecting

HIDDEN, HEADS, NOPE, ROPE, VALUE, KV_RANK, SEQ = 48, 3, 16, 8, 12, 20, 14
FIXED: dict[str, Any] = dict(hidden_dim=HIDDEN, head_dim=NOPE, num_heads=HEADS, kv_rank=KV_RANK)
SIZES = FIXED | {"rope_head_dim": ROPE, "value_head_dim": VALUE}
NORM = partial(lm.RMSNorm, eps=1e-6)


def attention(**changes: Any) -> LatentAttention:
    options: dict[str, Any] = SIZES | {"rope": lm.RoPE(head_dim=ROPE), "norm": NORM} | changes
    return filled(LatentAttention(**options)).eval()


def stream() -> Tensor:
    return drawn(2, SEQ, HIDDEN)


CASES = {
    "plain": {},
    "direct": {"rope": None},
    "ranked": {"query_rank": 10},
    "window": {"window": 4},
    "capped": {"scores": [lm.Softcap(cap=2.0)]},
    "alibi": {"scores": [lm.ALiBi()]},
    "sinks": {"sinks": lm.attention_sinks},
    "blockwise": {"kernel": lm.blockwise},
    "prefix": {"mask": lm.Prefix(3)},
    "lora": {"linear": partial(LoRALinear, rank=2)},
    "indexed": {"indexer": partial(lm.Indexer, head_dim=10, num_heads=16, top_k=4)},
}


class Counting:
    """A kernel that notes how many heads of keys it was given."""

    def __init__(self) -> None:
        self.kv_heads: list[int] = []

    def __call__(self, query, key, value, scoring):
        self.kv_heads.append(key.shape[1])
        return lm.eager(query, key, value, scoring)


def cached(
    part: LatentAttention, x: Tensor, chunks: list[int], ctx: lm.AttentionContext | None = None
) -> Tensor:
    """What comes out where the tokens come in chunks."""
    cache, outs, begin = Cache(capacity=x.shape[1]), [], 0
    ctx = ctx or counted(x.shape[1], x.device)
    for count in chunks:
        here = replace(ctx.columns(begin, begin + count), cache=cache)
        outs.append(part(x[:, begin : begin + count], here))
        begin += count
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("chunks", [[3, *[1] * (SEQ - 3)], [6, 3, 5], [4, 10]])
@pytest.mark.parametrize("case", CASES)
def test_tokens_that_come_in_chunks_know_as_much(case, chunks):
    part, x = attention(**CASES[case]), stream()
    with torch.no_grad():
        torch.testing.assert_close(cached(part, x, chunks), part(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("chunks", "kv_heads"),
    [
        ([9, 1, 1, 3], [HEADS, 1, 1, 1]),
        ([SEQ], [HEADS]),
        ([2, 12], [HEADS, HEADS]),  # absorbing would cost more
    ],
)
def test_few_queries_are_absorbed_and_many_are_not(chunks, kv_heads):
    kernel = Counting()
    cached(attention(kernel=kernel), stream(), chunks)
    assert kernel.kv_heads == kv_heads


def test_a_custom_linear_is_not_absorbed():
    class Doubled(nn.Linear):
        def __init__(self, inner, outer, *, bias, init):
            super().__init__(inner, outer, bias=bias)

        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    kernel = Counting()
    part, x = attention(kernel=kernel, linear=Doubled), stream()
    with torch.no_grad():
        torch.testing.assert_close(cached(part, x, [10, 1, 1, 1, 1]), part(x), atol=1e-4, rtol=1e-4)
    assert set(kernel.kv_heads) == {HEADS}


def test_proportions_are_those_of_deepseek():
    assert LatentAttention(**FIXED, rope=lm.RoPE(head_dim=6)).rope_head_dim == 6
    assert LatentAttention(**FIXED).rope_head_dim == NOPE // 2
    assert (latent_rank(head_dim=128), rotary_share(head_dim=128)) == (512, 64)
    assert [rotary_share(head_dim=size) for size in (1, 4, 6, 50)] == [2, 2, 2, 24]
    plain = yarn_scale(head_dim=128, rope_head_dim=64, factor=1.0)
    assert plain == pytest.approx(192**-0.5)
    stretched = yarn_scale(head_dim=128, rope_head_dim=64, factor=40.0)
    assert stretched == pytest.approx(0.1352337788)  # DeepSeek-V3's softmax_scale


def test_weights_are_dropped_in_training_only():
    part, x = attention(dropout=0.5), stream()
    assert torch.equal(part(x), attention()(x))
    part.train()
    assert not torch.equal(part(x), part(x))


def test_biases_are_those_of_deepseek():
    part = attention(bias=True, query_rank=10)
    names = {name for name, _ in part.named_parameters() if name.endswith("bias")}
    assert names == {"query_down.bias", "kv_down.bias", "out.bias"}
    assert attention(bias=True, out_bias=False).out.bias is None


def test_an_indexer_selects_the_keys_of_the_highest_scores():
    """One that selects all changes nothing; one that selects few selects these few."""
    x, plain = stream(), attention()
    whole, few = (
        attention(indexer=partial(lm.Indexer, head_dim=10, num_heads=2, top_k=top_k))
        for top_k in (SEQ, 3)
    )
    for one in (whole, few):
        one.load_state_dict(plain.state_dict(), strict=False)
    assert torch.allclose(whole(x), plain(x), atol=1e-6)
    visible, indexer = counted(SEQ, x.device).visible(lm.causal), few.indexer
    assert indexer is not None
    selected = indexer(x, x, few.rope, counted(SEQ, x.device), visible).keys
    assert (selected & visible).sum(-1)[0, 0].tolist() == [1, 2, *[3] * (SEQ - 2)]


@pytest.mark.parametrize("kind", [lm.IndexerLoss, lm.DenseIndexerLoss])
def test_an_indexer_learns_the_attention_of_all_heads(kind):
    """The divergence of one query after another; nothing but the indexer gets a gradient."""
    settings = {"head_dim": 10, "num_heads": 16, "top_k": 3, "objective": kind(weight=0.5)}
    part = attention(indexer=partial(lm.Indexer, **settings), sinks=lm.attention_sinks)
    tokens = torch.ones(2, SEQ, dtype=torch.long)
    tokens[:, 6] = 0
    real = torch.arange(SEQ) < torch.tensor([[SEQ], [9]])
    ctx = replace(lm.PackedDocuments(end_of_text=0)(tokens), real=real)
    x = stream().requires_grad_()
    with collecting() as reports:
        part.train()(x, ctx)
    reports.losses["indexer"].backward()
    indexer = part.indexer
    assert indexer is not None and x.grad is None
    trained = {id(one) for one in part.parameters() if one.grad is not None}
    assert trained == {*map(id, indexer.parameters())}

    query, latent = part._project(x, x, ctx)
    query, key, _ = part._plain(query, latent)
    keys, scores = indexer(x, x, part.rope, ctx, ctx.visible())
    assert part.sinks is not None
    divergences = []
    for row, at in real.nonzero().tolist():
        own = (keys if kind.selects else ctx.visible())[row, 0, at]
        products = (query[row, :, at, None] @ key[row].mT).squeeze(1) * part.scale
        seen = torch.cat([products[:, own], part.sinks[:, None]], dim=1)
        target = seen.softmax(-1)[:, :-1].sum(0)
        share = (target / target.sum()).log() - scores[row, 0, at, own].log_softmax(-1)
        divergences.append((target / target.sum() * share).sum())
    expected = 0.5 * torch.stack(divergences).mean()
    torch.testing.assert_close(reports.losses["indexer"], expected)
    parameters = [*indexer.parameters()]
    gradients = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close([one.grad for one in parameters], [*gradients])


def test_an_indexer_selects_among_the_tokens_of_a_document():
    x = stream()
    # Of many heads, so that few scores are 0, among which the choice is arbitrary.
    few = attention(indexer=partial(lm.Indexer, head_dim=10, num_heads=16, top_k=3))
    tokens = torch.ones(2, SEQ, dtype=torch.long)
    tokens[:, 6] = 0
    ctx = lm.PackedDocuments(end_of_text=0)(tokens)
    assert torch.allclose(few(x, ctx)[:, 6:], few(x[:, 6:]), atol=1e-6)
