"""Families that differ from Llama in few parts."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt import fiddlers
from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import (
    BIASES,
    GATED,
    LAYER,
    QK_NORMS,
    TENSORS,
    in_layers,
    joined,
    llama3_rope,
    with_adjacent_pairs,
)
from fidgpt.configs.olmo2 import POST_NORMS
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import (
    FULL,
    PERIODS,
    SLIDING,
    periodic_layers,
    rotate_in_windows_only,
    window_of_rotated,
)
from fidgpt.graph import find, swap_all
from fidgpt.model import Attention, LateNormAttention, NTKScaling, Tempered, YaRN
from fidgpt.train import Trainer


@variant_of(decoder)
def arcee(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with plain MLPs of squared ReLUs."""
    fiddlers.use_squared_relu(cfg)


ARCEE = family(
    "arcee", arcee, "attention_bias mlp_bias", fixed={"hidden_act": ("relu2",)}, whole_heads=True
)


@variant_of(arcee, attention_bias=True, mlp_bias=True)
def jais2(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """Arcee with biases and LayerNorm."""
    fiddlers.use_layer_norm(cfg, eps=eps)


JAIS2 = ARCEE.near("jais2", jais2, settings={"eps": "layer_norm_eps"})
_QKV_BIAS = {"attention_bias": True, "attention_out_bias": False}
SEED_OSS = family(
    "seed_oss",
    partial(decoder, **_QKV_BIAS, eps=1e-6, num_kv_heads=8, head_dim=128),
    "attention_bias mlp_bias attention_out_bias",
)
CWM = family(
    "cwm",
    partial(decoder, theta=1e6, num_kv_heads=8, window=8192),
    "window layer_types",
    fixed={"mlp_bias": (False,)},
    defaults={"layer_types": [FULL, *[SLIDING] * 3], "rope_scaling": llama3_rope(16.0)},
    constants={"bos_token_id": 128_000},  # which its class requires
    whole_heads=True,
)
ERNIE = family(
    "ernie4_5",
    partial(decoder, tied=True, theta=500_000.0, num_kv_heads=2, head_dim=128),
    architecture="Ernie4_5ForCausalLM",
    settings={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
    tensors=with_adjacent_pairs(TENSORS),
)
HELIUM = family(
    "helium",
    partial(decoder, eps=1e-8, theta=100_000.0),
    "attention_bias mlp_bias",
    tensors=with_adjacent_pairs(TENSORS),
    fixed={"attention_bias": (False,)},
)


@variant_of(decoder)
def olmo(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with LayerNorm without weights."""
    fiddlers.use_layer_norm(cfg, eps=1e-5)
    for norm in find(cfg.model, nn.LayerNorm):
        norm.elementwise_affine = False


OLMO = family("olmo", olmo, "attention_bias", settings={"eps": ...}, fixed={"clip_qkv": (None,)})


@variant_of(decoder, tied=True, attention_bias=True, mlp_bias=True, num_kv_heads=2)
def starcoder2(
    cfg: fdl.Config[Trainer], *, eps: float, activation: str = "gelu_pytorch_tanh"
) -> None:
    """A decoder with biases, LayerNorm and plain MLPs."""
    fiddlers.use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)


STARCODER2 = family(
    "starcoder2",
    starcoder2,
    "window activation",
    settings={"attention_bias": "use_bias", "mlp_bias": "use_bias", "eps": "norm_epsilon"},
    tensors=in_layers(LAYER, {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}),
)


@variant_of(decoder, layer_types=(*[SLIDING] * 3, FULL), window=4096)
def exaone4(cfg: fdl.Config[Trainer], *, eps: float, window: int | None) -> None:
    """A post-norm decoder with QK-norm per head, and with RoPE only in layers with a window."""
    fiddlers.use_post_norm(cfg)
    fiddlers.use_qk_norm(cfg, eps=eps)
    rotate_in_windows_only(cfg, window)


EXAONE4 = family(
    "exaone4",
    exaone4,
    "window layer_types",
    tensors={**POST_NORMS, **QK_NORMS},
    defaults={"layer_types": periodic_layers},
    readings={"window": window_of_rotated},
    known=PERIODS,
)


_HALF = {"rotary_share": 0.5, "head_dim": 128, "num_kv_heads": 2}


@variant_of(decoder, **_HALF, **_QKV_BIAS, eps=1.5625e-7)
def glm(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with biases on queries, keys and values that rotates half of each head."""


@variant_of(glm)
def glm4(cfg: fdl.Config[Trainer]) -> None:
    """GLM with norms after the branches too."""
    fiddlers.use_sandwich_norm(cfg)


GLM = family(
    "glm",
    glm,
    "rotary_share attention_bias",
    tensors=with_adjacent_pairs({**TENSORS, **joined(GATED, f"{LAYER}.mlp.gate_up_proj", of=2)}),
)
_SANDWICH = {"attention_out_norm": "post_self_attn_layernorm", "mlp_out_norm": "post_mlp_layernorm"}
GLM4 = GLM.near("glm4", glm4, tensors=in_layers(LAYER, _SANDWICH))


@variant_of(decoder)
def hunyuan(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with queries and keys normalized per head after their rotation."""
    fiddlers.use_qk_norm(cfg, eps=eps)
    swap_all(cfg.model, Attention, by=LateNormAttention)


HUNYUAN = family(
    "hunyuan_v1_dense",
    hunyuan,
    "attention_bias",
    architecture="HunYuanDenseV1ForCausalLM",
    tensors=in_layers(
        f"{LAYER}.self_attn",
        {"attention.query_norm": "query_layernorm", "attention.key_norm": "key_layernorm"},
    ),
    fixed={"use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)},
    scalings={"alpha": NTKScaling},
    known=("attention_head_dim", "norm_type", "use_rotary_pos_emb"),
)


@variant_of(decoder, theta=1e6, num_kv_heads=8)
def ministral3(cfg: fdl.Config[Trainer], *, strength: float | None = None) -> None:
    """A decoder whose attention gets sharper beyond the original length, by `strength`.

    Raises:
      ValueError: the RoPE has another scaling than YaRN, which has the original length.
    """
    for attention in find(cfg.model, Attention) if strength else ():
        scaling = attention.rope.scaling
        if scaling is None or fdl.get_callable(scaling) is not YaRN:
            raise ValueError(f"{strength=} needs a RoPE with YaRN: set scaling.")
        attention.rope = fdl.Config(
            Tempered, rotation=attention.rope, strength=strength, span=scaling.original_seq_len
        )


def _strength(hub: Mapping[str, Any]) -> float:
    return hub["llama_4_scaling_beta"] if hub.get("rope_scaling") else 0.1


_YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16_384}
_YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
MINISTRAL3 = family(
    "ministral3",
    ministral3,
    "window",
    settings={"strength": "llama_4_scaling_beta"},
    defaults={"rope_scaling": _YARN, "llama_4_scaling_beta": _strength},
    readings={"strength": lambda model: getattr(model.blocks[0].attention.rope, "strength", None)},
)

# The text of Emu3 (BAAI, 2024, arXiv:2409.18869).
EMU3 = family(
    "emu3_text_model",
    partial(decoder, num_kv_heads=8, theta=1e6),
    architecture="Emu3ForCausalLM",
    holder="emu3",
    fixed=dict.fromkeys(BIASES, (False,)),
)
