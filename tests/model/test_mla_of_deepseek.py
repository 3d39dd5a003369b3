"""Latent attention against transformers' DeepSeek-V2 and V3, with their weights."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from fidgpt.model import RMSNorm, RoPE, YaRN
from fidgpt.model.mla import LatentAttention, yarn_scale

HIDDEN, HEADS, NOPE, ROPE, VALUE, KV_RANK, SEQ = 48, 3, 16, 8, 12, 20, 14
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
