"""Llama 4 (Meta, 2025): RoPE in chunks of the text, and weights on the inputs of experts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import (
    LAYER,
    TENSORS,
    Joined,
    Transposed,
    in_layers,
    shared_as,
    with_adjacent_pairs,
)
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, shortest_period
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import find, swapped
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer

CHUNKED = "chunked_attention"  # a kind of layers in config.json


@variant_of(decoder, theta=500_000.0)
def llama4(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_layers: int,
    expert_ffn_dim: int,
    num_experts: int = 16,
    top_k: int = 1,
    mixed_layers: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    rotated: Sequence[int] = (),
    bare: int = 4,
    chunk: int = 8192,
    qk_norm: bool = True,
    sharpens: bool = True,
    strength: float = 0.1,
    span: int = 8192,
) -> None:
    """A decoder with RoPE in chunks of the text, and neither in every `bare`-th layer.

    Layers with RoPE normalize queries and keys after it if `qk_norm`; in those without, attention
    gets sharper with the position if `sharpens`. The weights of experts are on their inputs.

    Args:
      cfg: the graph to change.
      eps: eps of the norms of queries and keys.
      num_layers: number of layers.
      expert_ffn_dim: width of an expert, and of the one for all tokens.
      num_experts: experts per layer.
      top_k: experts per token.
      mixed_layers: layers with experts; None for all.
      kinds: layers whose attention is in chunks, by their names in config.json; defaults to those
        with RoPE.
      rotated: 1 for each layer with RoPE, else 0; defaults to all but every `bare`-th.
      bare: see `rotated`.
      chunk: tokens of a chunk.
      qk_norm: see above.
      sharpens: see above.
      strength: of the sharpening; see `Tempered`.
      span: positions of one factor of it.

    Raises:
      ValueError: a kind is unknown.
    """
    rotated = rotated or [int((i + 1) % bare != 0) for i in range(num_layers)]
    kinds = kinds or [CHUNKED if is_rotated else FULL for is_rotated in rotated]
    if unknown := {*kinds} - {CHUNKED, FULL}:
        raise ValueError(f"layer_types has {', '.join(sorted(unknown))}; use {CHUNKED} and {FULL}.")
    pattern = shortest_period([*zip(rotated, kinds, strict=True)])
    cfg.model.blocks = repeated(cfg.model.blocks, len(pattern))
    for block, (is_rotated, kind) in zip(cfg.model.blocks, pattern, strict=True):
        attention = block.attention
        if kind == CHUNKED:
            attention.mask = fdl.Config(lm.And, (lm.causal, fdl.Config(lm.Chunk, chunk)))
        if is_rotated and qk_norm:
            attention = block.attention = swapped(attention, lm.LateNormAttention)
            for name in ("query_norm", "key_norm"):
                norm = fdl.ArgFactory(lm.WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
                setattr(attention, name, norm)
        if not is_rotated:
            attention.rope = None
        if not is_rotated and sharpens:
            attention.rope = fdl.Config(
                lm.Tempered, rotation=None, strength=strength, span=span, offset=1
            )
    dense = () if mixed_layers is None else {*range(num_layers)} - {*mixed_layers}
    sizes = (expert_ffn_dim, num_experts, top_k, False)
    qwen3_moe.mix_layers(cfg, num_layers, 1, sorted(dense), *sizes)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_shared_expert(cfg)
    for moe in find(cfg.model, lm.MoE):
        moe.dispatch = lm.weighted_inputs


def _ropes(model: Any) -> list[Any]:
    return [block.attention.rope for block in model.blocks]


def _chunk(model: Any) -> int:
    masks: list[Any] = [block.attention.mask for block in model.blocks]
    chunks: list[Any] = [mask.masks[1] for mask in masks if isinstance(mask, lm.And)]
    return next(iter(chunks)).size


def _tempered(name: str) -> Callable[[Any], Any]:
    return lambda model: next(
        getattr(rope, name) for rope in _ropes(model) if isinstance(rope, lm.Tempered)
    )


_FEED_FORWARD = f"{LAYER}.feed_forward"
_EXPERT_ROWS = f"{_FEED_FORWARD}.experts.gate_up_proj"
LLAMA4 = family(
    "llama4_text",
    llama4,
    "attention_bias top_k qk_norm",
    architecture="Llama4ForCausalLM",
    settings={"ffn_dim": "intermediate_size_mlp", "expert_ffn_dim": "intermediate_size"}
    | {"num_experts": "num_local_experts", "mixed_layers": "moe_layers", "kinds": "layer_types"}
    | {"rotated": "no_rope_layers", "bare": "no_rope_layer_interval"}
    | {"chunk": "attention_chunk_size", "sharpens": "attn_temperature_tuning"}
    | {"strength": "attn_scale", "span": "floor_scale"},
    tensors=with_adjacent_pairs(
        {
            **TENSORS,
            **shared_as("feed_forward.shared_expert"),
            **in_layers(
                _FEED_FORWARD,
                {f"mlp.{path}": f"{path}_proj" for path in ("gate", "up", "down")}
                | {"mlp.router": "router"},
            ),
            "blocks.*.mlp.experts.gate": Transposed(Joined(_EXPERT_ROWS, 0, 2)),
            "blocks.*.mlp.experts.up": Transposed(Joined(_EXPERT_ROWS, 1, 2)),
            "blocks.*.mlp.experts.down": Transposed(f"{_FEED_FORWARD}.experts.down_proj"),
        }
    ),
    defaults={"rope_theta": 500_000.0, "num_key_value_heads": 8, "head_dim": 128}
    | {"moe_layers": lambda hub: _every(hub, hub.get("interleave_moe_layer_step", 1))},
    readings={
        "kinds": lambda model: [
            CHUNKED if isinstance(block.attention.mask, lm.And) else FULL for block in model.blocks
        ],
        "rotated": lambda model: [int(isinstance(rope, lm.RoPE)) for rope in _ropes(model)],
        "bare": lambda _: 4,
        "chunk": _chunk,
        "qk_norm": lambda model: any(block.attention.query_norm for block in model.blocks),
        "sharpens": lambda model: any(isinstance(rope, lm.Tempered) for rope in _ropes(model)),
        "strength": _tempered("strength"),
        "span": _tempered("span"),
    },
    known=("interleave_moe_layer_step",),
)


def _every(hub: Mapping[str, Any], step: int) -> list[int]:
    return [*range(step - 1, hub["num_hidden_layers"], step)]
