"""The model of a Levanter file."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from fidgpt.graph import suggest
from fidgpt.interop.levanter.section import BLOCK, Section

# What Levanter takes where a file says nothing.
_LLAMA: dict[str, Any] = {
    "seq_len": 2048,
    "hidden_dim": 4096,
    "intermediate_dim": 11008,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 32,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "activation_function": "silu",
}
_MISTRAL = _LLAMA | {
    "seq_len": 8192,
    "intermediate_dim": 14336,
    "num_kv_heads": 8,
    "layer_norm_epsilon": 1e-6,
}
_GEMMA = _LLAMA | {
    "seq_len": 8192,
    "hidden_dim": 2048,
    "intermediate_dim": 16384,
    "num_layers": 18,
    "num_heads": 8,
    "head_dim": 256,
    "num_kv_heads": 1,
    "tie_word_embeddings": True,
    "activation_function": "gelu_new",
}
_SCALING = f"{BLOCK}.attention.rope.scaling"
_OLD = "original_max_position_embeddings"


def _map_dense(section: Section, ffn_dim: int) -> None:
    section.plan.wanted.append((f"{BLOCK}.mlp.ffn_dim", ffn_dim))


def _map_experts(section: Section, ffn_dim: int) -> None:
    """Levanter divides what it punishes uneven loads with by the experts of a token."""
    plan, place = section.plan, f"{BLOCK}.mlp.balancing"
    count = section.take("n_routed_experts", 8, int)
    chosen = section.take("num_experts_per_tok", 2, int)
    plan.changes.append(f"fiddler:use_moe(num_experts={count}, top_k={chosen}, ffn_dim={ffn_dim})")
    if shared := section.take("n_shared_experts", 0, int):
        plan.changes.append(f"fiddler:use_shared_expert(ffn_dim={shared * ffn_dim})")
    plan.wanted += [
        (f"{place}[0].weight", _weight(section, "lbl_coef", 0.01) / max(chosen, 1)),
        (f"{place}[1].weight", _weight(section, "rzl_coef", 0.001)),
    ]


def _weight(section: Section, key: str, usual: float) -> float:
    """The weight of a loss; null turns the loss off."""
    is_off = key in section.left and section.left[key] is None
    return section.take(key, 0.0 if is_off else usual, float)


def _map_no_window(section: Section) -> None:
    """Attention looks at all that came before."""


def _map_window(section: Section) -> None:
    """A window that no training sequence fills is none."""
    window = section.take("sliding_window", 4096, int)
    if window < section.plan.said("seq_len"):
        section.plan.changes.append(f"fiddler:use_sliding_window(window={window}, every=0)")


def _map_switched_window(section: Section) -> None:
    """A window that is switched off says nothing; of one that is not, the rest is left over."""
    if not section.left.get("use_sliding_window"):
        for key in ("use_sliding_window", "sliding_window", "max_window_layers"):
            section.left.pop(key, None)


class Kind(NamedTuple):
    """What Levanter means by one value of `type`.

    Attributes:
      defaults: what it takes where a file says nothing.
      norm: the fiddler of its norms.
      further_norms: those of norms that it has beside them.
      changes: directives that it always asks for.
      wanted: values that it always has.
      map_mlp: reads what its MLPs are, whose width is given.
      map_window: reads how far its attention looks.
    """

    defaults: dict[str, Any]
    norm: str = "use_rms_norm"
    further_norms: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    wanted: tuple[tuple[str, Any], ...] = ()
    map_mlp: Callable[[Section, int], None] = _map_dense
    map_window: Callable[[Section], None] = _map_no_window


GATED = {
    "llama": Kind(_LLAMA),
    "mistral": Kind(_MISTRAL, map_window=_map_window),
    "mixtral": Kind(_MISTRAL, map_mlp=_map_experts),
    "gemma": Kind(
        _GEMMA, norm="use_offset_norm", changes=("use:model.embedding.scale=root_of_width",)
    ),
    "qwen": Kind(
        _LLAMA,
        wanted=((f"{BLOCK}.attention.bias", True), (f"{BLOCK}.attention.out_bias", False)),
        map_window=_map_switched_window,
    ),
    "qwen3": Kind(_LLAMA, further_norms=("use_qk_norm",), map_window=_map_switched_window),
}


def map_gated(section: Section, kind: Kind) -> None:
    """Adds to the plan what a section says of a kind of `GATED`."""
    plan, defaults = section.plan, kind.defaults
    if not section.take("tie_word_embeddings", defaults["tie_word_embeddings"], bool):
        plan.changes.append("fiddler:untie_embeddings")
    _map_activation(section, defaults["activation_function"])
    _map_norms(section, kind)
    kind.map_mlp(section, section.take("intermediate_dim", defaults["intermediate_dim"], int))
    plan.changes += kind.changes
    plan.wanted += kind.wanted
    kind.map_window(section)
    section.neutral(
        {"use_bias": False, "input_embedding_norm": False, "query_pre_attn_scalar": None}
    )
    _map_rope(section)


def _map_activation(section: Section, default: str) -> None:
    activation = section.take("activation_function", default, str)
    if activation == "gelu_new":
        section.plan.changes.append("fiddler:use_geglu")
    elif activation not in ("silu", "swish"):
        section.unmap("activation_function", activation, "MLPs stay gated by a SiLU")


def _map_norms(section: Section, kind: Kind) -> None:
    changes = section.plan.changes
    eps = section.take("layer_norm_epsilon", kind.defaults["layer_norm_epsilon"], float)
    has_weights = section.take("use_layer_norm_weight", True, bool)
    name = kind.norm if has_weights else "use_weightless_norm"
    if name != "use_rms_norm" or eps != 1e-5:
        changes.append(f"fiddler:{name}(eps={eps!r})")
    if section.take("hybrid_norm", False, bool):
        changes.append("fiddler:use_sandwich_norm")
    changes += [f"fiddler:{one}(eps={eps!r})" for one in kind.further_norms]


def _map_rope(section: Section) -> None:
    rope = section.section("rope")
    kind = rope.take("type", "default", str)
    theta = rope.take("theta", 500_000.0 if kind == "llama3" else 10_000.0, float)
    section.plan.wanted.append((f"{BLOCK}.attention.rope.theta", theta))
    if kind in ("default", "linear"):
        factor = rope.take("factor", 1.0, float)
        if factor != 1.0:
            section.plan.changes.append(f"use:{_SCALING}=LinearScaling(factor={factor!r})")
    elif kind == "llama3":
        _map_llama3(rope)
    elif kind == "yarn":
        _map_yarn(rope)
    else:
        rope.unmap("type", kind, "positions are turned by theta alone")
    rope.close()


def _map_llama3(rope: Section) -> None:
    said = {
        "factor": rope.take("factor", 8.0, float),
        "original_seq_len": rope.take(_OLD, 8192, int),
        "low_freq_factor": rope.take("low_freq_factor", 1.0, float),
        "high_freq_factor": rope.take("high_freq_factor", 4.0, float),
    }
    rope.plan.changes.append(f"use:{_SCALING}=Llama3Scaling({_told(said)})")


def _map_yarn(rope: Section) -> None:
    """By the paper; Levanter stretches otherwise, but for a factor of 1, at which both rest."""
    factor, over = rope.take("factor", 1.0, float), rope.take("mscale", 1.0, float)
    said = {
        "factor": factor,
        "original_seq_len": rope.take(_OLD, 2048, int),
        "beta_fast": rope.take("beta_fast", 32.0, float),
        "beta_slow": rope.take("beta_slow", 1.0, float),
    }
    if factor <= 0:
        rope.plan.mistakes.append(f"{rope.path}.factor is {factor}, and a number above 0 is asked.")
    elif factor != 1.0:
        said["amplitude"] = 1.0 if factor < 1 else math.sqrt(0.1 * over * math.log(factor) + 1)
        rope.plan.changes.append(f"use:{_SCALING}=YaRN({_told(said)})")
        rope.unmap("type", "yarn", "waves are stretched as in its paper, in Levanter further")


def _told(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


_SPEED = "how a device computes it is not said here"
_GPT2: dict[str, Any] = {"seq_len": 1024, "hidden_dim": 768, "num_layers": 12, "num_heads": 12}
_KINDS = (*GATED, "gpt2")
_RECOMPUTED = (True, "full", "recompute")
# Entries that change nothing at these values; null never does.
_OFF: dict[str, Any] = {
    "scan_layers": True,
    "gradient_checkpointing": False,
    "upcast_attn": False,
    "use_flash_attention": None,
    "attn_backend": None,
    "flash_attention_block_size": None,
    "cross_entropy_block_size": None,
    "tokenizer": None,
    "vocab_size": None,
}


def map_model(section: Section, seq_len: int | None) -> None:
    """Adds to the plan what brings our parts to the model of a section.

    Args:
      section: what `model:` says.
      seq_len: length of the training sequences, where the file says it elsewhere.
    """
    kind = section.take("type", "llama", str)
    if kind not in _KINDS:
        known = suggest(kind, _KINDS)
        section.plan.mistakes.append(f"model.type is {kind:.60}, which fidgpt cannot be. {known}")
        return
    gated = GATED.get(kind)
    _map_sizes(section, gated.defaults if gated else _GPT2, seq_len)
    if gated:
        map_gated(section, gated)
    else:
        _map_gpt2(section)
    std = section.take("initializer_range", 0.02, float)
    section.plan.wanted.append(("model.embedding.weight.init.std", std))
    if section.left.get("gradient_checkpointing") in _RECOMPUTED:
        del section.left["gradient_checkpointing"]
        section.plan.last.append("fiddler:use_recompute")
    section.neutral(_OFF)
    for key in ("use_flash_attention", "attn_backend", "flash_attention_block_size"):
        if key in section.left:
            section.unmap(key, section.left.pop(key), _SPEED)
    section.close()


def _map_sizes(section: Section, defaults: dict[str, Any], seq_len: int | None) -> None:
    name = "max_seq_len" if "max_seq_len" in section.left else "seq_len"
    longest = section.take(name, defaults["seq_len"], int)
    width = section.take("hidden_dim", defaults["hidden_dim"], int)
    heads = section.take("num_heads", defaults["num_heads"], int)
    head_dim = section.take("head_dim", defaults.get("head_dim"), int)
    if head_dim is None:
        if heads < 1 or width % heads:
            section.plan.mistakes.append(
                f"model.hidden_dim={width} is not a whole number of times num_heads={heads}: "
                "change one of them, or say head_dim."
            )
            return
        head_dim = width // heads
    section.plan.wanted += [
        ("seq_len", longest if seq_len is None else seq_len),
        ("model.hidden_dim", width),
        ("model.num_layers", section.take("num_layers", defaults["num_layers"], int)),
        (f"{BLOCK}.attention.head_dim", head_dim),
    ]
    if heads * head_dim != width:
        section.plan.wanted.append((f"{BLOCK}.attention.num_heads", heads))
    kv_heads = section.take("num_kv_heads", defaults.get("num_kv_heads", heads), int)
    if kv_heads != heads:
        section.plan.changes.append(f"fiddler:use_gqa(num_kv_heads={kv_heads})")


def _map_gpt2(section: Section) -> None:
    """GPT-2: learned positions, LayerNorm, GELU and biases."""
    plan = section.plan
    plan.config = "config:gpt2_124m"
    scale = section.take("mlp_scale", 4, int)
    if scale != 4:
        width = plan.said("model.hidden_dim")
        plan.wanted.append((f"{BLOCK}.mlp.ffn_dim", scale * width))
    eps = section.take("layer_norm_epsilon", 1e-5, float)
    if eps != 1e-5:
        plan.changes.append(f"fiddler:use_layer_norm(eps={eps!r})")
    if not section.take("use_bias", True, bool):
        places = [f"{BLOCK}.{part}" for part in ("attention_norm", "attention", "mlp_norm", "mlp")]
        plan.wanted += [(f"{place}.bias", False) for place in (*places, "model.norm")]
    plan.wanted += [
        ("model.dropout", section.take("embed_pdrop", 0.0, float)),
        (f"{BLOCK}.dropout", section.take("resid_pdrop", 0.0, float)),
        (f"{BLOCK}.attention.dropout", section.take("attn_pdrop", 0.0, float)),
    ]
    section.neutral({"activation_function": "gelu_new"})
    if section.take("scale_attn_by_inverse_layer_idx", False, bool):
        _scale_by_layer(section)


def _scale_by_layer(section: Section) -> None:
    """Scores of layer i, counted from 0, are divided by i + 1 besides."""
    plan = section.plan
    layers = plan.said("model.num_layers")
    scale = plan.said(f"{BLOCK}.attention.head_dim", 1) ** -0.5
    plan.last.append("fiddler:unroll")
    plan.last += [
        f"set:model.blocks[{i}].attention.scale={scale / (i + 1)!r}" for i in range(layers)
    ]
