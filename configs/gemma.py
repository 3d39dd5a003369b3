"""The common parts of Gemma 2 and Gemma 3."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, in_layers
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_geglu, use_sandwich_norm
from fidgpt.graph import find, swap_all
from fidgpt.model import Attention, OffsetRMSNorm, RMSNorm, root_of_width
from fidgpt.tags import HiddenDim, LogitCap
from fidgpt.train import Trainer

# The heads of both models with 27 billion parameters.
NARROW_HEADS: Mapping[str, Any] = {"num_heads": 32, "num_kv_heads": 16, "head_dim": 128}


@variant_of(decoder, num_heads=8, num_kv_heads=4, head_dim=256, eps=1e-6, tied=True, window=4096)
def gemma(
    cfg: fdl.Config[Trainer], *, query_scalar: int = 256, logit_cap: float | None = None
) -> None:
    """A decoder with GeGLU, sandwich norms with offset weights, and scaled token embeddings.

    Scores are divided by sqrt(query_scalar), and logits are capped at `logit_cap`.
    """
    use_geglu(cfg)
    use_sandwich_norm(cfg)
    swap_all(cfg.model, RMSNorm, by=OffsetRMSNorm)
    cfg.model.embedding.scale = fdl.Config(root_of_width, hidden_dim=HiddenDim.new())
    for attention in find(cfg.model, Attention):
        attention.scale = query_scalar**-0.5
    if logit_cap is not None:
        cfg.model.unembedding.softcap = LogitCap.new(logit_cap)


_NORMS = {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
# Makes a family near this one.
near_gemma = family(
    "gemma",
    gemma,
    "window layer_types attention_bias logit_cap",
    settings={"query_scalar": "query_pre_attn_scalar"},
    tensors=in_layers(LAYER, _NORMS),
    fixed={"hidden_act": ..., "hidden_activation": ("gelu_pytorch_tanh",)}
    | {"use_bidirectional_attention": (False, None)},
    readings={"query_scalar": lambda model: round(model.blocks[0].attention.scale ** -2)},
    whole_heads=True,
).near
