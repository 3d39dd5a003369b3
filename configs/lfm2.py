"""LFM2 (Liquid AI, 2025): short convolutions between gates, and attention in some layers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import SETTINGS, TENSORS, Family, Form, in_layers, joined
from fidgpt.configs.hybrids import READINGS, by_layer, kinds_of, of_mixer, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL
from fidgpt.fiddlers import use_qk_norm
from fidgpt.model import ShortConvolution
from fidgpt.train import Trainer

CONVOLUTION = "conv"


@variant_of(decoder, tied=True, theta=1e6)
def lfm2(
    cfg: fdl.Config[Trainer],
    *,
    ffn_dim: int,
    eps: float,
    mixers: Sequence[str],
    filter_size: int = 3,
    filter_bias: bool = False,
    adjusts: bool = True,
    multiplier: float | None = 1.0,
    multiple_of: int = 256,
) -> None:
    """A decoder of short convolutions, with QK-norm in layers with attention.

    With `adjusts`, MLPs are two thirds as wide as `ffn_dim` times `multiplier`, rounded up.
    """
    if adjusts:
        ffn_dim = 2 * ffn_dim // 3
        if multiplier is not None:
            ffn_dim = -(-int(multiplier * ffn_dim) // multiple_of) * multiple_of
        cfg.model.blocks[0].mlp.ffn_dim = ffn_dim
    use_qk_norm(cfg, eps=eps)
    sizes = {"filter_size": filter_size, "bias": filter_bias or None}
    use_mixers(cfg, mixers, ShortConvolution, CONVOLUTION, **sizes)


_LAYER = "model.layers.*"
_MLP = {"gate": "w1", "up": "w3", "down": "w2"}


def _tensors(settings: Mapping[str, Any]) -> dict[str, str | Form]:
    inputs = ("in_gate", "out_gate", "value")
    short = {
        **joined(inputs, f"{_LAYER}.conv.in_proj", of=3),
        "filter": f"{_LAYER}.conv.conv",
        "out": f"{_LAYER}.conv.out_proj",
    }
    full = {
        "out": f"{_LAYER}.self_attn.out_proj",
        "query_norm": f"{_LAYER}.self_attn.q_layernorm",
        "key_norm": f"{_LAYER}.self_attn.k_layernorm",
    }
    mlp = {f"mlp.{path}": f"feed_forward.{name}" for path, name in _MLP.items()}
    norms = {"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"}
    kinds = {CONVOLUTION: short, FULL: full}
    return {
        **TENSORS,
        **in_layers(_LAYER, mlp | norms),
        "norm": "model.embedding_norm",
        **by_layer(settings["mixers"], settings["num_layers"], kinds),
    }


def _kinds(found: Mapping[str, Any]) -> list[str]:
    layers = range(found["num_hidden_layers"])
    chosen = found.get("full_attn_idxs")
    return [FULL if chosen is None or i in chosen else CONVOLUTION for i in layers]


HUB = Family(
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    config=lfm2,
    settings={name: key for name, key in SETTINGS.items() if name != "head_dim"}
    | {
        "eps": "norm_eps",
        "mixers": "layer_types",
        "filter_size": "conv_L_cache",
        "filter_bias": "conv_bias",
        "adjusts": "block_auto_adjust_ff_dim",
        "multiplier": "block_ffn_dim_multiplier",
        "multiple_of": "block_multiple_of",
    },
    tensors=_tensors,
    defaults={
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "layer_types": _kinds,
    },
    readings={
        **READINGS,
        "mixers": lambda model: kinds_of(model, CONVOLUTION),
        "filter_size": of_mixer(ShortConvolution, lambda mixer: mixer.filter.kernel_size[0]),
        "filter_bias": of_mixer(ShortConvolution, lambda mixer: mixer.out.bias is not None),
        "adjusts": lambda _: False,
        "multiplier": lambda _: 1.0,
        "multiple_of": lambda _: 256,
    },
    aliases={"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
    known=(
        *("full_attn_idxs", "rms_norm_eps", "block_norm_eps", "block_dim", "num_heads", "conv_dim"),
        *("block_use_swiglu", "block_use_xavier_init", "conv_dim_out", "conv_use_xavier_init"),
    ),
)

_FULL_AT = (2, 5, 8, 10, 12, 14)
_lfm2 = partial(
    lfm2,
    num_layers=16,
    num_kv_heads=8,
    vocab_size=65_536,
    seq_len=128_000,
    mixers=tuple(FULL if i in _FULL_AT else CONVOLUTION for i in range(16)),
)


def lfm2_350m() -> fdl.Config[Trainer]:
    """354 million parameters, tied embeddings."""
    return _lfm2(hidden_dim=1024, num_heads=16, ffn_dim=6656)


def lfm2_700m() -> fdl.Config[Trainer]:
    """742 million parameters, tied embeddings."""
    return _lfm2(hidden_dim=1536, num_heads=24, ffn_dim=10_240)


def lfm2_1_2b() -> fdl.Config[Trainer]:
    """1.2 billion parameters, tied embeddings."""
    return _lfm2(hidden_dim=2048, num_heads=32, ffn_dim=12_288)
