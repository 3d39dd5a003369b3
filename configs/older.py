"""Families of before Llama, and later ones that are like them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import gpt2
from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import (
    LAYER,
    NEOX_MLP,
    QKV,
    Stacked,
    Tensors,
    four_widths,
    in_layers,
    joined,
    linears,
    with_adjacent_pairs,
    without,
)
from fidgpt.configs.readings import each_attention
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, look_back
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import clone_part, find, swap_all
from fidgpt.tags import HeadDim, HiddenDim, NumKVHeads
from fidgpt.train import Trainer

_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_QK = ("query", "key")


def _projections(holder: str) -> dict[str, str]:
    """Return the names of the projections of queries, keys and values."""
    names = linears(holder, "query key value")
    return {f"blocks.*.attention.{path}": name for path, name in names.items()}


def _by_head(name: str, settings: Mapping[str, Any]) -> Tensors:
    """Return the forms of a tensor with the queries, keys and values of each head."""
    return joined(QKV, name, of=3, groups=settings["num_heads"])


@variant_of(decoder)
def normal(cfg: fdl.Config[Trainer], *, eps: float, activation: str = "gelu_new") -> None:
    """A decoder with LayerNorm and plain MLPs."""
    fiddlers.use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)


# Make families near these: without RoPE and GQA, and with the keys and tensors of GPT-2.
_near_normal = family(
    "normal",
    normal,
    settings=dict.fromkeys(("num_kv_heads", "head_dim", "theta", "scaling"), ...),
    fixed={"hidden_act": ...},
).near
_near_gpt2 = _near_normal("gpt2", settings=gpt2.SIZES, defaults={"n_inner": four_widths}).near


_BIASED = {"tied": True, "attention_bias": True, "mlp_bias": True}


@variant_of(normal, **_BIASED)
def positioned(cfg: fdl.Config[Trainer]) -> None:
    """A decoder like GPT-2, with learned positions."""
    fiddlers.use_learned_positions(cfg)


@variant_of(positioned, activation="relu")
def opt(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    word_embed_proj_dim: int | None = None,
    scaled: bool = False,
) -> None:
    """A decoder whose table of positions begins with two rows of none.

    Raises:
      ValueError: tokens have another width than the residual stream.
    """
    if word_embed_proj_dim not in (None, hidden_dim):
        raise ValueError(f"{word_embed_proj_dim=} must be {hidden_dim=}: there is no projection.")
    swap_all(cfg.model, lm.LearnedPositions, by=lm.OffsetPositions)
    if scaled:
        cfg.model.embedding.scale = fdl.Config(lm.root_of_width, hidden_dim=HiddenDim.new())


def _opt_tensors(model: str, final_norm: str) -> Tensors:
    layer = f"{model}.layers.*"
    names = {"attention_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"}
    names |= {"attention.out": "self_attn.out_proj", "mlp.up": "fc1", "mlp.down": "fc2"}
    return {
        "embedding": f"{model}.embed_tokens",
        "embedding.positions": f"{model}.embed_positions",
        **_projections(f"{layer}.self_attn"),
        **in_layers(layer, names),
        "norm": f"{model}.{final_norm}",
    }


_ALWAYS = ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine")
OPT = _near_normal(
    "opt",
    opt,
    "word_embed_proj_dim",
    architecture="OPTForCausalLM",
    settings={"eps": ..., "ffn_dim": "ffn_dim", "activation": "activation_function"},
    tensors=_opt_tensors("model.decoder", "final_layer_norm"),
    fixed={**dict.fromkeys(_ALWAYS, (True,)), "_remove_final_layer_norm": (False,)},
)
BIOGPT = _near_normal(
    "biogpt",
    opt,
    "activation",
    architecture="BioGptForCausalLM",
    settings={"eps": ..., "scaled": "scale_embedding"},
    tensors={**_opt_tensors("biogpt", "layer_norm"), "unembedding": "output_projection"},
    defaults={"hidden_act": "gelu", "scale_embedding": True},
    known=("layer_norm_eps",),  # transformers' norms have the default of torch
)


@variant_of(positioned, activation="gelu_pytorch_tanh")
def gpt_bigcode(cfg: fdl.Config[Trainer], *, multi_query: bool = True) -> None:
    """A decoder like GPT-2 in which all queries share a key and a value."""
    if multi_query:
        for attention in find(cfg.model, lm.Attention):
            attention.num_kv_heads = NumKVHeads.new(1)


_LAYER = "transformer.h.*"


def _bigcode_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; one joins all queries with one key and value, or with each head's own."""
    heads = settings["num_heads"]
    shares, groups = ((heads, 1, 1), 1) if settings["multi_query"] else ((1, 1, 1), heads)
    return joined(QKV, f"{_LAYER}.attn.c_attn", of=shares, groups=groups)


