"""What Gemma 2 and Gemma 3 have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs import hub
from fidgpt.configs.decoder import decoder, look_back
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_geglu, use_sandwich_norm
from fidgpt.graph import find, swap_all
from fidgpt.model import Attention, OffsetRMSNorm, RMSNorm, root_of_width
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer

# Those of both models of 27 billion parameters.
NARROW_HEADS: Mapping[str, Any] = {"num_heads": 32, "num_kv_heads": 16, "head_dim": 128}
SLIDING, FULL = "sliding_attention", "full_attention"

SETTINGS: Mapping[str, str] = {
    **hub.SETTINGS,
    "query_scalar": "query_pre_attn_scalar",
    "window": "sliding_window",
    "layer_types": "layer_types",
}

_LAYER = "model.layers.*"
TENSORS: Mapping[str, str] = {
    **hub.TENSORS,
    "blocks.*.attention_out_norm": f"{_LAYER}.post_attention_layernorm",
    "blocks.*.mlp_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blocks.*.mlp_out_norm": f"{_LAYER}.post_feedforward_layernorm",
}

FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "use_bidirectional_attention": (False, None),
}


READINGS: Mapping[str, Callable[[Any], Any]] = {
    "query_scalar": lambda model: round(model.blocks[0].attention.scale ** -2)
}


@variant_of(decoder, num_heads=8, num_kv_heads=4, head_dim=256, eps=1e-6, tied=True)
def gemma(
    cfg: fdl.Config[Trainer],
    *,
    layer_types: Sequence[str],
    window: int | None = 4096,
    query_scalar: int = 256,
) -> None:
    """A decoder with GeGLU, norms around each branch that count from one, and scaled tokens.

    Scores are divided by the square root of `query_scalar`.
    """
    look_back(cfg, windows_of(layer_types, window))
    use_geglu(cfg)
    use_sandwich_norm(cfg)
    swap_all(cfg.model, RMSNorm, by=OffsetRMSNorm)
    cfg.model.embedding.scale = fdl.Config(root_of_width, hidden_dim=HiddenDim.new())
    for attention in find(cfg.model, Attention):
        attention.scale = query_scalar**-0.5


def windows_of(layer_types: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer of a pattern, by the words of config.json for them.

    Raises:
      ValueError: one is another word.
    """
    if unknown := sorted({*layer_types} - {SLIDING, FULL}):
        raise ValueError(f"layer_types has {', '.join(unknown)}: use {SLIDING} and {FULL}.")
    return [window if kind == SLIDING else None for kind in layer_types]
