"""Families of before Llama, and later ones that are like them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import fiddle as fdl
from torch import nn

from fidgpt.configs import gpt2
from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import (
    BIASES,
    LAYER,
    MULTI_HEAD,
    NEOX_MLP,
    QKV,
    ROTARY,
    SETTINGS,
    SILU,
    TENSORS,
    Family,
    Stacked,
    Tensors,
    in_layers,
    joined,
    with_adjacent_pairs,
    without,
)
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, look_back
from fidgpt.fiddlers import (
    use_alibi,
    use_layer_norm,
    use_learned_positions,
    use_norm_per_head,
    use_parallel_block,
    use_sinusoidal_positions,
    use_squared_relu,
)
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import clone_part, find, swap_all
from fidgpt.model import (
    Attention,
    BiasedUnembedding,
    Block,
    Embedding,
    LearnedPositions,
    NormalizedEmbedding,
    NormalizedResidualBlock,
    OffsetLayerNorm,
    OffsetPositions,
    OffsetSinusoidalPositions,
    ParallelBlock,
    SinusoidalPositions,
    Unembedding,
    root_of_width,
)
from fidgpt.tags import HeadDim, HiddenDim, NumKVHeads
from fidgpt.train import Trainer

_QKV = ("query", "key", "value")
# Settings of families without RoPE.
_UNROTATED: Mapping[str, str] = without(MULTI_HEAD, "theta", "scaling")
# Keys of families that name their sizes as GPT-2 does.
_SIZES: Mapping[str, str] = {
    "hidden_dim": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "ffn_dim": "n_inner",
    "seq_len": "n_positions",
    "eps": "layer_norm_epsilon",
    "activation": "activation_function",
}
_OTHER_SIZES: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_WIDE = {"n_inner": lambda found: 4 * found["n_embd"]}


@variant_of(decoder)
def normal(cfg: fdl.Config[Trainer], *, eps: float, activation: str = "gelu_new") -> None:
    """A decoder with LayerNorm and plain MLPs."""
    use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)


@variant_of(normal, tied=True, attention_bias=True, mlp_bias=True)
def positioned(cfg: fdl.Config[Trainer]) -> None:
    """A decoder like GPT-2, with learned positions."""
    use_learned_positions(cfg)


@variant_of(positioned, activation="relu")
def opt(
    cfg: fdl.Config[Trainer],
    *,
    hidden_dim: int,
    projected_dim: int | None = None,
    scaled: bool = False,
) -> None:
    """A decoder whose table of positions begins with two rows of none.

    Raises:
      ValueError: tokens have another width than the residual stream.
    """
    if projected_dim not in (None, hidden_dim):
        raise ValueError(f"{projected_dim=} must be {hidden_dim=}: there is no projection.")
    swap_all(cfg.model, LearnedPositions, by=OffsetPositions)
    if scaled:
        cfg.model.embedding.scale = fdl.Config(root_of_width, hidden_dim=HiddenDim.new())


def _opt_tensors(model: str, final_norm: str) -> Tensors:
    attention = {f"attention.{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key")}
    return {
        "embedding": f"{model}.embed_tokens",
        "embedding.positions": f"{model}.embed_positions",
        **in_layers(f"{model}.layers.*", attention),
        **in_layers(
            f"{model}.layers.*",
            {
                "attention.value": "self_attn.v_proj",
                "attention.out": "self_attn.out_proj",
                "attention_norm": "self_attn_layer_norm",
                "mlp_norm": "final_layer_norm",
                "mlp.up": "fc1",
                "mlp.down": "fc2",
            },
        ),
        "norm": f"{model}.{final_norm}",
        "unembedding": "lm_head",
    }


OPT = Family(
    model_type="opt",
    architecture="OPTForCausalLM",
    config=opt,
    settings={**without(_UNROTATED, "eps")}
    | {"ffn_dim": "ffn_dim", "activation": "activation_function"}
    | {"projected_dim": "word_embed_proj_dim"},
    tensors=_opt_tensors("model.decoder", "final_layer_norm"),
    fixed={
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "enable_bias": (True,),
        "layer_norm_elementwise_affine": (True,),
    },
    readings={"projected_dim": lambda model: model.embedding.weight.shape[1]},
    known=("init_std", "layerdrop"),
)
BIOGPT = Family(
    model_type="biogpt",
    architecture="BioGptForCausalLM",
    config=opt,
    settings=without(_UNROTATED, "eps") | {"activation": "hidden_act", "scaled": "scale_embedding"},
    tensors={**_opt_tensors("biogpt", "layer_norm"), "unembedding": "output_projection"},
    defaults={"hidden_act": "gelu", "scale_embedding": True},
    readings={"scaled": lambda model: model.embedding.scale != 1.0},
    known=("layerdrop", "layer_norm_eps"),  # transformers' norms have the default of torch
)


@variant_of(positioned)
def gpt_bigcode(cfg: fdl.Config[Trainer], *, multi_query: bool = True) -> None:
    """A decoder like GPT-2 in which all queries share a key and a value."""
    if multi_query:
        for attention in find(cfg.model, Attention):
            attention.num_kv_heads = NumKVHeads.new(1)


_GPT2_LAYER: Mapping[str, str] = {
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_GPT2_ENDS: Mapping[str, str] = {
    "embedding": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "unembedding": "lm_head",
}


def _bigcode_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; one joins all queries with one key and value, or those of each head."""
    layer, heads = "transformer.h.*", settings["num_heads"]
    shares, groups = ((heads, 1, 1), 1) if settings["multi_query"] else ((1, 1, 1), heads)
    return {
        **_GPT2_ENDS,
        **in_layers(layer, _GPT2_LAYER),
        **joined(QKV, f"{layer}.attn.c_attn", of=shares, groups=groups),
    }