_GPT2: Tensors = {**gpt2.ENDS, **in_layers(_LAYER, gpt2.NAMES)}
GPT_BIGCODE = _near_gpt2(
    "gpt_bigcode",
    gpt_bigcode,
    "multi_query",
    architecture="GPTBigCodeForCausalLM",
    tensors=lambda settings: {**_GPT2, **_bigcode_tensors(settings)},
    fixed={"scale_attn_weights": (True,)},
    readings={"multi_query": lambda model: model.blocks[0].attention.num_kv_heads == 1},
    known="attention_softmax_in_fp32 scale_attention_softmax_in_fp32 num_key_value_heads",
)


@variant_of(positioned, attention_bias=False, attention_out_bias=True, window=256)
def gpt_neo(
    cfg: fdl.Config[Trainer],
    *,
    window: int | None,
    attention_layers: Sequence[str] = ("global", "local"),
) -> None:
    """A decoder like GPT-2 whose scores are not scaled, with windows in `local` layers."""
    look_back(cfg, window, [SLIDING if kind == "local" else FULL for kind in attention_layers])
    for attention in find(cfg.model, lm.Attention):
        attention.scale = 1.0


def _kinds(hub: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer."""
    types = hub.get("attention_types", [[["global", "local"], 12]])
    return [kind for kinds, count in types for kind in kinds * count]


def _kinds_of(model: Any) -> list[str]:
    return ["local" if window else "global" for window in each_attention(model, "window")]


GPT_NEO = _near_normal(
    "gpt_neo",
    gpt_neo,
    "attention_layers",
    architecture="GPTNeoForCausalLM",
    settings={"num_layers": "num_layers", "num_heads": "num_heads", "window": "window_size"}
    | {"eps": "layer_norm_epsilon", "activation": "activation_function"},
    tensors={**_GPT2, **_projections(f"{_LAYER}.attn.attention")}
    | {"blocks.*.attention.out": f"{_LAYER}.attn.attention.out_proj"},
    defaults={"attention_layers": _kinds, "intermediate_size": four_widths},
    readings={"attention_layers": _kinds_of},
    known="attention_types",
    ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
)


@variant_of(normal, **_BIASED, seq_len=2048)
def bloom(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with ALiBi and a norm after the embedding."""
    fiddlers.use_alibi(cfg)
    (embedding,) = swap_all(cfg.model, lm.Embedding, by=lm.NormalizedEmbedding)
    embedding.norm = fdl.Config(nn.LayerNorm, HiddenDim.new(), eps=eps)


_DENSE = {"attention.out": "self_attention.dense", **NEOX_MLP}
_ENDS = {"embedding": "transformer.word_embeddings", "norm": "transformer.ln_f"}
_ENDS |= {"embedding.norm": "transformer.word_embeddings_layernorm"}
BLOOM = _near_normal(
    "bloom",
    bloom,
    settings={"num_layers": "n_layer", "num_heads": "n_head", "eps": "layer_norm_epsilon"}
    | {"seq_len": "seq_length"},
    tensors=lambda settings: {
        **_by_head(f"{_LAYER}.self_attention.query_key_value", settings),
        **in_layers(_LAYER, {**_DENSE, **_NORMS}),
        **_ENDS,
    },
    fixed={"apply_residual_connection_post_layernorm": (False,)},
    defaults={"intermediate_size": four_widths},
    aliases={"n_embed": "hidden_size"},
    known="skip_bias_add skip_bias_add_qkv offset_alibi bias_*",
)


@variant_of(normal, rotary_share=0.5, attention_bias=True, mlp_bias=True)
def phi(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with parallel blocks of one norm, and a bias of the logits."""
    fiddlers.use_parallel_block(cfg)
    for block in cfg.model.blocks:
        block.mlp_norm = None
    swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)


_PHI = {"attention.out": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
PHI = family(
    "phi",
    phi,
    "rotary_share activation",
    settings={"eps": "layer_norm_eps"},
    tensors={**in_layers(LAYER, _PHI), "norm": "model.final_layernorm"},
    fixed={"qk_layernorm": (False,), "head_dim": (None,)},
)


@variant_of(phi, rotary_share=1.0, attention_bias=False)
def gptj(cfg: fdl.Config[Trainer], *, rotary_dim: int | None = 64) -> None:
    """A decoder like Phi without biases in attention, which rotates adjacent dimensions."""
    for attention in find(cfg.model, lm.Attention):
        attention.rope.rotary_dim = rotary_dim


GPTJ_TENSORS: Tensors = {
    **without(gpt2.ENDS, "embedding.positions"),
    **_projections(f"{_LAYER}.attn"),
    **in_layers(_LAYER, {"attention.out": "attn.out_proj", "attention_norm": "ln_1"}),
    **in_layers(_LAYER, {"mlp.up": "mlp.fc_in", "mlp.down": "mlp.fc_out"}),
}
GPTJ = _near_gpt2(
    "gptj",
    gptj,
    "rotary_dim",
    architecture="GPTJForCausalLM",
    tensors=with_adjacent_pairs(GPTJ_TENSORS),
    readings={"rotary_dim": "blocks.0.attention.rope.rotary_dim"},
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    known="rotary scale_attn_weights",
)


@variant_of(decoder, rotary_share=0.5)
def nemotron(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with plain MLPs of squared ReLUs, and LayerNorm with offset weights."""
    fiddlers.use_squared_relu(cfg)
    fiddlers.use_layer_norm(cfg, eps=eps)
    swap_all(cfg.model, nn.LayerNorm, by=lm.OffsetLayerNorm)


NEMOTRON = family(
    "nemotron",
    nemotron,
    "attention_bias mlp_bias rotary_share",
    settings={"eps": "norm_eps"},
    fixed={"hidden_act": ("relu2",)},
    aliases={"rope_percent": "partial_rotary_factor"},
)


@variant_of(nemotron, attention_bias=True, mlp_bias=True)
def persimmon(cfg: fdl.Config[Trainer], *, eps: float, qk_norm: bool = True) -> None:
    """A decoder like Nemotron with plain LayerNorm, of queries and keys too if `qk_norm`."""
    swap_all(cfg.model, lm.OffsetLayerNorm, by=nn.LayerNorm)
    for attention in find(cfg.model, lm.Attention):
        if qk_norm:
            attention.query_norm = fdl.ArgFactory(nn.LayerNorm, HeadDim.new(), eps=eps)
            attention.key_norm = fdl.ArgFactory(nn.LayerNorm, HeadDim.new(), eps=eps)


_PERSIMMON = {f"attention.{name}_norm": f"self_attn.{name[0]}_layernorm" for name in _QK}
_PERSIMMON |= {"attention.out": "self_attn.dense"}
PERSIMMON = family(
    "persimmon",
    persimmon,
    "rotary_share",
    settings={"num_kv_heads": ..., "head_dim": ..., "eps": "layer_norm_eps"}
    | {"qk_norm": "qk_layernorm"},
    tensors=lambda settings: {
        **_by_head(f"{LAYER}.self_attn.query_key_value", settings),
        **in_layers(LAYER, {**_PERSIMMON, **NEOX_MLP}),
        "norm": "model.final_layernorm",
    },
    fixed={"hidden_act": ("relu2",)},
)


@variant_of(decoder, rotary_share=0.25, attention_out_bias=False)
def stablelm(
    cfg: fdl.Config[Trainer], *, eps: float, parallel: bool = False, qk_norm: bool = False
) -> None:
    """A decoder with LayerNorm, one for both branches of a parallel block if `parallel`.

    With `qk_norm`, queries and keys have a norm for each head.
    """
    fiddlers.use_layer_norm(cfg, eps=eps)
    if parallel:
        fiddlers.use_parallel_block(cfg)
        for block in cfg.model.blocks:
            block.mlp_norm = None
    if qk_norm:
        fiddlers.use_norm_per_head(cfg, eps=eps)


_HEAD_NORMS = {
    f"blocks.*.attention.{path}_norm.weight": Stacked(
        f"{LAYER}.self_attn.{path[0]}_layernorm.norms.{{expert}}.weight"
    )
    for path in _QK
}
STABLELM = family(
    "stablelm",
    stablelm,
    "rotary_share",
    architecture="StableLmForCausalLM",
    settings={"head_dim": ..., "eps": "layer_norm_eps", "attention_bias": "use_qkv_bias"}
    | {"parallel": "use_parallel_residual", "qk_norm": "qk_layernorm"},
    tensors=_HEAD_NORMS,
)


@variant_of(normal, **_BIASED, activation="relu", eps=1e-6, ffn_dim=8192)
def ctrl(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with sinusoidal positions, scaled embedding and a bias of the logits."""
    fiddlers.use_sinusoidal_positions(cfg)
    cfg.model.embedding.scale = fdl.Config(lm.root_of_width, hidden_dim=HiddenDim.new())
    swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)


_CTRL = {f"attention.{name}": f"multi_head_attention.W{name[0]}" for name in (*_QK, "value")}
_CTRL |= {"attention.out": "multi_head_attention.dense", "attention_norm": "layernorm1"}
_CTRL |= {"mlp_norm": "layernorm2", "mlp.up": "ffn.0", "mlp.down": "ffn.2"}
_CTRL_ENDS = {"embedding": "transformer.w", "norm": "transformer.layernorm"}
CTRL = _near_gpt2(
    "ctrl",
    ctrl,
    architecture="CTRLLMHeadModel",
    settings={"activation": ..., "eps": ..., "ffn_dim": "dff"},
    tensors={**in_layers(_LAYER, _CTRL), **_CTRL_ENDS},
    fixed={"layer_norm_epsilon": (1e-6,)},
    ignored=("*.pos_encoding",),
)


@variant_of(normal, tied=True, ffn_dim=0, activation="gelu")
def mpt(cfg: fdl.Config[Trainer], *, hidden_dim: int) -> None:
    """A decoder with ALiBi, LayerNorm without biases, and MLPs four times as wide as the stream."""
    fiddlers.use_alibi(cfg)
    for norm in find(cfg.model, nn.LayerNorm):
        norm.bias = False
    for block in cfg.model.blocks:
        block.mlp.ffn_dim = 4 * hidden_dim


_MPT_ATTENTION = {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention"}
_MPT_ATTENTION |= dict.fromkeys(("clip_qkv", "softmax_scale"))
_MPT_ATTENTION |= dict.fromkeys(("qk_ln", "prefix_lm", "attn_uses_sequence_id"), False)
_MPT_LAYER = "transformer.blocks.*"
_MPT = {"attention.out": "attn.out_proj", "mlp.up": "ffn.up_proj", "mlp.down": "ffn.down_proj"}
_MPT |= {"attention_norm": "norm_1", "mlp_norm": "norm_2"}
_MPT_ENDS = {"embedding": "transformer.wte", "norm": "transformer.norm_f"}
MPT = _near_normal(
    "mpt",
    mpt,
    settings={"ffn_dim": ..., "hidden_dim": "d_model", "num_layers": "n_layers"}
    | {"num_heads": "n_heads", "seq_len": "max_seq_len", "eps": "layer_norm_epsilon"},
    tensors=joined(QKV, f"{_MPT_LAYER}.attn.Wqkv", of=3) | in_layers(_MPT_LAYER, _MPT) | _MPT_ENDS,
    fixed={"no_bias": (True,), "expansion_ratio": (4,), "logit_scale": (None,)}
    | {f"attn_config.{key}": (value,) for key, value in _MPT_ATTENTION.items()},
    known="attn_config.attn_impl attn_config.is_encoder_decoder embedding_fraction learned_pos_emb"
    " norm_type",
)

_CODEGEN_ORDER = (QKV[0], QKV[2], QKV[1])
CODEGEN = replace(
    GPTJ,
    model_type="codegen",
    architecture="CodeGenForCausalLM",
    tensors=with_adjacent_pairs(
        {**GPTJ_TENSORS, **joined(_CODEGEN_ORDER, f"{_LAYER}.attn.qkv_proj", of=3, groups=4)}
    ),
    ignored=("*.attn.causal_mask",),
)


@variant_of(normal, **_BIASED, activation="gelu")
def xglm(cfg: fdl.Config[Trainer], *, scaled: bool = True) -> None:
    """A decoder with sinusoidal positions from 2 on; if `scaled`, with scaled embedding."""
    fiddlers.use_sinusoidal_positions(cfg)
    swap_all(cfg.model, lm.SinusoidalPositions, by=lm.OffsetSinusoidalPositions)
    if scaled:
        cfg.model.embedding.scale = fdl.Config(lm.root_of_width, hidden_dim=HiddenDim.new())


XGLM = BIOGPT.near(
    "xglm",
    xglm,
    architecture="XGLMForCausalLM",
    settings={"hidden_dim": "d_model", "num_layers": "num_layers", "num_heads": "attention_heads"}
    | {"ffn_dim": "ffn_dim", "activation": "activation_function"},
    tensors={**_opt_tensors("model", "layer_norm"), "unembedding": "lm_head"},
    defaults={"hidden_act": ..., "scale_embedding": ...},
    fixed={"pad_token_id": (1, 0, None)},  # the position of a greater number would have no vector
    ignored=("model.embed_positions.*",),
)


@variant_of(positioned, ffn_dim=0)
def gpt1(cfg: fdl.Config[Trainer], *, hidden_dim: int) -> None:
    """A decoder with norms of the stream behind each branch, and MLPs four times as wide as it.

    The norm behind a layer is also the norm before the next layer, whose branch is added to the
    norm's result.
    """
    (block,) = swap_all(cfg.model, lm.Block, by=lm.NormalizedResidualBlock)
    block.mlp.ffn_dim = 4 * hidden_dim
    first = clone_part(block)
    first.attention_norm = fdl.ArgFactory(nn.Identity)
    cfg.model.first_blocks = [first]


def _gpt1_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors, where a layer has the norm behind it, and fidgpt that before it."""
    last = settings["num_layers"] - 1
    norms = {f"blocks.{i + 1}.attention_norm": f"transformer.h.{i}.ln_2" for i in range(last)}
    ends = {"embedding": "transformer.tokens_embed", "norm": f"transformer.h.{last}.ln_2"}
    ends |= {"embedding.positions": "transformer.positions_embed"}
    return {**norms, **ends, "blocks.*.mlp_norm": f"{_LAYER}.ln_1"}


GPT1 = gpt2.HUB.near(
    "openai-gpt",
    gpt1,
    architecture="OpenAIGPTLMHeadModel",
    settings=dict.fromkeys(("ffn_dim", "activation", "scaled", "scaled_by_layer"), ...),
    tensors=_gpt1_tensors,
    fixed={"add_cross_attention": ..., "afn": ("gelu",)},
    known=("predict_special_tokens",),
    constants=dict.fromkeys(gpt2.HUB.constants, ...),
    ignored=("*.attn.bias",),
)


@variant_of(normal, tied=True, ffn_dim=0, activation="gelu")
def gpt_neox_japanese(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    num_layers: int,
    intermediate_multiple_size: int = 4,
) -> None:
    """A decoder with RoPE, LayerNorm and no biases except in the last layer's attention."""
    cfg.model.blocks = repeated(cfg.model.blocks, num_layers)
    for block in cfg.model.blocks:
        block.mlp.ffn_dim = intermediate_multiple_size * hidden_dim
    cfg.model.blocks[-1].attention.out_bias = True


def _neox_japanese_tensors(settings: Mapping[str, Any]) -> Tensors:
    model, last = "gpt_neox_japanese", settings["num_layers"] - 1
    layer = f"{model}.layers.*"
    return {
        **_by_head(f"{layer}.attention.query_key_value", settings),
        **in_layers(layer, {"attention.out": "attention.dense", **_NORMS, **NEOX_MLP}),
        f"blocks.{last}.attention.out.bias": f"{model}.layers.{last}.attention.dense_bias",
        "embedding": f"{model}.embed_in",
        "norm": f"{model}.final_layer_norm",
        "unembedding": "embed_out",
    }


def _multiple(model: Any) -> int:
    up = model.blocks[0].mlp.up
    return up.out_features // up.in_features


GPT_NEOX_JAPANESE = family(
    "gpt_neox_japanese",
    gpt_neox_japanese,
    "activation intermediate_multiple_size",
    architecture="GPTNeoXJapaneseForCausalLM",
    settings=dict.fromkeys(("num_kv_heads", "head_dim", "ffn_dim"), ...)
    | {"eps": "layer_norm_eps", "theta": "rotary_emb_base", "rotary_share": "rotary_pct"},
    tensors=_neox_japanese_tensors,
    readings={"intermediate_multiple_size": _multiple},
)
