"""Falcon (Almazrouei et al., 2023, arXiv:2311.16867): parallel blocks with few keys and values."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import NEOX_MLP, QKV, Tensors, four_widths, in_layers, joined
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_layer_norm, use_parallel_block
from fidgpt.tags import NumKVHeads
from fidgpt.train import Trainer


@variant_of(decoder, vocab_size=65_024, seq_len=2048, tied=True)
def falcon(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    grouped: bool = False,
    num_norms: int = 1,
    activation: str = "gelu",
) -> None:
    """A decoder with parallel blocks, LayerNorm and plain MLPs.

    Unless `grouped`, all queries share one key and value, whatever `num_kv_heads` is. Blocks have a
    norm for both branches, or two norms.
    """
    use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)
    use_parallel_block(cfg)
    (block,) = cfg.model.blocks
    if not grouped:
        block.attention.num_kv_heads = NumKVHeads.new(1)
    if num_norms == 1:
        block.mlp_norm = None


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; one joins queries, keys and values of each group."""
    heads, layer = settings["num_heads"], "transformer.h.*"
    groups = (settings["num_kv_heads"] or heads) if settings["grouped"] else 1
    norms = ("ln_attn", "ln_mlp") if settings["num_norms"] == 2 else ("input_layernorm", "")
    joint, shares = f"{layer}.self_attention.query_key_value", (heads // groups, 1, 1)
    return {
        "embedding": "transformer.word_embeddings",
        **joined(QKV, joint, of=shares, groups=groups),
        **in_layers(layer, {"attention.out": "self_attention.dense", **NEOX_MLP}),
        **in_layers(layer, {"attention_norm": norms[0], "mlp_norm": norms[1]}),
        "norm": "transformer.ln_f",
        "unembedding": "lm_head",
    }


def _num_norms(model: Any) -> int:
    return 1 if model.blocks[0].mlp_norm is None else 2


def _is_grouped(model: Any) -> bool:
    return _num_norms(model) == 2 or model.blocks[0].attention.num_kv_heads > 1


HUB = family(
    "falcon",
    falcon,
    settings={"head_dim": ..., "ffn_dim": "ffn_hidden_size", "eps": "layer_norm_epsilon"}
    | {"activation": "activation", "num_kv_heads": "num_kv_heads"}
    | {"attention_bias": "bias", "mlp_bias": "bias"}
    | {"grouped": "new_decoder_architecture", "num_norms": "num_ln_in_parallel_attn"},
    tensors=_tensors,
    fixed={"hidden_act": ..., "alibi": (False,), "multi_query": (True,), "parallel_attn": (True,)},
    defaults={
        "ffn_hidden_size": four_widths,
        "num_ln_in_parallel_attn": lambda hub: 2 if hub.get("new_decoder_architecture") else 1,
    },
    readings={"grouped": _is_grouped, "num_norms": _num_norms},
)


_grouped = partial(falcon, num_kv_heads=8, grouped=True, num_norms=2)


def falcon_7b() -> fdl.Config[Trainer]:
    """6.9 billion parameters, one key for all queries."""
    return falcon(hidden_dim=4544, num_layers=32, num_heads=71, ffn_dim=18_176)


def falcon_40b() -> fdl.Config[Trainer]:
    """41 billion parameters, with grouped-query attention and two norms per block."""
    return _grouped(hidden_dim=8192, num_layers=60, num_heads=128, ffn_dim=32_768)
