"""The section `model:` of a Levanter file as directives: which kind it is, its sizes, and GPT-2."""

from typing import Any

from fidgpt.graph import suggest
from fidgpt.interop.levanter.gated import GATED, map_gated
from fidgpt.interop.levanter.section import BLOCK, Section

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
