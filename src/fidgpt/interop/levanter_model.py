"""The section `model:` of a Levanter file as directives: Llama, Mistral, Gemma and GPT-2."""

from typing import Any

from fidgpt.graph import suggest
from fidgpt.interop.levanter_section import Section

_BLOCK = "model.blocks[0]"
_SPEED = "how a device computes it is not said here"
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
_SMALLER_NORM = {"layer_norm_epsilon": 1e-6, "num_kv_heads": 8}
_MISTRAL = _LLAMA | _SMALLER_NORM | {"seq_len": 8192, "intermediate_dim": 14336}
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
_GPT2: dict[str, Any] = {"seq_len": 1024, "hidden_dim": 768, "num_layers": 12, "num_heads": 12}
_GATED = {"llama": _LLAMA, "mistral": _MISTRAL, "gemma": _GEMMA}
# Entries that change nothing at these values; null never does.
_OFF: dict[str, Any] = {
    "scan_layers": True,
    "gradient_checkpointing": False,
    "upcast_attn": False,
    "use_flash_attention": None,
    "attn_backend": None,
    "flash_attention_block_size": None,
    "cross_entropy_block_size": None,
    "hybrid_norm": False,
    "input_embedding_norm": False,
    "use_layer_norm_weight": True,
    "scale_attn_by_inverse_layer_idx": False,
    "query_pre_attn_scalar": None,
    "tokenizer": None,
}


def map_model(section: Section, seq_len: int | None) -> None:
    """Adds to the plan what brings our parts to the model of a section.

    Args:
      section: what `model:` says.
      seq_len: length of the training sequences, where the file says it elsewhere.
    """
    kind = section.take("type", "llama", str)
    if kind not in (*_GATED, "gpt2"):
        known = suggest(kind, (*_GATED, "gpt2"))
        section.plan.mistakes.append(f"model.type is {kind:.60}, which fidgpt cannot be. {known}")
        return
    defaults = _GPT2 if kind == "gpt2" else _GATED[kind]
    _map_sizes(section, defaults, seq_len)
    if kind == "gpt2":
        _map_gpt2(section)
    else:
        _map_gated(section, kind, defaults)
    std = section.take("initializer_range", 0.02, float)
    section.plan.wanted.append(("model.embedding.weight.init.std", std))
    for key in ("gradient_checkpointing", "attn_backend", "flash_attention_block_size"):
        if section.left.get(key) not in (None, False):
            section.unmap(key, section.left.pop(key), _SPEED)
    section.neutral(_OFF)
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
        (f"{_BLOCK}.attention.head_dim", head_dim),
    ]
    if heads * head_dim != width:
        section.plan.wanted.append((f"{_BLOCK}.attention.num_heads", heads))
    kv_heads = section.take("num_kv_heads", defaults.get("num_kv_heads", heads), int)
    if kv_heads != heads:
        section.plan.changes.append(f"fiddler:use_gqa(num_kv_heads={kv_heads})")


def _map_gated(section: Section, kind: str, defaults: dict[str, Any]) -> None:
    """Llama and what follows it: RoPE, RMSNorm, a gated MLP."""
    plan = section.plan
    ffn_dim = section.take("intermediate_dim", defaults["intermediate_dim"], int)
    plan.wanted.append((f"{_BLOCK}.mlp.ffn_dim", ffn_dim))
    eps = section.take("layer_norm_epsilon", defaults["layer_norm_epsilon"], float)
    if eps != 1e-5:
        plan.changes.append(f"fiddler:use_rms_norm(eps={eps!r})")
    if not section.take("tie_word_embeddings", defaults["tie_word_embeddings"], bool):
        plan.changes.append("fiddler:untie_embeddings")
    activation = section.take("activation_function", defaults["activation_function"], str)
    if activation != "silu":
        section.unmap("activation_function", activation, "MLPs stay gated by a SiLU")
    if kind == "gemma":
        section.unmap("type", kind, "fidgpt scales no embeddings, and norms weigh by w, not 1 + w")
    if kind == "mistral":
        window = section.take("sliding_window", 4096, int)
        if window < dict(plan.wanted).get("seq_len", 0):
            section.unmap("sliding_window", window, "attention sees all tokens so far")
    section.neutral({"use_bias": False})
    _map_rope(section)


def _map_rope(section: Section) -> None:
    rope = section.section("rope")
    kind = rope.take("type", "default", str)
    theta = rope.take("theta", 500_000.0 if kind == "llama3" else 10_000.0, float)
    section.plan.wanted.append((f"{_BLOCK}.attention.rope.theta", theta))
    if kind not in ("default", "linear"):
        rope.unmap("type", kind, "positions are turned by theta alone")
    rope.neutral({"factor": 1.0} if kind in ("default", "linear") else {})
    rope.close()


def _map_gpt2(section: Section) -> None:
    """GPT-2: learned positions, LayerNorm, GELU and biases."""
    plan = section.plan
    plan.config = "config:gpt2_124m"
    scale = section.take("mlp_scale", 4, int)
    if scale != 4:
        width = dict(plan.wanted).get("model.hidden_dim", 0)
        plan.wanted.append((f"{_BLOCK}.mlp.ffn_dim", scale * width))
    eps = section.take("layer_norm_epsilon", 1e-5, float)
    if eps != 1e-5:
        plan.changes.append(f"fiddler:use_layer_norm(eps={eps!r})")
    if not section.take("use_bias", True, bool):
        places = [f"{_BLOCK}.{part}" for part in ("attention_norm", "attention", "mlp_norm", "mlp")]
        plan.wanted += [(f"{place}.bias", False) for place in (*places, "model.norm")]
    plan.wanted += [
        ("model.dropout", section.take("embed_pdrop", 0.0, float)),
        (f"{_BLOCK}.dropout", section.take("resid_pdrop", 0.0, float)),
        (f"{_BLOCK}.attention.dropout", section.take("attn_pdrop", 0.0, float)),
    ]
    section.neutral({"activation_function": "gelu_new"})
