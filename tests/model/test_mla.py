"""Latent attention against its two forms and transformers' DeepSeek-V2 and V3."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from small_models import CPU, drawn, filled
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


def test_the_cache_holds_the_latent_and_the_shared_key_alone():
    cache = Cache(capacity=SEQ)
    attention()(stream(), replace(counted(SEQ, CPU), cache=cache))
    positions = SEQ * 8
    assert cache.bytes() == 2 * SEQ * (KV_RANK + ROPE) * 4 + positions


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": None, "hidden_dim": 50}, "hidden_dim=50 .* head_dim=16"),
        ({"kv_rank": 0}, "kv_rank=0"),
        ({"query_rank": 0}, "query_rank=0"),
        ({"rope_head_dim": 0}, "rope_head_dim=0"),
        ({"value_head_dim": -1}, "value_head_dim=-1"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"window": 0}, "window=0"),
        ({"rope": lm.RoPE(head_dim=16)}, "rope_head_dim=8 must equal .* head_dim=16"),
    ],
)
def test_sizes_that_do_not_fit_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        LatentAttention(**SIZES | wrong)


YARN = {"factor": 40.0, "original_max_position_embeddings": 16, "mscale": 1.0}


def halves(weight: Tensor, *, heads: int, still: int) -> Tensor:
    """Rows sorted so that what were pairs of neighbors among the last of a head are halves."""
    rows = weight.unflatten(0, (heads, -1))
    kept, turning = rows[:, :still], rows[:, still:]
    return torch.cat([kept, turning[:, 0::2], turning[:, 1::2]], dim=1).flatten(0, 1)


def theirs(version: str, query_rank: int | None, *, yarn: bool) -> tuple[nn.Module, nn.Module]:
    """DeepSeek's attention and its rotary embedding, small."""
    from transformers import DeepseekV2Config, DeepseekV3Config
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    Config, attention, rotary = {
        "v2": (DeepseekV2Config, v2.DeepseekV2Attention, v2.DeepseekV2RotaryEmbedding),
        "v3": (DeepseekV3Config, v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding),
    }[version]
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    if yarn:
        rope |= {"rope_type": "yarn", "mscale_all_dim": 1.0, **YARN}
    config = Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=query_rank,
        kv_lora_rank=KV_RANK,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        rope_parameters=rope,
        max_position_embeddings=640,
        attn_implementation="eager",
    )
    return filled(attention(config, layer_idx=0).eval()), rotary(config)


NAMES = {
    "q_proj": "query",
    "q_a_proj": "query_down",
    "q_a_layernorm": "query_norm",
    "q_b_proj": "query",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "out",
}


def ported(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Our name of one of their parameters, with its rows in our order."""
    ours = NAMES[name.removesuffix(".weight")]
    if ours == "query":
        tensor = halves(tensor, heads=HEADS, still=NOPE)
    if ours == "kv_down":
        tensor = halves(tensor, heads=1, still=KV_RANK)
    return f"{ours}.weight", tensor


@pytest.mark.xdist_group("transformers")  # whose import takes seconds
@pytest.mark.parametrize("yarn", [False, True])
@pytest.mark.parametrize("query_rank", [None, 10])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_equals_transformers_with_its_weights_forward_and_back(version, query_rank, yarn):
    reference, rotary = theirs(version, query_rank, yarn=yarn)
    scaling = lm.YaRN(factor=40.0, original_seq_len=16, amplitude=1.0) if yarn else None
    scale = yarn_scale(head_dim=NOPE, rope_head_dim=ROPE, factor=40.0) if yarn else None
    rope = lm.RoPE(head_dim=ROPE, scaling=scaling)
    ours = attention(query_rank=query_rank, scale=scale, rope=rope)
    ours.load_state_dict(dict(ported(*named) for named in reference.state_dict().items()))
    x, y = stream().requires_grad_(), stream().requires_grad_()
    future = torch.full((SEQ, SEQ), -torch.inf).triu(1)[None, None]
    places = rotary(x, torch.arange(SEQ)[None])
    expected, _ = reference(x, position_embeddings=places, attention_mask=future)
    torch.testing.assert_close(ours(y), expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    ours(y).square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad, atol=1e-4, rtol=1e-4)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        name, gradient = ported(name, parameter.grad)
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)
