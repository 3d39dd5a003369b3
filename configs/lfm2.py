"""LFM2 (Liquid AI, 2025): short convolutions between gates, and attention in some layers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, Tensors, in_layers, joined, linears
from fidgpt.configs.hybrids import by_layer, use_mixers
from fidgpt.configs.readings import each_attention, kinds_of, of_attention
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, rotate_in_windows_by, shortest_period
from fidgpt.fiddlers import use_qk_norm, use_sandwich_norm
from fidgpt.fiddlers.patterns import repeated
from fidgpt.fiddlers.recurrent import put_mixer
from fidgpt.graph import find
from fidgpt.model import Attention, OutputGate, ShortConvolution
from fidgpt.tags import Window
from fidgpt.train import Trainer

CONVOLUTION = "conv"


@variant_of(decoder, tied=True, theta=1e6, num_kv_heads=8)
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


def mixer_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the forms of the tensors of mixers."""
    inputs, conv = ("in_gate", "out_gate", "value"), f"{LAYER}.conv"
    short = {**joined(inputs, f"{conv}.in_proj", of=3), "filter": f"{conv}.conv"}
    names = {"out": "out_proj", "query_norm": "q_layernorm", "key_norm": "k_layernorm"}
    full = {path: f"{LAYER}.self_attn.{name}" for path, name in names.items()}
    kinds = {CONVOLUTION: {**short, "out": f"{conv}.out_proj"}, FULL: full}
    return by_layer(settings["mixers"], settings["num_layers"], kinds)


def _kinds(hub: Mapping[str, Any]) -> list[str]:
    layers = range(hub["num_hidden_layers"])
    chosen = hub.get("full_attn_idxs")
    return [FULL if chosen is None or i in chosen else CONVOLUTION for i in layers]


_NAMES = {"mlp.gate": "feed_forward.w1", "mlp.up": "feed_forward.w3", "mlp.down": "feed_forward.w2"}
_NAMES |= {"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"}
# Makes a family near this one, whose MLPs are as wide as config.json says.
near_lfm2 = family(
    "lfm2",
    lfm2,
    "mixers",
    settings={"head_dim": ..., "eps": "norm_eps", "filter_size": "conv_L_cache"}
    | {"filter_bias": "conv_bias"},
    tensors={**in_layers(LAYER, _NAMES), "norm": "model.embedding_norm"},
    fixed={"hidden_act": ...},
    defaults={"layer_types": _kinds},
    readings={"mixers": lambda model: kinds_of(model, CONVOLUTION)},
    aliases={"tie_embedding": "tie_word_embeddings"},
).near
HUB = near_lfm2(
    "lfm2",
    settings={"adjusts": "block_auto_adjust_ff_dim", "multiplier": "block_ffn_dim_multiplier"}
    | {"multiple_of": "block_multiple_of"},
    tensors=mixer_tensors,
    readings={"adjusts": lambda _: False},
    aliases={"block_ff_dim": "intermediate_size"},
    known="full_attn_idxs rms_norm_eps block_norm_eps block_dim num_heads conv_dim conv_dim_out "
    "block_use_swiglu block_use_xavier_init conv_use_xavier_init use_pos_enc",
)


@variant_of(decoder, tied=True, theta=1e6, window=256, num_kv_heads=4, head_dim=128)
def lfm3(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    window: int | None,
    mixers: Sequence[str],
    local_theta: float = 10_000.0,
    filter_size: int = 7,
    filter_bias: bool = False,
    use_attention_gate: bool = True,
    sandwich: bool = True,
) -> None:
    """Short convolutions, attention, and attention with a window and another RoPE.

    Attention has QK-norm, and a gate of each head if `use_attention_gate`; norms are around each
    branch if `sandwich`.
    """
    use_qk_norm(cfg, eps=eps)
    if sandwich:
        use_sandwich_norm(cfg)
    for attention in find(cfg.model, Attention) if use_attention_gate else ():
        attention.output_gate = fdl.Partial(OutputGate, per_head=True)
    kinds = shortest_period(mixers)
    cfg.model.blocks = repeated(cfg.model.blocks, len(kinds))
    for block, kind in zip(cfg.model.blocks, kinds, strict=True):
        block.attention.window = Window.new(window) if kind == SLIDING else None
    rotate_in_windows_by(cfg, local_theta)
    for block, kind in zip(cfg.model.blocks, kinds, strict=True):
        if kind == CONVOLUTION:
            put_mixer(block, ShortConvolution, filter_size=filter_size, bias=filter_bias or None)


def _lfm3_tensors(settings: Mapping[str, Any]) -> Tensors:
    kinds = [CONVOLUTION if kind == CONVOLUTION else FULL for kind in settings["mixers"]]
    attention = f"{LAYER}.self_attn"
    full = {**linears(attention), "query_norm": f"{attention}.q_norm"}
    kinds_of_layers = {CONVOLUTION: {}, FULL: {**full, "key_norm": f"{attention}.k_norm"}}
    return {
        **in_layers(LAYER, _LFM3_NAMES),
        **mixer_tensors({**settings, "mixers": kinds}),
        **by_layer(kinds, settings["num_layers"], kinds_of_layers),
    }


def _kinds_of(model: Any) -> list[str]:
    windows, kinds = each_attention(model, "window"), kinds_of(model, CONVOLUTION)
    return [SLIDING if width else kind for width, kind in zip(windows, kinds, strict=True)]


def _lfm3_kinds(hub: Mapping[str, Any]) -> list[str]:
    layers = range(hub["num_hidden_layers"])
    return [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i else CONVOLUTION for i in layers]


_HALF_TURNS = {"rope_type": "proportional", "partial_rotary_factor": 0.5}


_LFM3_NAMES = {"attention_out_norm": "post_operator_norm", "mlp_out_norm": "post_ffn_norm"}
_LFM3_NAMES |= {"attention.output_gate.project": "self_attn.gate_proj"}
LFM3 = near_lfm2(
    "lfm3",
    lfm3,
    "head_dim window local_theta use_attention_gate",
    settings={"sandwich": "use_sandwich_norm"},
    tensors=_lfm3_tensors,
    fixed={"attention_bias": (False,)},
    defaults={"layer_types": _lfm3_kinds, "rope_scaling": _HALF_TURNS},
    readings={"mixers": _kinds_of}
    | {"use_attention_gate": of_attention(lambda attention: attention.output_gate is not None)},
    aliases={"tie_embedding": ..., "rms_norm_eps": "norm_eps"},
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