GPT_BIGCODE = Family(
    model_type="gpt_bigcode",
    architecture="GPTBigCodeForCausalLM",
    config=gpt_bigcode,
    settings={**_UNROTATED, **_SIZES, "multi_query": "multi_query"},
    tensors=_bigcode_tensors,
    fixed={"scale_attn_weights": (True,)},
    defaults={**_WIDE, "activation_function": "gelu_pytorch_tanh"},
    aliases=_OTHER_SIZES,
    readings={"multi_query": lambda model: model.blocks[0].attention.num_kv_heads == 1},
    known=(
        *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner"),
        *("max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache"),
        *("num_key_value_heads", "validate_runner_input"),
    ),
)


@variant_of(positioned, attention_bias=False, attention_out_bias=True, window=256)
def gpt_neo(
    cfg: fdl.Config[Trainer], *, window: int | None, kinds: Sequence[str] = ("global", "local")
) -> None:
    """A decoder like GPT-2 whose scores are not scaled, with windows in `local` layers."""
    look_back(cfg, window, [SLIDING if kind == "local" else FULL for kind in kinds])
    for attention in find(cfg.model, Attention):
        attention.scale = 1.0


def _kinds(found: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer."""
    types = found.get("attention_types", [[["global", "local"], 12]])
    return [kind for kinds, count in types for kind in kinds * count]


GPT_NEO = Family(
    model_type="gpt_neo",
    architecture="GPTNeoForCausalLM",
    config=gpt_neo,
    settings={**_UNROTATED, "num_layers": "num_layers", "num_heads": "num_heads"}
    | {"eps": "layer_norm_epsilon", "activation": "activation_function"}
    | {"window": "window_size", "kinds": "attention_layers"},
    tensors={
        **_GPT2_ENDS,
        **in_layers("transformer.h.*", _GPT2_LAYER),
        **in_layers(
            "transformer.h.*.attn.attention",
            {f"attention.{name}": f"{name[0]}_proj" for name in ("query", "key", "value")},
        ),
        "blocks.*.attention.out": "transformer.h.*.attn.attention.out_proj",
    },
    defaults={
        "attention_layers": _kinds,
        "intermediate_size": lambda found: 4 * found["hidden_size"],
    },
    readings={
        "kinds": lambda model: [
            "global" if block.attention.window is None else "local" for block in model.blocks
        ],
    },
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    known=("attention_types",),
    ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
)


@variant_of(normal, tied=True, attention_bias=True, mlp_bias=True, seq_len=2048)
def bloom(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with ALiBi and a norm after the embedding."""
    use_alibi(cfg)
    (embedding,) = swap_all(cfg.model, Embedding, by=NormalizedEmbedding)
    embedding.norm = fdl.Config(nn.LayerNorm, HiddenDim.new(), eps=eps)


def _bloom_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; each head has its own queries, keys and values."""
    layer = "transformer.h.*"
    return {
        "embedding": "transformer.word_embeddings",
        "embedding.norm": "transformer.word_embeddings_layernorm",
        **joined(
            QKV, f"{layer}.self_attention.query_key_value", of=3, groups=settings["num_heads"]
        ),
        **in_layers(
            layer,
            {
                "attention.out": "self_attention.dense",
                "attention_norm": "input_layernorm",
                "mlp_norm": "post_attention_layernorm",
                **NEOX_MLP,
            },
        ),
        "norm": "transformer.ln_f",
        "unembedding": "lm_head",
    }


BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    config=bloom,
    settings={**_UNROTATED, "num_layers": "n_layer", "num_heads": "n_head"}
    | {"eps": "layer_norm_epsilon", "seq_len": "seq_length"},
    tensors=_bloom_tensors,
    fixed={"apply_residual_connection_post_layernorm": (False,)},
    defaults={"intermediate_size": lambda found: 4 * found["hidden_size"]},
    aliases={
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    known=("slow_but_exact", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi", "bias_*"),
)


@variant_of(normal, rotary_share=0.5, attention_bias=True, mlp_bias=True)
def phi(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with parallel blocks of one norm, and a bias of the logits."""
    use_parallel_block(cfg)
    for block in cfg.model.blocks:
        block.mlp_norm = None
    swap_all(cfg.model, Unembedding, by=BiasedUnembedding)


PHI = Family(
    model_type="phi",
    architecture="PhiForCausalLM",
    config=phi,
    settings={**SETTINGS, **ROTARY, "eps": "layer_norm_eps", "activation": "hidden_act"},
    tensors={
        **TENSORS,
        **in_layers(
            LAYER, {"attention.out": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
        ),
        "norm": "model.final_layernorm",
    },
    fixed={"qk_layernorm": (False,), "head_dim": (None,)},
)


@variant_of(phi, rotary_share=1.0, attention_bias=False)
def gptj(cfg: fdl.Config[Trainer], *, rotary_dim: int | None = 64) -> None:
    """A decoder like Phi without biases in attention, which rotates adjacent dimensions."""
    for attention in find(cfg.model, Attention):
        attention.rope.rotary_dim = rotary_dim


GPTJ_TENSORS: Tensors = {
    **without(_GPT2_ENDS, "embedding.positions"),
    **in_layers(
        "transformer.h.*",
        {
            "attention.query": "attn.q_proj",
            "attention.key": "attn.k_proj",
            "attention.value": "attn.v_proj",
            "attention.out": "attn.out_proj",
            "attention_norm": "ln_1",
            "mlp.up": "mlp.fc_in",
            "mlp.down": "mlp.fc_out",
        },
    ),
}
GPTJ = Family(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    config=gptj,
    settings={**_UNROTATED, **_SIZES, "rotary_dim": "rotary_dim"},
    tensors=with_adjacent_pairs(GPTJ_TENSORS),
    defaults=_WIDE,
    aliases=_OTHER_SIZES,
    readings={"rotary_dim": lambda model: model.blocks[0].attention.rope.rotary_dim},
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    known=("rotary", "scale_attn_weights"),
)


@variant_of(decoder, rotary_share=0.5)
def nemotron(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with plain MLPs of squared ReLUs, and LayerNorm with offset weights."""
    use_squared_relu(cfg)
    use_layer_norm(cfg, eps=eps)
    swap_all(cfg.model, nn.LayerNorm, by=OffsetLayerNorm)


NEMOTRON = Family(
    model_type="nemotron",
    architecture="NemotronForCausalLM",
    config=nemotron,
    settings={**SETTINGS, **BIASES, **ROTARY, "eps": "norm_eps"},
    tensors=TENSORS,
    fixed={"hidden_act": ("relu2",)},
    aliases={"rope_percent": "partial_rotary_factor"},
)


@variant_of(nemotron, attention_bias=True, mlp_bias=True)
def persimmon(cfg: fdl.Config[Trainer], *, eps: float, qk_norm: bool = True) -> None:
    """A decoder like Nemotron with plain LayerNorm, of queries and keys too if `qk_norm`."""
    swap_all(cfg.model, OffsetLayerNorm, by=nn.LayerNorm)
    for attention in find(cfg.model, Attention):
        if qk_norm:
            attention.query_norm = fdl.ArgFactory(nn.LayerNorm, HeadDim.new(), eps=eps)
            attention.key_norm = fdl.ArgFactory(nn.LayerNorm, HeadDim.new(), eps=eps)


def _persimmon_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; each head has its own queries, keys and values."""
    return {
        **TENSORS,
        **joined(QKV, f"{LAYER}.self_attn.query_key_value", of=3, groups=settings["num_heads"]),
        **in_layers(
            LAYER,
            {
                "attention.out": "self_attn.dense",
                "attention.query_norm": "self_attn.q_layernorm",
                "attention.key_norm": "self_attn.k_layernorm",
                **NEOX_MLP,
            },
        ),
        "norm": "model.final_layernorm",
    }


PERSIMMON = Family(
    model_type="persimmon",
    architecture="PersimmonForCausalLM",
    config=persimmon,
    settings={**MULTI_HEAD, **ROTARY, "eps": "layer_norm_eps", "qk_norm": "qk_layernorm"},
    tensors=_persimmon_tensors,
    fixed={"hidden_act": ("relu2",)},
    readings={"qk_norm": lambda model: model.blocks[0].attention.query_norm is not None},
)


@variant_of(decoder, rotary_share=0.25, attention_out_bias=False)
def stablelm(
    cfg: fdl.Config[Trainer], *, eps: float, parallel: bool = False, qk_norm: bool = False
) -> None:
    """A decoder with LayerNorm, one for both branches of a parallel block if `parallel`.

    With `qk_norm`, queries and keys have a norm for each head.
    """
    use_layer_norm(cfg, eps=eps)
    if parallel:
        use_parallel_block(cfg)
        for block in cfg.model.blocks:
            block.mlp_norm = None
    if qk_norm:
        use_norm_per_head(cfg, eps=eps)


_HEAD_NORMS = {
    f"blocks.*.attention.{path}_norm.weight": Stacked(
        f"{LAYER}.self_attn.{path[0]}_layernorm.norms.{{expert}}.weight"
    )
    for path in ("query", "key")
}
STABLELM = Family(
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    config=stablelm,
    settings={**without(SETTINGS, "head_dim"), **ROTARY, "eps": "layer_norm_eps"}
    | {"attention_bias": "use_qkv_bias", "parallel": "use_parallel_residual"}
    | {"qk_norm": "qk_layernorm"},
    tensors={**TENSORS, **_HEAD_NORMS},
    fixed=SILU,
    readings={"parallel": lambda model: isinstance(model.blocks[0], ParallelBlock)}
    | {"qk_norm": lambda model: model.blocks[0].attention.query_norm is not None},
)


@variant_of(normal, tied=True, attention_bias=True, mlp_bias=True, activation="relu", eps=1e-6)
def ctrl(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with sinusoidal positions, scaled embedding and a bias of the logits."""
    use_sinusoidal_positions(cfg)
    cfg.model.embedding.scale = fdl.Config(root_of_width, hidden_dim=HiddenDim.new())
    swap_all(cfg.model, Unembedding, by=BiasedUnembedding)


CTRL = Family(
    model_type="ctrl",
    architecture="CTRLLMHeadModel",
    config=ctrl,
    settings={**without(_UNROTATED, "eps"), **without(_SIZES, "ffn_dim", "eps", "activation")}
    | {"ffn_dim": "dff"},
    tensors={
        "embedding": "transformer.w",
        "norm": "transformer.layernorm",
        "unembedding": "lm_head",
        **in_layers(
            "transformer.h.*",
            {
                **{f"attention.{one}": f"multi_head_attention.W{one[0]}" for one in _QKV},
                "attention.out": "multi_head_attention.dense",
                "attention_norm": "layernorm1",
                "mlp_norm": "layernorm2",
                "mlp.up": "ffn.0",
                "mlp.down": "ffn.2",
            },
        ),
    },
    fixed={"layer_norm_epsilon": (1e-6,)},
    defaults={"tie_word_embeddings": True, "dff": 8192},
    aliases=_OTHER_SIZES,
    ignored=("*.pos_encoding",),
)


@variant_of(normal, tied=True, ffn_dim=0, activation="gelu")
def mpt(
    cfg: fdl.Config[Trainer], *, hidden_dim: int, attention: Mapping[str, Any] | None = None
) -> None:
    """A decoder with ALiBi, LayerNorm without biases, and MLPs four times as wide as the stream.

    Raises:
      ValueError: attention is of another kind.
    """
    computed = {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention"}
    computed |= dict.fromkeys(("clip_qkv", "softmax_scale"))
    computed |= dict.fromkeys(("qk_ln", "prefix_lm", "attn_uses_sequence_id"), False)
    given = dict(attention or {})
    for key in computed.keys() & given.keys():
        if given[key] != computed[key]:
            raise ValueError(f"attn_config has {key}={given[key]!r}, not {computed[key]!r}.")
    use_alibi(cfg)
    for norm in find(cfg.model, nn.LayerNorm):
        norm.bias = False
    for block in cfg.model.blocks:
        block.mlp.ffn_dim = 4 * hidden_dim


MPT = Family(
    model_type="mpt",
    architecture="MptForCausalLM",
    config=mpt,
    settings={**without(_UNROTATED, "ffn_dim"), "hidden_dim": "d_model", "num_layers": "n_layers"}
    | {"num_heads": "n_heads", "seq_len": "max_seq_len", "eps": "layer_norm_epsilon"}
    | {"attention": "attn_config"},
    tensors={"embedding": "transformer.wte", "norm": "transformer.norm_f"}
    | {"unembedding": "lm_head", **joined(QKV, "transformer.blocks.*.attn.Wqkv", of=3)}
    | {
        **in_layers(
            "transformer.blocks.*",
            {"attention.out": "attn.out_proj", "attention_norm": "norm_1", "mlp_norm": "norm_2"}
            | {"mlp.up": "ffn.up_proj", "mlp.down": "ffn.down_proj"},
        )
    },
    fixed={"no_bias": (True,), "expansion_ratio": (4,), "logit_scale": (None,)},
    defaults={"tie_word_embeddings": True},
    readings={"attention": lambda _: {"alibi": True}},
    aliases={"hidden_size": "d_model", "num_attention_heads": "n_heads"}
    | {"num_hidden_layers": "n_layers", "max_position_embeddings": "max_seq_len"},
    known=(
        *("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "norm_type"),
        "verbose",
    ),
)

_CODEGEN_ORDER = (QKV[0], QKV[2], QKV[1])
CODEGEN = replace(
    GPTJ,
    model_type="codegen",
    architecture="CodeGenForCausalLM",
    tensors=with_adjacent_pairs(
        {**GPTJ_TENSORS, "blocks.*.attention.out": "transformer.h.*.attn.out_proj"}
        | {**joined(_CODEGEN_ORDER, "transformer.h.*.attn.qkv_proj", of=3, groups=4)}
    ),
    ignored=("*.attn.causal_mask",),
)


@variant_of(normal, tied=True, attention_bias=True, mlp_bias=True, activation="gelu")
def xglm(cfg: fdl.Config[Trainer], *, scaled: bool = True) -> None:
    """A decoder with sinusoidal positions from 2 on; if `scaled`, with scaled embedding."""
    use_sinusoidal_positions(cfg)
    swap_all(cfg.model, SinusoidalPositions, by=OffsetSinusoidalPositions)
    if scaled:
        cfg.model.embedding.scale = fdl.Config(root_of_width, hidden_dim=HiddenDim.new())


XGLM = replace(
    BIOGPT,
    model_type="xglm",
    architecture="XGLMForCausalLM",
    config=xglm,
    settings={**BIOGPT.settings, "hidden_dim": "d_model", "num_layers": "num_layers"}
    | {"num_heads": "attention_heads", "ffn_dim": "ffn_dim", "activation": "activation_function"},
    tensors=_opt_tensors("model", "layer_norm"),
    defaults={"tie_word_embeddings": True, "activation_function": "gelu", "scale_embedding": True},
    aliases={"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
    | {"num_attention_heads": "attention_heads"},
    known=("init_std", "layerdrop"),
    ignored=("model.embed_positions.*",),
)


@variant_of(positioned, ffn_dim=0)
def gpt1(cfg: fdl.Config[Trainer], *, hidden_dim: int) -> None:
    """A decoder with norms of the stream behind each branch, and MLPs four times as wide as it.

    The norm behind a layer is that before the next one, of which the branch is added to its result.
    """
    (block,) = swap_all(cfg.model, Block, by=NormalizedResidualBlock)
    block.mlp.ffn_dim = 4 * hidden_dim
    first = clone_part(block)
    first.attention_norm = fdl.ArgFactory(nn.Identity)
    cfg.model.first_blocks = [first]


def _gpt1_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors, where a layer has the norm behind it, and fidgpt that before it."""
    layer, last = "transformer.h.*", settings["num_layers"] - 1
    norms = {f"blocks.{i + 1}.attention_norm": f"transformer.h.{i}.ln_2" for i in range(last)}
    return (
        {**cast(Tensors, gpt2.HUB.tensors), **norms, "embedding": "transformer.tokens_embed"}
        | {"embedding.positions": "transformer.positions_embed"}
        | {"blocks.*.mlp_norm": f"{layer}.ln_1"}
        | {"norm": f"transformer.h.{last}.ln_2"}
    )


GPT1 = Family(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    config=gpt1,
    settings=without({**_UNROTATED, **_SIZES}, "ffn_dim", "activation"),
    tensors=_gpt1_tensors,
    fixed={"afn": ("gelu",)},
    defaults={"tie_word_embeddings": True},
    aliases=_OTHER_SIZES,
    known=("predict_special_tokens", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    ignored=("*.attn.bias",),
)


@variant_of(normal, tied=True, ffn_dim=0, activation="gelu")
def gpt_neox_japanese(
    cfg: fdl.Config[Trainer], *, hidden_dim: int, num_layers: int, multiple: int = 4
) -> None:
    """A decoder with RoPE, LayerNorm and no biases but that of the last layer's attention."""
    cfg.model.blocks = repeated(cfg.model.blocks, num_layers)
    for block in cfg.model.blocks:
        block.mlp.ffn_dim = multiple * hidden_dim
    cfg.model.blocks[-1].attention.out_bias = True


def _neox_japanese_tensors(settings: Mapping[str, Any]) -> Tensors:
    model, last = "gpt_neox_japanese", settings["num_layers"] - 1
    layer = f"{model}.layers.*"
    return {
        "embedding": f"{model}.embed_in",
        "norm": f"{model}.final_layer_norm",
        "unembedding": "embed_out",
        **joined(QKV, f"{layer}.attention.query_key_value", of=3, groups=settings["num_heads"]),
        **in_layers(
            layer,
            {"attention.out": "attention.dense", "attention_norm": "input_layernorm"}
            | {"mlp_norm": "post_attention_layernorm", **NEOX_MLP},
        ),
        f"blocks.{last}.attention.out.bias": f"{model}.layers.{last}.attention.dense_bias",
    }


GPT_NEOX_JAPANESE = Family(
    model_type="gpt_neox_japanese",
    architecture="GPTNeoXJapaneseForCausalLM",
    config=gpt_neox_japanese,
    settings={**without(MULTI_HEAD, "ffn_dim"), **ROTARY, "eps": "layer_norm_eps"}
    | {"activation": "hidden_act", "multiple": "intermediate_multiple_size"}
    | {"theta": "rotary_emb_base", "rotary_share": "rotary_pct"},
    tensors=_neox_japanese_tensors,
    defaults={"tie_word_embeddings": True},
    aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    readings={
        "multiple": lambda model: (
            model.blocks[0].mlp.up.out_features // model.blocks[0].mlp.up.in_features
        ),
    },
)
