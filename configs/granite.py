"""Granite 3 (Granite Team, IBM, 2024): Llama with four multipliers, as in maximal update."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, in_layers
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_sandwich_norm
from fidgpt.train import Trainer


@variant_of(decoder, eps=1e-6)
def granite(
    cfg: fdl.Config[Trainer],
    *,
    embedding_scale: float = 1.0,
    score_scale: float = 1.0,
    branch_scale: float = 1.0,
    logit_divisor: float = 1.0,
) -> None:
    """A decoder with scaled embedding, scores and branches, and logits that are divided."""
    cfg.model.embedding.scale = embedding_scale
    for block in cfg.model.blocks:
        block.attention.scale, block.branch_scale = score_scale, branch_scale
    cfg.model.unembedding.scale = 1.0 / logit_divisor


HUB = family(
    "granite",
    granite,
    "attention_bias mlp_bias embedding_scale",
    settings={"logit_divisor": "logits_scaling", "score_scale": "attention_multiplier"}
    | {"branch_scale": "residual_multiplier"},
    readings={"logit_divisor": lambda model: round(1.0 / model.unembedding.scale, 12)},
)


@variant_of(granite)
def hyperclovax(
    cfg: fdl.Config[Trainer], *, sandwich: bool = True, logit_scale: float = 1.0
) -> None:
    """Granite with logits that are multiplied, and norms after the branches too, if `sandwich`."""
    cfg.model.unembedding.scale = logit_scale
    if sandwich:
        use_sandwich_norm(cfg)


HYPERCLOVAX = HUB.near(
    "hyperclovax",
    hyperclovax,
    architecture="HyperCLOVAXForCausalLM",
    settings={"logit_divisor": ..., "sandwich": "use_post_norm", "logit_scale": "logits_scaling"},
    tensors=in_layers(LAYER, {"attention_out_norm": "post_norm1", "mlp_out_norm": "post_norm2"}),
    defaults={"attention_multiplier": lambda hub: _head_dim(hub) ** -0.5},
    whole_heads=True,
)


def _head_dim(hub: Mapping[str, Any]) -> int:
    return hub.get("head_dim") or hub["hidden_size"] // hub["num_attention_heads"]


_granite = partial(
    granite,
    num_layers=40,
    num_heads=32,
    num_kv_heads=8,
    vocab_size=49_155,
    seq_len=4096,
    eps=1e-5,
    tied=True,
    embedding_scale=12.0,
    branch_scale=0.22,
)


def granite3_2b() -> fdl.Config[Trainer]:
    """2.5 billion parameters."""
    return _granite(hidden_dim=2048, ffn_dim=8192, score_scale=1 / 64, logit_divisor=8.0)


def granite3_8b() -> fdl.Config[Trainer]:
    """8.2 billion parameters."""
    return _granite(hidden_dim=4096, ffn_dim=12_800, score_scale=1 / 128, logit_divisor=16.0)
