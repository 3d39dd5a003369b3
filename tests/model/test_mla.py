"""Latent attention against its two forms and transformers' DeepSeek-V2 and V3."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from fidgpt.cost import flops_per_token
from fidgpt.model import (
    ALiBi,
    PackedDocuments,
    Prefix,
    RMSNorm,
    RoPE,
    Softcap,
    YaRN,
    attention_sinks,
    blockwise,
    eager,
    padded,
)
from fidgpt.model.cache import Cache
from fidgpt.model.context import counted
from fidgpt.model.linear import LoRALinear
from fidgpt.model.mla import LatentAttention, latent_rank, rotary_share, yarn_scale

HIDDEN, HEADS, NOPE, ROPE, VALUE, KV_RANK, SEQ = 48, 3, 16, 8, 12, 20, 14
SIZES: dict[str, Any] = {
    "hidden_dim": HIDDEN,
    "head_dim": NOPE,
    "rope_head_dim": ROPE,
    "value_head_dim": VALUE,
    "kv_rank": KV_RANK,
    "num_heads": HEADS,
}
NORM = partial(RMSNorm, eps=1e-6)


def attention(**options) -> LatentAttention:
    torch.manual_seed(1)
    part = LatentAttention(**SIZES | {"rope": RoPE(head_dim=ROPE), "norm": NORM} | options)
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.3)
    return part.eval()


def stream(seed: int = 0, seq: int = SEQ) -> Tensor:
    return torch.randn(2, seq, HIDDEN, generator=torch.Generator().manual_seed(seed))


CASES = {
    "plain": {},
    "direct": {"rope": None},
    "ranked": {"query_rank": 10},
    "window": {"window": 4},
    "capped": {"scores": [Softcap(cap=2.0)]},
    "alibi": {"scores": [ALiBi()]},
    "sinks": {"sinks": attention_sinks},
    "blockwise": {"kernel": blockwise},
    "prefix": {"mask": Prefix(3)},
    "lora": {"linear": partial(LoRALinear, rank=2)},
}


class Counting:
    """A kernel that notes how many heads of keys it was given."""

    def __init__(self) -> None:
        self.kv_heads: list[int] = []

    def __call__(self, query, key, value, scoring):
        self.kv_heads.append(key.shape[1])
        return eager(query, key, value, scoring)


def cached(part: LatentAttention, x: Tensor, chunks: list[int], whole: bool = True) -> Tensor:
    """What comes out where the tokens come in chunks."""
    cache, outs, begin = Cache(capacity=x.shape[1]), [], 0
    for count in chunks:
        ctx = counted(x.shape[1], x.device).columns(begin, begin + count)
        ctx = replace(ctx, contiguous=whole, cache=cache)
        outs.append(part(x[:, begin : begin + count], ctx))
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
    full = padded(torch.zeros(2, SEQ, dtype=torch.long), present=present)
    cache, outs = Cache(capacity=SEQ), []
    for begin, end in [(0, 8), *((i, i + 1) for i in range(8, SEQ))]:
        outs.append(part(x[:, begin:end], replace(full.columns(begin, end), cache=cache)))
    there = present.bool()
    expected = part(x, full)[there]
    torch.testing.assert_close(torch.cat(outs, dim=1)[there], expected, atol=1e-5, rtol=1e-5)


def test_few_queries_are_absorbed_and_many_are_not():
    kernel = Counting()
    part = attention(kernel=kernel)
    cached(part, stream(), [9, 1, 1, 3])
    assert kernel.kv_heads == [HEADS, 1, 1, 1]
    kernel.kv_heads.clear()
    part(stream())
    assert kernel.kv_heads == [HEADS]
    kernel.kv_heads.clear()
    cached(part, stream(), [2, 12])  # absorbing would cost more
    assert kernel.kv_heads == [HEADS, HEADS]


def test_a_linear_that_nobody_can_absorb_is_called():
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
    attention()(stream(), replace(counted(SEQ, torch.device("cpu")), cache=cache))
    positions = SEQ * 8
    assert cache.bytes() == 2 * SEQ * (KV_RANK + ROPE) * 4 + positions


def test_documents_do_not_see_each_other():
    part = attention()
    tokens = torch.ones(2, SEQ, dtype=torch.long)
    tokens[:, 4] = 0
    packed = part(stream(), PackedDocuments(end_of_text=0)(tokens))
    for document in (slice(0, 4), slice(4, SEQ)):
        alone = part(stream()[:, document])
        torch.testing.assert_close(packed[:, document], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("query_rank", [None, 96])
def test_the_forward_pass_costs_what_torch_counts(query_rank):
    seq, batch = 256, 2
    with torch.device("meta"):
        part = LatentAttention(
            hidden_dim=256,
            head_dim=64,
            rope_head_dim=32,
            value_head_dim=48,
            kv_rank=128,
            query_rank=query_rank,
            kernel=eager,
            rope=RoPE(head_dim=32),
        )
        with FlopCounterMode(display=False) as counter:
            part(torch.empty(batch, seq, 256))
    counted = counter.get_total_flops() / (batch * seq)
    assert flops_per_token(part, seq_len=seq) == pytest.approx(counted, rel=1e-2)


def test_a_window_bounds_the_cost():
    assert attention(window=4).own_flops_per_token(100) == 2 * 4 * HEADS * (NOPE + ROPE + VALUE)


def test_as_much_turns_as_the_rope_is_for_and_half_a_head_without_one():
    sizes = {name: size for name, size in SIZES.items() if name != "rope_head_dim"}
    assert LatentAttention(**sizes, rope=RoPE(head_dim=6)).rope_head_dim == 6
    assert LatentAttention(**sizes).rope_head_dim == NOPE // 2


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
        ({"rope_head_dim": 0, "value_head_dim": -1}, "rope_head_dim=0, value_head_dim=-1"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"window": 0}, "window=0"),
        ({"rope": RoPE(head_dim=16)}, "rope_head_dim=8 must equal .* head_dim=16"),
    ],
)
def test_sizes_that_do_not_fit_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        LatentAttention(**SIZES | wrong)


KINDS = {
    "v2": (DeepseekV2Config, v2.DeepseekV2Attention, v2.DeepseekV2RotaryEmbedding),
    "v3": (DeepseekV3Config, v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding),
}
YARN = {"factor": 40.0, "original_max_position_embeddings": 16, "mscale": 1.0}


def halves(weight: Tensor, *, heads: int, still: int) -> Tensor:
    """Rows sorted so that what were pairs of neighbours among the last of a head are halves."""
    rows = weight.unflatten(0, (heads, -1))
    kept, turning = rows[:, :still], rows[:, still:]
    return torch.cat([kept, turning[:, 0::2], turning[:, 1::2]], dim=1).flatten(0, 1)


def theirs(version: str, query_rank: int | None, *, yarn: bool) -> tuple[nn.Module, nn.Module]:
    """DeepSeek's attention and its rotary embedding, small."""
    Config, attention, rotary = KINDS[version]
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
    torch.manual_seed(2)
    part = attention(config, layer_idx=0).eval()
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.3)
    return part, rotary(config)


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


