"""Families of 2024 and later that differ from another one in a few components."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import fiddle as fdl

from fidgpt.configs import deepseek, granite, mixtures, qwen3_next
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import (
    QK_NORMS,
    SETTINGS,
    TENSORS,
    WINDOWS,
    Family,
    Form,
    Joined,
    Paired,
    in_layers,
    joined,
)
from fidgpt.configs.hybrids import LINEAR, by_layer
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, rotate_by_layer, thetas_of
from fidgpt.fiddlers import (
    use_embedding_norm,
    use_qk_norm,
    use_sinks,
    use_squared_relu,
    use_weightless_norm,
    use_xielu,
)
from fidgpt.graph import find, swap_all
from fidgpt.model import Attention, Block, LateNormAttention, ReversedRoPE, RoPE, WeightlessRMSNorm
from fidgpt.tags import HeadDim, LogitCap
from fidgpt.train import Trainer

_LAYER = "model.layers.*"
_SILU = {"hidden_act": ("silu",)}


@variant_of(decoder)
def apertus(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with QK-norm per head, and plain MLPs of xIELU."""
    use_qk_norm(cfg, eps=eps)
    use_xielu(cfg)


APERTUS = Family(
    model_type="apertus",
    architecture="ApertusForCausalLM",
    config=apertus,
    settings={**SETTINGS, "attention_bias": "attention_bias"},
    tensors={
        **TENSORS,
        **QK_NORMS,
        "blocks.*.attention_norm": f"{_LAYER}.attention_layernorm",
        "blocks.*.mlp_norm": f"{_LAYER}.feedforward_layernorm",
        "blocks.*.mlp.activation": f"{_LAYER}.mlp.act_fn",
    },
    fixed={"hidden_act": ("xielu",), "mlp_bias": (False,), "post_norm": (False,)}
    | {"qk_norm": (True,)},
    defaults={
        "rope_theta": 12e6,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    whole_heads=True,
)


@variant_of(decoder, eps=1e-6)
def nanochat_of_2025(
    cfg: fdl.Config[Trainer], *, eps: float, logit_cap: float | None = 15.0
) -> None:
    """A decoder with squared ReLUs and norms without weights, of the embedding too.

    Queries and keys are normalized after a rotation to the other side.
    """
    use_squared_relu(cfg)
    use_weightless_norm(cfg, eps=eps)
    use_embedding_norm(cfg, eps=eps)
    swap_all(cfg.model, RoPE, by=ReversedRoPE)
    for attention in swap_all(cfg.model, Attention, by=LateNormAttention):
        for name in ("query_norm", "key_norm"):
            norm = fdl.ArgFactory(WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
            setattr(attention, name, norm)
    cfg.model.unembedding.softcap = None if logit_cap is None else LogitCap.new(logit_cap)


NANOCHAT = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    config=nanochat_of_2025,
    settings={**SETTINGS, "attention_bias": "attention_bias"}
    | {"logit_cap": "final_logit_softcapping"},
    tensors={**TENSORS, **in_layers(f"{_LAYER}.mlp", {"mlp.up": "fc1", "mlp.down": "fc2"})},
    fixed={"hidden_act": ("relu2",)},
    defaults={"rms_norm_eps": 1e-6},
    whole_heads=True,
)


def _sharing(settings: Mapping[str, str]) -> dict[str, str]:
    return {**settings, **WINDOWS, "thetas": "layer_rope_theta"}


_ONE_OF_FOUR = (FULL, *[SLIDING] * 3)


@variant_of(granite.granite, layer_types=_ONE_OF_FOUR, window=128)
def granite_swa(cfg: fdl.Config[Trainer], *, thetas: Sequence[float] | None = None) -> None:
    """Granite with attention sinks, a window in most layers, and a base of RoPE for each layer."""
    use_sinks(cfg)
    if thetas is not None:
        rotate_by_layer(cfg, thetas)


_SINKS = {"blocks.*.attention.sinks": f"{_LAYER}.self_attn.sinks"}
_SWA_DEFAULTS = {"sliding_window": 128, "layer_types": [*_ONE_OF_FOUR]}
GRANITE_SWA = Family(
    model_type="granite_swa",
    architecture="GraniteSWAForCausalLM",
    config=granite_swa,
    settings=_sharing(granite.HUB.settings),
    tensors={**TENSORS, **_SINKS},
    fixed=_SILU,
    defaults={**_SWA_DEFAULTS, "tie_word_embeddings": True, "num_key_value_heads": 4},
    readings={**granite.HUB.readings, "thetas": thetas_of},
)


@variant_of(mixtures.granitemoe, layer_types=_ONE_OF_FOUR, window=128)
def granitemoe_swa(cfg: fdl.Config[Trainer], *, thetas: Sequence[float] | None = None) -> None:
    """Granite MoE with attention sinks, windows, and a base of RoPE for each layer."""
    use_sinks(cfg)
    if thetas is not None:
        rotate_by_layer(cfg, thetas)


_EXPERT_ROWS = f"{_LAYER}.block_sparse_moe.experts.gate_up_proj"
GRANITEMOE_SWA = Family(
    model_type="granitemoe_swa",
    architecture="GraniteMoeSWAForCausalLM",
    config=granitemoe_swa,
    settings=_sharing(mixtures.GRANITEMOESHARED.settings),
    tensors={
        **cast(Mapping[str, str | Form], mixtures.GRANITEMOESHARED.tensors),
        **_SINKS,
        "blocks.*.mlp.router": f"{_LAYER}.block_sparse_moe.router",
        "blocks.*.mlp.experts.gate": Joined(_EXPERT_ROWS, 0, 2, dim=1),
        "blocks.*.mlp.experts.up": Joined(_EXPERT_ROWS, 1, 2, dim=1),
        "blocks.*.mlp.experts.down": f"{_LAYER}.block_sparse_moe.experts.down_proj",
    },
    fixed=_SILU,
    defaults=_SWA_DEFAULTS,
    readings={**mixtures.GRANITEMOESHARED.readings, "thetas": thetas_of},
)


@variant_of(deepseek.latent, eps=1e-5, tied=True, kv_rank=256, query_rank=768, rope_head_dim=32)
def minicpm3(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    num_layers: int,
    embedding_scale: float = 12.0,
    depth_scale: float = 1.4,
    base_dim: int = 256,
) -> None:
    """A decoder with latent attention and scaled embedding, branches and logits.

    Branches are times `depth_scale / sqrt(num_layers)`, and logits `base_dim / hidden_dim` (Hu et
    al., 2024, arXiv:2404.06395, table 1).
    """
    cfg.model.embedding.scale = embedding_scale
    cfg.model.unembedding.scale = base_dim / hidden_dim
    for block in find(cfg.model, Block):
        block.branch_scale = depth_scale / num_layers**0.5


def _unpaired(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of latent attention with halves of rotary rows, as fidgpt has them."""
    tensors = deepseek.tensors(settings)
    return {path: form.form if isinstance(form, Paired) else form for path, form in tensors.items()}


MINICPM3 = Family(
    model_type="minicpm3",
    architecture="MiniCPM3ForCausalLM",
    config=minicpm3,
    settings={**deepseek.LATENT, "embedding_scale": "scale_emb", "depth_scale": "scale_depth"}
    | {"base_dim": "dim_model_base"},
    tensors=_unpaired,
    fixed={**_SILU, "mlp_bias": (False,)},
    defaults={
        "tie_word_embeddings": True,
        "num_key_value_heads": 40,
        "v_head_dim": lambda found: found["hidden_size"] // found["num_attention_heads"],
        "scale_depth": lambda found: (
            found["num_hidden_layers"] ** 0.5 if "scale_depth" in found else 1.4
        ),
        "dim_model_base": lambda found: found["hidden_size"] if "dim_model_base" in found else 256,
    },
    readings={
        "depth_scale": lambda model: round(
            model.blocks[0].branch_scale * len(model.blocks) ** 0.5, 9
        ),
        "base_dim": lambda model: round(model.unembedding.scale * model.embedding.weight.shape[1]),
    },
    known=deepseek.KNOWN,
)


def _separate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of Qwen3-Next, where gates and rates of delta nets are by themselves."""
    delta = f"{_LAYER}.linear_attn"
    keys = settings["delta_key_heads"] * settings["delta_head_dim"]
    rows = (keys, keys, settings["delta_heads"] * settings["delta_value_dim"])
    names = {"gate": "in_proj_z", "beta": "in_proj_b", "timestep": "in_proj_a"}
    linear: dict[str, str | Form] = {path: f"{delta}.{name}" for path, name in names.items()}
    linear |= joined(("query", "key", "value"), f"{delta}.in_proj_qkv", of=rows)
    kinds = {LINEAR: linear, FULL: {}}
    tensors = cast(Any, qwen3_next.HUB.tensors)(settings)
    return {**tensors, **by_layer(settings["mixers"], settings["num_layers"], kinds)}


@variant_of(qwen3_next.qwen3_next, num_experts=0, num_kv_heads=4)
def qwen3_5(cfg: fdl.Config[Trainer]) -> None:
    """Qwen3-Next without experts."""


@variant_of(qwen3_next.qwen3_next, num_experts=256, top_k=8)
def qwen3_5_moe(cfg: fdl.Config[Trainer]) -> None:
    """Qwen3-Next with fewer experts."""


_NEXT = qwen3_next.HUB
_MIXED = ("expert_ffn_dim", "num_experts", "top_k", "normalize", "every", "dense_layers")
_QWEN3_5_KNOWN = (*_NEXT.known, "attn_output_gate", "mamba_ssm_dtype", "num_mtp_layers")
_QWEN3_5_KNOWN += ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers")
QWEN3_5 = Family(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    config=qwen3_5,
    settings={
        name: key for name, key in _NEXT.settings.items() if name not in (*_MIXED, "shared_ffn_dim")
    },
    tensors=_separate,
    fixed=_NEXT.fixed,
    defaults={**_NEXT.defaults, "num_key_value_heads": 4, "head_dim": 256},
    readings=_NEXT.readings,
    known=_QWEN3_5_KNOWN,
    ignored=(*_NEXT.ignored, "model.visual.*"),  # images
)
QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    config=qwen3_5_moe,
    settings={
        name: key
        for name, key in _NEXT.settings.items()
        if name not in ("normalize", "every", "dense_layers")
    },
    tensors=_separate,
    fixed={**_NEXT.fixed, "norm_topk_prob": (True,), "mlp_only_layers": ([], None)},
    defaults={
        **_NEXT.defaults,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": lambda found: found["moe_intermediate_size"],
    },
    readings=_NEXT.readings,
    known=_QWEN3_5_KNOWN,
    ignored=(*_NEXT.ignored, "model.visual.*"),  # images
)
