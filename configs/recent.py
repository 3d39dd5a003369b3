"""Families of 2024 and later that differ from another one in a few components."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import deepseek, granite, mixtures, olmo2, qwen3_moe, qwen3_next
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import (
    AS_EXPERTS,
    EXPERT_ROWS,
    GATED,
    LAYER,
    QK_NORMS,
    Form,
    Tensors,
    in_layers,
    joined,
    linears,
    llama3_rope,
)
from fidgpt.configs.hybrids import THREE_TO_ONE, by_layer, use_mixers
from fidgpt.configs.readings import of_attention, of_mixer
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR, SLIDING, rotate_by_layer, rotate_in_windows_by
from fidgpt.graph import clone_part, find, swap_all, swapped
from fidgpt.tags import HeadDim, HiddenDim, LogitCap
from fidgpt.train import Trainer


@variant_of(decoder, theta=12e6)
def apertus(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with QK-norm per head, and plain MLPs of xIELU."""
    fiddlers.use_qk_norm(cfg, eps=eps)
    fiddlers.use_xielu(cfg)


_APERTUS = {"attention_norm": "attention_layernorm", "mlp_norm": "feedforward_layernorm"}
_APERTUS |= {"mlp.activation": "mlp.act_fn"}
APERTUS = family(
    "apertus",
    apertus,
    "attention_bias",
    tensors={**QK_NORMS, **in_layers(LAYER, _APERTUS)},
    fixed={"hidden_act": ("xielu",), **dict.fromkeys(("mlp_bias", "post_norm"), (False,))}
    | {"qk_norm": (True,)},
    defaults={"rope_scaling": llama3_rope(8.0)},
)


