"""Qwen3-Next (Qwen Team, 2025): three gated delta nets per attention with output gates."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs import mixtures, qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import EXPERTS, LAYER, QK_NORMS, Tensors, joined
from fidgpt.configs.hybrids import THREE_TO_ONE, by_layer, periodic_kinds, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR
from fidgpt.fiddlers import use_offset_norm
from fidgpt.graph import find
from fidgpt.model import Attention, GatedDeltaNet, OffsetRMSNorm, OutputGate, RMSNorm
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer


@variant_of(decoder, num_kv_heads=2, head_dim=256, rotary_share=0.25, eps=1e-6)
def qwen3_next(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    eps: float,
    attention_bias: bool,
    expert_ffn_dim: int = 512,
    shared_ffn_dim: int = 512,
    num_experts: int = 512,
    top_k: int = 10,
    normalize: bool = True,
    every: int = 1,
    dense_layers: Sequence[int] = (),
    mixers: Sequence[str] = THREE_TO_ONE,
    delta_heads: int = 32,
    delta_key_heads: int = 16,
    delta_head_dim: int = 128,
    delta_value_dim: int = 128,
    filter_size: int = 4,
) -> None:
    """A decoder of gated delta nets, gated attention and mixtures with a gated shared expert."""
    use_offset_norm(cfg, eps=eps)
    for attention in find(cfg.model, Attention):
        for name in ("query_norm", "key_norm"):
            norm = fdl.ArgFactory(OffsetRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
            setattr(attention, name, norm)
        attention.output_gate = fdl.Partial(OutputGate)
        if attention_bias:
            attention.output_gate.bias = True
    use_mixers(
        cfg,
        mixers,
        GatedDeltaNet,
        num_heads=delta_heads,
        num_key_heads=delta_key_heads,
        head_dim=delta_head_dim,
        value_head_dim=delta_value_dim,
        filter_size=filter_size,
        norm=fdl.Partial(RMSNorm, eps=eps),
    )
    if num_experts:
        sizes = (expert_ffn_dim, num_experts, top_k, normalize)
        qwen3_moe.mix_layers(cfg, num_layers, every, dense_layers, *sizes)
        mixtures.share_gated(cfg, shared_ffn_dim)


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the forms of tensors; tensors of delta nets have a group for each key head."""
    keys, size = settings["delta_key_heads"], settings["delta_head_dim"]
    values = settings["delta_heads"] // keys * settings["delta_value_dim"]
    rows = (keys * size, keys * size, keys * values)
    delta = f"{LAYER}.linear_attn"
    inputs = ("query", "key", "value", "gate")
    filters = ("query_filter.weight", "key_filter.weight", "value_filter.weight")
    linear = {
        **joined(inputs, f"{delta}.in_proj_qkvz", of=(size, size, values, values), groups=keys),
        **joined(("beta", "timestep"), f"{delta}.in_proj_ba", of=2, groups=keys),
        **joined(filters, f"{delta}.conv1d.weight", of=rows),
        "decay.log_rate": f"{delta}.A_log",
        "decay.bias": f"{delta}.dt_bias",
        "norm": f"{delta}.norm",
        "out": f"{delta}.out_proj",
    }
    heads = settings["num_heads"]
    gated = ("query", "output_gate.project")
    full = joined(gated, f"{LAYER}.self_attn.q_proj", of=2, groups=heads)
    return by_layer(settings["mixers"], settings["num_layers"], {LINEAR: linear, FULL: full})


DELTA: Mapping[str, str] = {
    "delta_heads": "linear_num_value_heads",
    "delta_key_heads": "linear_num_key_heads",
    "delta_head_dim": "linear_key_head_dim",
    "delta_value_dim": "linear_value_head_dim",
    "filter_size": "linear_conv_kernel_dim",
}
HUB = family(
    "qwen3_next",
    qwen3_next,
    "rotary_share attention_bias shared_ffn_dim mixers",
    settings={**qwen3_moe.MIXTURE, **DELTA},
    tensors=lambda settings: {**QK_NORMS, **EXPERTS, **mixtures.GATED_SHARED, **_tensors(settings)},
    defaults={"layer_types": partial(periodic_kinds, key="full_attention_interval")},
    known="full_attention_interval",
)


def qwen3_next_80b_a3b() -> fdl.Config[Trainer]:
    """80 billion parameters, 3.9 billion per token."""
    return qwen3_next(
        hidden_dim=2048,
        num_layers=48,
        num_heads=16,
        ffn_dim=5120,
        vocab_size=151_936,
        seq_len=262_144,
        theta=1e7,
    )
