"""Llama 4 (Meta, 2025): RoPE in chunks of the text, and weights on the inputs of experts."""

from collections.abc import Callable, Sequence
from typing import Any

import fiddle as fdl

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import (
    EXPERT_ROWS,
    LAYER,
    TENSORS,
    Transposed,
    joined,
    mlp_as,
    shared_as,
    transposed,
    with_adjacent_pairs,
)
from fidgpt.configs.readings import each_attention
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, shortest_period
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import find, swapped
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer

CHUNKED = "chunked_attention"  # a kind of layers in config.json


@variant_of(decoder, theta=500_000.0, num_kv_heads=8, head_dim=128)
def llama4(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_layers: int,
    expert_ffn_dim: int,
    num_experts: int = 16,
    top_k: int = 1,
    moe_layers: Sequence[int] | None = None,
    interleave_moe_layer_step: int | None = 1,
    kinds: Sequence[str] | None = None,
    no_rope_layers: Sequence[int] = (),
    nope_every: int = 4,
    attention_chunk_size: int = 8192,
    qk_norm: bool = True,
    attn_temperature_tuning: bool = True,
    attn_scale: float = 0.1,
    floor_scale: int = 8192,
) -> None:
    """A decoder with RoPE in chunks of the text, and neither in every `nope_every`-th layer.

    Layers with RoPE normalize queries and keys after it if `qk_norm`; in those without, attention
    gets sharper with the position. The weights of experts are on their inputs.

    Args:
      cfg: the graph to change.
      eps: eps of the norms of queries and keys.
      num_layers: number of layers.
      expert_ffn_dim: width of an expert, and of the one for all tokens.
      num_experts: experts per layer.
      top_k: experts per token.
      moe_layers: layers with experts; defaults to each `interleave_moe_layer_step`-th one.
      interleave_moe_layer_step: see above.
      kinds: layers whose attention is in chunks, by their names in config.json; defaults to those
        with RoPE.
      no_rope_layers: 1 for each layer with RoPE, else 0; defaults to all but every `nope_every`-th.
      nope_every: see above.
      attention_chunk_size: tokens of a chunk.
      qk_norm: see above.
      attn_temperature_tuning: whether attention gets sharper.
      attn_scale: strength of the sharpening; see `Tempered`.
      floor_scale: positions of one factor of it.

    Raises:
      ValueError: a kind is unknown.
    """
    roped = no_rope_layers or [int((i + 1) % nope_every != 0) for i in range(num_layers)]
    kinds = kinds or [CHUNKED if has_rope else FULL for has_rope in roped]
    if unknown := {*kinds} - {CHUNKED, FULL}:
        raise ValueError(f"layer_types has {', '.join(sorted(unknown))}; use {CHUNKED} and {FULL}.")
    pattern = shortest_period([*zip(roped, kinds, strict=True)])
    cfg.model.blocks = repeated(cfg.model.blocks, len(pattern))
    for block, (has_rope, kind) in zip(cfg.model.blocks, pattern, strict=True):
        attention = block.attention
        if kind == CHUNKED:
            chunk = fdl.Config(lm.Chunk, attention_chunk_size)
            attention.mask = fdl.Config(lm.And, (lm.causal, chunk))
        if has_rope and qk_norm:
            attention = block.attention = swapped(attention, lm.LateNormAttention)
            for name in ("query_norm", "key_norm"):
                norm = fdl.ArgFactory(lm.WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
                setattr(attention, name, norm)
        if not has_rope:
            sharpening = {"strength": attn_scale, "span": floor_scale, "offset": 1}
            tempered = fdl.Config(lm.Tempered, rotation=None, **sharpening)
            attention.rope = tempered if attn_temperature_tuning else None
    step = interleave_moe_layer_step or 1
    mixed = range(step - 1, num_layers, step) if moe_layers is None else moe_layers
    dense = {*range(num_layers)}.difference(mixed)
    sizes = (expert_ffn_dim, num_experts, top_k, False)
    qwen3_moe.mix_layers(cfg, num_layers, 1, sorted(dense), *sizes)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_shared_expert(cfg)
    for moe in find(cfg.model, lm.MoE):
        moe.dispatch = lm.weighted_inputs


def _kinds(model: Any) -> list[str]:
    masks = each_attention(model, "mask")
    return [CHUNKED if isinstance(mask, lm.And) else FULL for mask in masks]


def _chunk(model: Any) -> int:
    masks: list[Any] = [m for m in each_attention(model, "mask") if isinstance(m, lm.And)]
    return next(iter(masks)).masks[1].size


def _tempered(name: str) -> Callable[[Any], Any]:
    """Return a reading of the sharpening of the first layer that has it."""
    return lambda model: next(
        getattr(rope, name)
        for rope in each_attention(model, "rope")
        if isinstance(rope, lm.Tempered)
    )


_FEED_FORWARD = f"{LAYER}.feed_forward"
_TENSORS = {
    **{**TENSORS, **mlp_as("feed_forward"), **shared_as("feed_forward.shared_expert")},
    **transposed(joined(EXPERT_ROWS, f"{_FEED_FORWARD}.experts.gate_up_proj", of=2, dim=-1)),
    "blocks.*.mlp.experts.down": Transposed(f"{_FEED_FORWARD}.experts.down_proj"),
    "blocks.*.mlp.router": f"{_FEED_FORWARD}.router",
}
LLAMA4 = family(
    "llama4_text",
    llama4,
    "attention_bias top_k qk_norm no_rope_layers nope_every kinds moe_layers "
    "interleave_moe_layer_step attention_chunk_size attn_temperature_tuning attn_scale floor_scale",
    architecture="Llama4ForCausalLM",
    settings={"ffn_dim": "intermediate_size_mlp", "expert_ffn_dim": "intermediate_size"}
    | {"num_experts": "num_local_experts"},
    tensors=with_adjacent_pairs(_TENSORS),
    readings={"kinds": _kinds, "attention_chunk_size": _chunk}
    | {"attn_temperature_tuning": lambda model: None not in each_attention(model, "rope")}
    | {"attn_scale": _tempered("strength"), "floor_scale": _tempered("span")},
)