@pytest.mark.parametrize("yarn", [False, True])
@pytest.mark.parametrize("query_rank", [None, 10])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_equals_transformers_with_its_weights_forward_and_back(version, query_rank, yarn):
    reference, rotary = theirs(version, query_rank, yarn=yarn)
    scaling = YaRN(factor=40.0, original_seq_len=16, amplitude=1.0) if yarn else None
    scale = yarn_scale(head_dim=NOPE, rope_head_dim=ROPE, factor=40.0) if yarn else None
    ours = LatentAttention(
        hidden_dim=HIDDEN,
        head_dim=NOPE,
        value_head_dim=VALUE,
        kv_rank=KV_RANK,
        query_rank=query_rank,
        num_heads=HEADS,
        scale=scale,
        rope=RoPE(head_dim=ROPE, scaling=scaling),
        norm=partial(RMSNorm, eps=1e-6),
    )
    ours.load_state_dict(dict(ported(*named) for named in reference.state_dict().items()))
    x = torch.randn(2, SEQ, HIDDEN, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    future = torch.full((SEQ, SEQ), -torch.inf).triu(1)[None, None]
    expected, _ = reference(
        x,
        position_embeddings=rotary(x, torch.arange(SEQ)[None]),
        attention_mask=future,
    )
    torch.testing.assert_close(ours(y), expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    ours(y).square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad, atol=1e-4, rtol=1e-4)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        name, gradient = ported(name, parameter.grad)
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)