@variant_of(decoder, eps=1e-6)
def nanochat_of_2025(
    cfg: fdl.Config[Trainer], *, eps: float, logit_cap: float | None = 15.0
) -> None:
    """A decoder with squared ReLUs and norms without weights, of the embedding too.

    Queries and keys are normalized after a rotation to the other side.
    """
    fiddlers.use_squared_relu(cfg)
    fiddlers.use_weightless_norm(cfg, eps=eps)
    fiddlers.use_embedding_norm(cfg, eps=eps)
    swap_all(cfg.model, lm.RoPE, by=lm.ReversedRoPE)
    for attention in swap_all(cfg.model, lm.Attention, by=lm.LateNormAttention):
        for name in ("query_norm", "key_norm"):
            norm = fdl.ArgFactory(lm.WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
            setattr(attention, name, norm)
    cfg.model.unembedding.softcap = None if logit_cap is None else LogitCap.new(logit_cap)


NANOCHAT = family(
    "nanochat",
    nanochat_of_2025,
    "attention_bias logit_cap",
    architecture="NanoChatForCausalLM",
    tensors=in_layers(f"{LAYER}.mlp", {"mlp.up": "fc1", "mlp.down": "fc2"}),
    fixed={"hidden_act": ("relu2",)},
)


_ONE_OF_FOUR = (FULL, *[SLIDING] * 3)


_SWA = {"layer_types": _ONE_OF_FOUR, "window": 128}


@variant_of(granite.granite, **_SWA, eps=1e-5, tied=True, num_kv_heads=4)
def granite_swa(cfg: fdl.Config[Trainer], *, thetas: Sequence[float] | None = None) -> None:
    """Granite with attention sinks, a window in most layers, and a base of RoPE for each layer."""
    fiddlers.use_sinks(cfg)
    if thetas is not None:
        rotate_by_layer(cfg, thetas)


_SINKS = {"blocks.*.attention.sinks": f"{LAYER}.self_attn.sinks"}
GRANITE_SWA = granite.HUB.near(
    "granite_swa",
    granite_swa,
    "window layer_types thetas",
    architecture="GraniteSWAForCausalLM",
    tensors=_SINKS,
)


@variant_of(mixtures.granitemoe, **_SWA)
def granitemoe_swa(cfg: fdl.Config[Trainer], *, thetas: Sequence[float] | None = None) -> None:
    """Granite MoE with attention sinks, windows, and a base of RoPE for each layer."""
    fiddlers.use_sinks(cfg)
    if thetas is not None:
        rotate_by_layer(cfg, thetas)


_SPARSE = f"{LAYER}.block_sparse_moe"
GRANITEMOE_SWA = mixtures.GRANITEMOESHARED.near(
    "granitemoe_swa",
    granitemoe_swa,
    "window layer_types thetas",
    architecture="GraniteMoeSWAForCausalLM",
    tensors={
        **joined(EXPERT_ROWS, f"{_SPARSE}.experts.gate_up_proj", of=2, dim=1),
        "blocks.*.mlp.experts.down": f"{_SPARSE}.experts.down_proj",
        "blocks.*.mlp.router": f"{_SPARSE}.router",
        **_SINKS,
    },
)


_RANKS = {"head_dim": 64, "kv_rank": 256, "query_rank": 768, "rope_head_dim": 32}


@variant_of(deepseek.latent, eps=1e-5, tied=True, num_kv_heads=40, **_RANKS)
def minicpm3(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    num_layers: int,
    embedding_scale: float = 12.0,
    scale_depth: float | None = 1.4,
    dim_model_base: int | None = 256,
) -> None:
    """A decoder with latent attention and scaled embedding, branches and logits.

    Branches are times `scale_depth / sqrt(num_layers)`, and logits `dim_model_base / hidden_dim`
    (Hu et al., 2024, arXiv:2404.06395, table 1), unless these are None.
    """
    cfg.model.embedding.scale = embedding_scale
    cfg.model.unembedding.scale = (dim_model_base or hidden_dim) / hidden_dim
    for block in find(cfg.model, lm.Block):
        block.branch_scale = 1.0 if scale_depth is None else scale_depth / num_layers**0.5


def _scale(model: Any) -> float:
    return round(model.blocks[0].branch_scale * len(model.blocks) ** 0.5, 9)


def _base_dim(model: Any) -> int:
    return round(model.unembedding.scale * model.embedding.weight.shape[1])


# Halves of rotary rows are in files as fidgpt has them.
_HALVES = {"attention.query": "q_b_proj", "attention.kv_down": "kv_a_proj_with_mqa"}
MINICPM3 = deepseek.near_latent(
    "minicpm3",
    minicpm3,
    "scale_depth dim_model_base",
    architecture="MiniCPM3ForCausalLM",
    settings={"embedding_scale": "scale_emb"},
    tensors=in_layers(f"{LAYER}.self_attn", _HALVES),
    fixed={"mlp_bias": (False,)},
    defaults={"v_head_dim": lambda hub: hub["hidden_size"] // hub["num_attention_heads"]},
    readings={"scale_depth": _scale, "dim_model_base": _base_dim},
    whole_heads=True,
)


def _separate(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors of delta nets whose gates and rates are by themselves."""
    delta = f"{LAYER}.linear_attn"
    keys = settings["delta_key_heads"] * settings["delta_head_dim"]
    rows = (keys, keys, settings["delta_heads"] * settings["delta_value_dim"])
    names = {"gate": "in_proj_z", "beta": "in_proj_b", "timestep": "in_proj_a"}
    linear: dict[str, str | Form] = {path: f"{delta}.{name}" for path, name in names.items()}
    linear |= joined(("query", "key", "value"), f"{delta}.in_proj_qkv", of=rows)
    return by_layer(settings["mixers"], settings["num_layers"], {LINEAR: linear, FULL: {}})


@variant_of(qwen3_next.qwen3_next, num_experts=0, num_kv_heads=4)
def qwen3_5(cfg: fdl.Config[Trainer]) -> None:
    """Qwen3-Next without experts."""


@variant_of(qwen3_next.qwen3_next, num_experts=256, top_k=8)
def qwen3_5_moe(cfg: fdl.Config[Trainer]) -> None:
    """Qwen3-Next with fewer experts."""


QWEN3_5 = qwen3_next.HUB.near(
    "qwen3_5_text",
    qwen3_5,
    architecture="Qwen3_5ForCausalLM",
    settings=dict.fromkeys((*qwen3_moe.MIXTURE, "shared_ffn_dim"), ...),
    tensors=_separate,
    known="attn_output_gate mamba_ssm_dtype mlp_only_layers",
)
QWEN3_5_MOE = QWEN3_5.near(
    "qwen3_5_moe_text",
    qwen3_5_moe,
    "expert_ffn_dim num_experts top_k shared_ffn_dim",
    architecture="Qwen3_5MoeForCausalLM",
    fixed={"norm_topk_prob": (True,), "mlp_only_layers": ([], None)},
    defaults=AS_EXPERTS,
)


@variant_of(decoder, tied=True, window=64, layer_types=(FULL, SLIDING, SLIDING), theta=160_000.0)
def modernbert_decoder(
    cfg: fdl.Config[Trainer], *, eps: float, local_theta: float = 10_000.0
) -> None:
    """A decoder with LayerNorm without biases, of the embedding too, GeGLU and a prediction head.

    Layers with a window have another RoPE. The first layer has no norm before its attention.
    """
    rotate_in_windows_by(cfg, local_theta)
    fiddlers.use_layer_norm(cfg, eps=eps, bias=False)
    (embedding,) = swap_all(cfg.model, lm.Embedding, by=lm.NormalizedEmbedding)
    embedding.norm = fdl.Config(nn.LayerNorm, HiddenDim.new(), eps=eps, bias=False)
    norm = fdl.Partial(nn.LayerNorm, eps=eps, bias=False)
    cfg.model.norm = fdl.Config(lm.PredictionHead, hidden_dim=HiddenDim.new(), norm=norm)
    swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)
    for mlp in swap_all(cfg.model, lm.SwiGLU, by=lm.GatedMLP):
        mlp.activation = lm.gelu
    first = clone_part(cfg.model.blocks[0])
    first.attention_norm = fdl.ArgFactory(nn.Identity)
    cfg.model.first_blocks = [first]


def _modernbert_kinds(hub: Mapping[str, Any]) -> list[str]:
    every = hub.get("global_attn_every_n_layers", 3)
    return [SLIDING if i % every else FULL for i in range(hub["num_hidden_layers"])]


_NAMES = {f"attention.{path}": name for path, name in linears("attn", "query key value").items()}
_NAMES |= {"attention.out": "attn.Wo", "attention_norm": "attn_norm"}
_NAMES |= {"mlp_norm": "mlp_norm", "mlp.down": "mlp.Wo"}
_MODERNBERT = {
    **in_layers(LAYER, _NAMES),
    **joined(GATED, f"{LAYER}.mlp.Wi", of=2),
    **{"embedding": "model.embeddings.tok_embeddings", "embedding.norm": "model.embeddings.norm"},
    **{
        "norm.first": "model.final_norm",
        "norm.dense": "lm_head.dense",
        "norm.norm": "lm_head.norm",
    },
    "unembedding": "decoder",
}
_UNBIASED = dict.fromkeys(("norm_bias", "classifier_bias"), (False,)) | {"decoder_bias": (True,)}
_GELU = dict.fromkeys(("hidden_activation", "classifier_activation"), ("gelu",))
# Values by the keys of the first files.
_FORMER: Mapping[str, Any] = {
    "rope_theta": lambda hub: hub.get("global_rope_theta", 160_000.0),
    "rope_local_base_freq": lambda hub: hub.get("local_rope_theta", 10_000.0),
    "sliding_window": lambda hub: (hub.get("local_attention") or 128) // 2,
    "layer_types": _modernbert_kinds,
}
MODERNBERT_DECODER = family(
    "modernbert-decoder",
    modernbert_decoder,
    "attention_bias mlp_bias window layer_types local_theta",
    architecture="ModernBertDecoderForCausalLM",
    settings={"num_kv_heads": ..., "head_dim": ..., "eps": "norm_eps"},
    tensors=_MODERNBERT,
    fixed={"hidden_act": ..., **_GELU, **_UNBIASED},
    defaults=_FORMER,
    constants={"bos_token_id": 0, "pad_token_id": 0},  # which its class requires
    known="global_attn_every_n_layers local_attention global_rope_theta local_rope_theta",
)


@variant_of(olmo2.olmo2, eps=1e-6)
def olmo_hybrid(
    cfg: fdl.Config[Trainer],
    *,
    mixers: Sequence[str] = THREE_TO_ONE,
    delta_heads: int = 30,
    delta_key_heads: int = 30,
    delta_head_dim: int = 96,
    delta_value_dim: int = 192,
    filter_size: int = 4,
    linear_allow_neg_eigval: bool = True,
    base: float | None = 10_000.0,
) -> None:
    """OLMo 2 with three pre-norm delta nets per attention, without positions if `base` is None.

    Rates of the delta nets reach 2 if `linear_allow_neg_eigval`.
    """
    if base is None:
        fiddlers.use_no_positions(cfg)
    for rope in find(cfg.model, lm.RoPE) if base is not None else ():
        rope.theta = base
    use_mixers(
        cfg,
        mixers,
        lm.GatedDeltaNet,
        num_heads=delta_heads,
        num_key_heads=delta_key_heads,
        head_dim=delta_head_dim,
        value_head_dim=delta_value_dim,
        filter_size=filter_size,
        max_rate=2.0 if linear_allow_neg_eigval else 1.0,
        norm=fdl.Partial(lm.RMSNorm, eps=1e-5),
    )
    cfg.model.blocks = [
        swapped(block, lm.Block) if fdl.get_callable(block.attention) is lm.GatedDeltaNet else block
        for block in cfg.model.blocks
    ]


def _olmo_hybrid_tensors(settings: Mapping[str, Any]) -> Tensors:
    delta = f"{LAYER}.linear_attn"
    names = {"beta": "b_proj", "timestep": "a_proj", "norm": "o_norm"}
    names |= {f"{name}_filter": f"{name[0]}_conv1d" for name in ("query", "key", "value")}
    names |= {"decay.log_rate": "A_log", "decay.bias": "dt_bias"}
    linear = {path: f"{delta}.{name}" for path, name in names.items()}
    linear |= linears(delta, "query key value out gate")
    kinds, layers = settings["mixers"], range(settings["num_layers"])
    norms = {"attention_norm": "attention_layer_norm", "mlp_norm": "feedforward_layer_norm"}
    return by_layer(kinds, len(layers), {LINEAR: linear, FULL: {}}) | {
        f"blocks.{i}.{path}": f"model.layers.{i}.{name}"
        for i in layers
        for path, name in norms.items()
        if kinds[i % len(kinds)] == LINEAR
    }


def _heads(hub: Mapping[str, Any]) -> int:
    return hub["num_attention_heads"]


def _key_dim(hub: Mapping[str, Any]) -> int:
    heads = hub.get("linear_num_key_heads") or hub["num_attention_heads"]
    return hub.get("linear_key_head_dim") or int(0.75 * hub["hidden_size"] / heads)


OLMO_HYBRID = olmo2.HUB.near(
    "olmo_hybrid",
    olmo_hybrid,
    "mixers linear_allow_neg_eigval",
    settings={"head_dim": ..., "theta": ..., **qwen3_next.DELTA, "base": "rope_theta"},
    tensors=_olmo_hybrid_tensors,
    defaults=dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), _heads)
    | {"linear_key_head_dim": _key_dim, "linear_value_head_dim": lambda hub: 2 * _key_dim(hub)},
    readings={
        "base": of_attention(lambda attention: attention.rope and attention.rope.theta),
        "scaling": of_attention(lambda attention: attention.rope and attention.rope.scaling),
        "linear_allow_neg_eigval": of_mixer(lambda mixer: mixer.max_rate != 1.0),
    },
    known="head_dim linear_use_gate",
)
