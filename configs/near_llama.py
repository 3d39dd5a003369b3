"""Families that differ from Llama in few parts."""

from dataclasses import replace
from functools import partial

import fiddle as fdl
from torch import nn

from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import (
    BIASES,
    GATED,
    LAYER,
    QK_NORMS,
    QKV_BIASES,
    ROTARY,
    SETTINGS,
    SILU,
    TENSORS,
    WINDOWS,
    Family,
    joined,
    with_adjacent_pairs,
    without,
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
from fidgpt.fiddlers import (
    use_layer_norm,
    use_post_norm,
    use_qk_norm,
    use_sandwich_norm,
    use_squared_relu,
)
from fidgpt.graph import find, swap_all
from fidgpt.model import Attention, LateNormAttention, NTKScaling, Tempered, YaRN
from fidgpt.train import Trainer


@variant_of(decoder)
def arcee(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with plain MLPs of squared ReLUs."""
    use_squared_relu(cfg)


ARCEE = Family(
    model_type="arcee",
    architecture="ArceeForCausalLM",
    config=arcee,
    settings={**SETTINGS, **BIASES},
    tensors=TENSORS,
    fixed={"hidden_act": ("relu2",)},
    whole_heads=True,
)


@variant_of(arcee, attention_bias=True, mlp_bias=True)
def jais2(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """Arcee with biases and LayerNorm."""
    use_layer_norm(cfg, eps=eps)


JAIS2 = replace(
    ARCEE,
    model_type="jais2",
    architecture="Jais2ForCausalLM",
    config=jais2,
    settings={**ARCEE.settings, "eps": "layer_norm_eps"},
)

SEED_OSS = Family(
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    config=decoder,
    settings={**SETTINGS, **BIASES, **QKV_BIASES},
    tensors=TENSORS,
    fixed=SILU,
    defaults={
        "attention_bias": True,
        "attention_out_bias": False,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
)

CWM = Family(
    model_type="cwm",
    architecture="CwmForCausalLM",
    config=decoder,
    settings={**SETTINGS, **WINDOWS},
    tensors=TENSORS,
    fixed={**SILU, "mlp_bias": (False,)},
    defaults={
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "sliding_window": 8192,
        "layer_types": [FULL, *[SLIDING] * 3],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    constants={"bos_token_id": 128_000},  # which its class requires
    whole_heads=True,
)

ERNIE = Family(
    model_type="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    config=decoder,
    settings={**SETTINGS, "attention_bias": "use_bias", "mlp_bias": "use_bias"},
    tensors=with_adjacent_pairs(TENSORS),
    fixed=SILU,
    defaults={
        "tie_word_embeddings": True,
        "rope_theta": 500_000.0,
        "num_key_value_heads": 2,
        "head_dim": 128,
    },
)

HELIUM = Family(
    model_type="helium",
    architecture="HeliumForCausalLM",
    config=decoder,
    settings={**SETTINGS, **BIASES},
    tensors=with_adjacent_pairs(TENSORS),
    fixed={**SILU, "attention_bias": (False,)},
    defaults={"rms_norm_eps": 1e-8, "rope_theta": 100_000.0},
)


@variant_of(decoder)
def olmo(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with LayerNorm without weights."""
    use_layer_norm(cfg, eps=1e-5)
    for norm in find(cfg.model, nn.LayerNorm):
        norm.elementwise_affine = False


OLMO = Family(
    model_type="olmo",
    architecture="OlmoForCausalLM",
    config=olmo,
    settings={
        **without(SETTINGS, "eps"),
        "attention_bias": "attention_bias",
    },
    tensors=TENSORS,
    fixed={**SILU, "clip_qkv": (None,)},
)


@variant_of(decoder, tied=True, attention_bias=True, mlp_bias=True)
def starcoder2(
    cfg: fdl.Config[Trainer], *, eps: float, activation: str = "gelu_pytorch_tanh"
) -> None:
    """A decoder with biases, LayerNorm and plain MLPs."""
    use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)


STARCODER2 = Family(
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    config=starcoder2,
    settings={**SETTINGS, "attention_bias": "use_bias", "mlp_bias": "use_bias"}
    | {"eps": "norm_epsilon", "window": "sliding_window", "activation": "hidden_act"},
    tensors={
        **TENSORS,
        "blocks.*.mlp.up": f"{LAYER}.mlp.c_fc",
        "blocks.*.mlp.down": f"{LAYER}.mlp.c_proj",
    },
    defaults={"num_key_value_heads": 2},
)


@variant_of(decoder, layer_types=(*[SLIDING] * 3, FULL))
def exaone4(cfg: fdl.Config[Trainer], *, eps: float, window: int | None) -> None:
    """A post-norm decoder with QK-norm per head, of which layers with a window alone have RoPE."""
    use_post_norm(cfg)
    use_qk_norm(cfg, eps=eps)
    rotate_in_windows_only(cfg, window)


EXAONE4 = Family(
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    config=exaone4,
    settings={**SETTINGS, **WINDOWS},
    tensors={**TENSORS, **POST_NORMS, **QK_NORMS},
    fixed=SILU,
    defaults={"layer_types": partial(periodic_layers, period=4), "sliding_window": 4096},
    readings={"window": window_of_rotated},
    known=PERIODS,
)


@variant_of(decoder, rotary_share=0.5, attention_bias=True, attention_out_bias=False, eps=1.5625e-7)
def glm(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with biases on queries, keys and values that rotates half of each head."""


@variant_of(glm)
def glm4(cfg: fdl.Config[Trainer]) -> None:
    """GLM with norms after the branches too."""
    use_sandwich_norm(cfg)


_GLM_TENSORS = {**TENSORS, **joined(GATED, f"{LAYER}.mlp.gate_up_proj", of=2)}
GLM = Family(
    model_type="glm",
    architecture="GlmForCausalLM",
    config=glm,
    settings={**SETTINGS, **ROTARY, "attention_bias": "attention_bias"},
    tensors=with_adjacent_pairs(_GLM_TENSORS),
    fixed=SILU,
    defaults={"head_dim": 128, "num_key_value_heads": 2},
)
GLM4 = replace(
    GLM,
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    config=glm4,
    tensors=with_adjacent_pairs(
        {
            **_GLM_TENSORS,
            "blocks.*.attention_out_norm": f"{LAYER}.post_self_attn_layernorm",
            "blocks.*.mlp_out_norm": f"{LAYER}.post_mlp_layernorm",
        }
    ),
)


@variant_of(decoder)
def hunyuan(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with queries and keys normalized per head after their rotation."""
    use_qk_norm(cfg, eps=eps)
    swap_all(cfg.model, Attention, by=LateNormAttention)


HUNYUAN = Family(
    model_type="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    config=hunyuan,
    settings={**SETTINGS, "attention_bias": "attention_bias"},
    tensors={
        **TENSORS,
        "blocks.*.attention.query_norm": f"{LAYER}.self_attn.query_layernorm",
        "blocks.*.attention.key_norm": f"{LAYER}.self_attn.key_layernorm",
    },
    fixed={**SILU, "use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)},
    scalings={"alpha": NTKScaling},
)


@variant_of(decoder)
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
            Tempered,
            rotation=attention.rope,
            strength=strength,
            span=scaling.original_seq_len,
        )


MINISTRAL3 = Family(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    config=ministral3,
    settings={**SETTINGS, "window": "sliding_window", "strength": "llama_4_scaling_beta"},
    tensors=TENSORS,
    fixed=SILU,
    defaults={
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16_384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "llama_4_scaling_beta": lambda found: (
            found["llama_4_scaling_beta"] if found.get("rope_scaling") else 0.1
        ),
    },
    readings={"strength": lambda model: getattr(model.blocks[0].attention.rope, "strength", None)},
)
