"""Command R (Cohere, 2024): parallel blocks of one norm, adjacent rotary pairs, scaled logits."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import SETTINGS, TENSORS, Family, Paired, Tensors
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_layer_norm, use_parallel_block
from fidgpt.graph import find
from fidgpt.train import Trainer


@variant_of(decoder, tied=True, vocab_size=256_000, seq_len=8192)
def cohere(cfg: fdl.Config[Trainer], *, eps: float, logit_scale: float = 0.0625) -> None:
    """A decoder with LayerNorm without biases, one for both branches of a parallel block."""
    use_layer_norm(cfg, eps=eps)
    use_parallel_block(cfg)
    for norm in find(cfg.model, nn.LayerNorm):
        norm.bias = False
    cfg.model.blocks[0].mlp_norm = None
    cfg.model.unembedding.scale = logit_scale


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors in hub files, where adjacent rotary rows are paired."""
    head_dim = settings["head_dim"] or settings["hidden_dim"] // settings["num_heads"]
    query, key = (f"model.layers.*.self_attn.{name}_proj" for name in "qk")
    return {
        **TENSORS,
        "blocks.*.attention.query": Paired(query, 0, head_dim),
        "blocks.*.attention.key": Paired(key, 0, head_dim),
    }


HUB = Family(
    model_type="cohere",
    architecture="CohereForCausalLM",
    config=cohere,
    settings={**SETTINGS, "attention_bias": "attention_bias"}
    | {"eps": "layer_norm_eps", "logit_scale": "logit_scale"},
    tensors=_tensors,
    fixed={"hidden_act": ("silu",), "use_qk_norm": (False,)},
    defaults={"rope_theta": 500_000.0},
)


_command_r = partial(cohere, hidden_dim=8192, num_layers=40, num_heads=64, seq_len=131_072)


def command_r() -> fdl.Config[Trainer]:
    """35 billion parameters."""
    return _command_r(ffn_dim=22_528, theta=8e6)


def command_r_08_2024() -> fdl.Config[Trainer]:
    """32 billion parameters, with grouped-query attention."""
    return _command_r(num_kv_heads=8, ffn_dim=24_576, theta=4e6)
