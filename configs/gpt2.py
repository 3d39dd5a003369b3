"""GPT-2 in four sizes (Radford et al., 2019): learned positions, LayerNorm, GELU, biases, tied.

The text is `base`'s, and the tokenizer is trained on it, with up to GPT-2's 50,257 tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fiddle as fdl

from fidgpt.configs.activations import activate
from fidgpt.configs.hub import QKV, Family, in_layers, joined, keys, transposed
from fidgpt.configs.small import base
from fidgpt.fiddlers import untie_embeddings, use_layer_norm, use_learned_positions
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import find
from fidgpt.model import GELU, MLP, Attention
from fidgpt.train import Trainer


def gpt2(
    *,
    hidden_dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    ffn_dim: int | None = None,
    vocab_size: int = 50_257,
    seq_len: int = 1024,
    eps: float = 1e-5,
    activation: str = "gelu_new",
    tied: bool = True,
    scaled: bool = True,
    scaled_by_layer: bool = False,
) -> fdl.Config[Trainer]:
    """A decoder like GPT-2, by default the smallest; `ffn_dim` defaults to 4 * hidden_dim.

    If `scaled`, scores are divided by the square root of the head size; if `scaled_by_layer`, also
    by the number of their layer, counted from 1 (Karamcheti et al., 2021, Mistral).

    Raises:
      ValueError: the activation is unknown.
    """
    cfg = base()
    cfg.model.hidden_dim, cfg.model.num_layers = hidden_dim, num_layers
    cfg.vocab_size, cfg.seq_len = vocab_size, seq_len
    cfg.optimizer.lr = 6e-4
    use_learned_positions(cfg)
    use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)
    for part in find(cfg, Attention, GELU, MLP):
        part.bias = True
    cfg.model.blocks[0].attention.head_dim = hidden_dim // num_heads
    if ffn_dim not in (None, 4 * hidden_dim):
        cfg.model.blocks[0].mlp.ffn_dim = ffn_dim
    if not tied:
        untie_embeddings(cfg)
    scale = (hidden_dim // num_heads) ** -0.5 if scaled else 1.0
    if scaled_by_layer:
        _scale_scores(cfg, [scale / (i + 1) for i in range(num_layers)])
    elif not scaled:
        _scale_scores(cfg, [scale])
    return cfg


def _scale_scores(cfg: fdl.Config[Trainer], scales: Sequence[float]) -> None:
    """Multiply scores by these factors, a pattern that repeats over the depth."""
    cfg.model.blocks = repeated(cfg.model.blocks, len(scales))
    for block, scale in zip(cfg.model.blocks, scales, strict=True):
        block.attention.scale = scale


def _is_scaled(model: Any) -> bool:
    first = model.blocks[0].attention
    return math.isclose(first.scale, first.head_dim**-0.5)


def _is_scaled_by_layer(model: Any) -> bool:
    scales = [block.attention.scale for block in model.blocks]
    return len(scales) > 1 and math.isclose(scales[1] * 2, scales[0])


_LAYER = "transformer.h.*"
SIZES: Mapping[str, str] = {
    "hidden_dim": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "seq_len": "n_positions",
    "ffn_dim": "n_inner",
    "eps": "layer_norm_epsilon",
    "activation": "activation_function",
}
ENDS: Mapping[str, str] = {
    "embedding": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "unembedding": "lm_head",
}
NAMES: Mapping[str, str] = {
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_LAYERS = in_layers(_LAYER, NAMES) | joined(QKV, f"{_LAYER}.attn.c_attn", of=3, dim=-1)
HUB = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    config=gpt2,
    settings=keys("vocab_size tied", **SIZES)
    | {"scaled": "scale_attn_weights", "scaled_by_layer": "scale_attn_by_inverse_layer_idx"},
    tensors={**ENDS, **transposed(_LAYERS)},
    fixed={"add_cross_attention": (False,)},
    readings={"scaled": _is_scaled, "scaled_by_layer": _is_scaled_by_layer},
    constants={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ignored=(f"{_LAYER}.attn.bias", f"{_LAYER}.attn.masked_bias"),  # masks in old files
)
GPT_SW3 = replace(HUB, model_type="gpt-sw3")


def gpt2_124m() -> fdl.Config[Trainer]:
    """The smallest, 124 million parameters."""
    return gpt2(hidden_dim=768, num_layers=12, num_heads=12)


def gpt2_355m() -> fdl.Config[Trainer]:
    """Medium, 355 million parameters."""
    return gpt2(hidden_dim=1024, num_layers=24, num_heads=16)


def gpt2_774m() -> fdl.Config[Trainer]:
    """Large, 774 million parameters."""
    return gpt2(hidden_dim=1280, num_layers=36, num_heads=20)


def gpt2_1558m() -> fdl.Config[Trainer]:
    """XL, 1,558 million parameters."""
    return gpt2(hidden_dim=1600, num_layers=48, num_heads=25)
