"""Phi-3 (Abdin et al., 2024, arXiv:2404.14219) and Phi-4: Llama with joined projections."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import GATED, QKV, Tensors, joined
from fidgpt.train import Trainer


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; there are fewer rows of keys and values than of queries."""
    heads, layer = settings["num_heads"], "model.layers.*"
    kv_heads = settings["num_kv_heads"] or heads
    return {
        **joined(QKV, f"{layer}.self_attn.qkv_proj", of=(heads, kv_heads, kv_heads)),
        **joined(GATED, f"{layer}.mlp.gate_up_proj", of=2),
    }


# Of published files, which transformers' class does not read.
_KNOWN = ("attention_bias", "mlp_bias", "lm_head_bias", "full_attn_mod", "interpolate_factor")
HUB = family("phi3", None, "rotary_share window", tensors=_tensors, known=_KNOWN)


_phi3 = partial(decoder, vocab_size=32_064, seq_len=4096, window=2047)
_medium = partial(
    _phi3, hidden_dim=5120, num_layers=40, num_heads=40, num_kv_heads=10, ffn_dim=17_920
)


def phi3_3_8b() -> fdl.Config[Trainer]:
    """3.8 billion parameters: Phi-3 mini."""
    return _phi3(hidden_dim=3072, num_layers=32, num_heads=32, ffn_dim=8192)


def phi3_14b() -> fdl.Config[Trainer]:
    """14 billion parameters, with grouped-query attention: Phi-3 medium."""
    return _medium()


def phi4_14b() -> fdl.Config[Trainer]:
    """15 billion parameters: Phi-3 medium with a larger vocabulary and full attention."""
    return _medium(vocab_size=100_352, seq_len=16_384, theta=250_000.0, window=None)
