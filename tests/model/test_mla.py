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


def test_both_forms_agree_on_rows_that_begin_late():
    part, x = attention(), stream()
    present = torch.tensor([[0] * 5 + [1] * 9, [1] * 14])
    full = lm.padded(torch.zeros(2, SEQ, dtype=torch.long), present=present)
    there = present.bool()
    chunks = cached(part, x, [8, *[1] * 6], full)
    torch.testing.assert_close(chunks[there], part(x, full)[there], atol=1e-5, rtol=1e-5)


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


def test_the_rotary_size_is_that_of_the_rope_and_half_a_head_without_one():
    assert LatentAttention(**FIXED, rope=lm.RoPE(head_dim=6)).rope_head_dim == 6
    assert LatentAttention(**FIXED).rope_head_dim == NOPE // 2


def test_proportions_are_those_of_deepseek():
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
    visible = counted(SEQ, x.device).visible(lm.causal)
    indexer = few.indexer
    assert indexer is not None
    assert not any(parameter.requires_grad for parameter in indexer.parameters())
    selected = indexer(x, x, few.rope, counted(SEQ, x.device), visible)
    assert selected.sum(-1)[0, 0].tolist() == [1, 2, *[3] * (SEQ - 2)]
    assert not (selected & ~visible).any()


def test_an_indexer_selects_among_the_tokens_of_a_document():
    x = stream()
    # Of many heads, so that few scores are 0, among which the choice is arbitrary.
    few = attention(indexer=partial(lm.Indexer, head_dim=10, num_heads=16, top_k=3))
    tokens = torch.ones(2, SEQ, dtype=torch.long)
    tokens[:, 6] = 0
    ctx = lm.PackedDocuments(end_of_text=0)(tokens)
    assert torch.allclose(few(x, ctx)[:, 6:], few(x[:, 6:]), atol=1e-6)
