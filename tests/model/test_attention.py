"""Attention against torch's own modules and a computation written out."""

import math

import pytest
import torch
from torch import nn

from fidgpt.model import Attention, RoPE, Scoring, sdpa
from fidgpt.model.context import counted

HIDDEN, HEAD_DIM, HEADS, SEQ = 32, 8, 4, 11


def attention(**options) -> Attention:
    torch.manual_seed(1)
    part = Attention(hidden_dim=HIDDEN, head_dim=HEAD_DIM, bias=True, **options)
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.3)
    return part.eval()


def stream(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, SEQ, HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_equals_torchs_multihead_attention():
    ours = attention()
    theirs = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
    with torch.no_grad():
        projections = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([p.get_parameter("weight") for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.get_parameter("bias") for p in projections]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = stream()
    mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
    expected, _ = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(ours(x), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_grouped_queries_equal_an_explicit_repeat(num_kv_heads):
    grouped = attention(num_kv_heads=num_kv_heads)
    explicit = attention()
    with torch.no_grad():
        for name in ("query", "out"):
            explicit.get_submodule(name).load_state_dict(grouped.get_submodule(name).state_dict())
        for name in ("key", "value"):
            for kind in ("weight", "bias"):
                few = grouped.get_parameter(f"{name}.{kind}").unflatten(0, (num_kv_heads, -1))
                many = few.repeat_interleave(HEADS // num_kv_heads, dim=0).flatten(0, 1)
                explicit.get_parameter(f"{name}.{kind}").copy_(many)
    x = stream()
    torch.testing.assert_close(grouped(x), explicit(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_the_kernel_is_a_causal_softmax_of_scaled_scores(num_kv_heads):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, HEADS, SEQ, HEAD_DIM, generator=generator)
    key, value = torch.randn(2, 2, num_kv_heads, SEQ, HEAD_DIM, generator=generator)
    scoring = Scoring(ctx=counted(SEQ, query.device), scale=HEAD_DIM**-0.5)
    for head in range(HEADS):
        shared = head // (HEADS // num_kv_heads)
        scores = query[:, head].double() @ key[:, shared].double().mT / math.sqrt(HEAD_DIM)
        future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        expected = weights @ value[:, shared].double()
        mixed = sdpa(query, key, value, scoring)[:, head]
        torch.testing.assert_close(mixed.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"rope": RoPE(head_dim=HEAD_DIM)}])
def test_a_later_token_never_changes_an_earlier_output(options):
    part = attention(**options)
    before, after = stream(), stream()
    for changed in (1, SEQ // 2, SEQ - 1):
        after[:, changed:] = stream(seed=1)[:, changed:]
        assert torch.equal(part(before)[:, :changed], part(after)[:, :changed])
        assert not torch.equal(part(before)[:, changed], part(after)[:, changed])
        after = before.clone()


def test_no_gradient_flows_to_the_future():
    x = stream().requires_grad_()
    attention()(x)[:, 4].sum().backward()
    assert x.grad is not None
    assert (x.grad[:, 5:] == 0).all()
    assert (x.grad[:, :5] != 0).any(-1).all()


def test_heads_follow_the_width_unless_said():
    assert attention().num_heads == HEADS
    wide = attention(num_heads=6)
    assert wide.query.weight.shape == (6 * HEAD_DIM, HIDDEN)
    assert wide.out.weight.shape == (HIDDEN, 6 * HEAD_DIM)
    assert wide(stream()).shape == (2, SEQ, HIDDEN)


def test_weights_are_dropped_in_training_only():
    part = attention(dropout=0.5)
    x = stream()
    assert torch.equal(part(x), attention()(x))
    part.train()
    torch.manual_seed(0)
    first = part(x)
    assert not torch.equal(first, part(x))
    torch.manual_seed(0)
    assert torch.equal(first, part(x))


def test_any_kernel_can_be_passed():
    x = stream()
    first = attention(kernel=lambda query, key, value, scoring: torch.zeros_like(query))
    torch.testing.assert_close(first(x), first.out.get_parameter("bias").expand_as(x))


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ({"hidden_dim": 1000, "head_dim": 64}, ("hidden_dim=1000", "head_dim=64")),
        ({"hidden_dim": 256, "head_dim": 0}, ("head_dim=0",)),
        (
            {"hidden_dim": 256, "head_dim": 64, "num_kv_heads": 3},
            ("num_heads=4", "num_kv_heads=3"),
        ),
        (
            {"hidden_dim": 256, "head_dim": 64, "num_kv_heads": 0},
            ("num_heads=4", "num_kv_heads=0"),
        ),
        (
            {"hidden_dim": 256, "head_dim": 64, "num_heads": 2, "num_kv_heads": 4},
            ("num_heads=2", "num_kv_heads=4"),
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(sizes, numbers):
    with pytest.raises(ValueError) as error:
        Attention(**sizes)
    assert all(number in str(error.value) for number in numbers)
