"""How a family of models is described on the Hugging Face hub: its settings and its tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.configs.tensor_forms import (
    Form,
    Interleaved,
    Joined,
    Paired,
    Piece,
    Same,
    Stacked,
    Transposed,
)
from fidgpt.model import LanguageModel

__all__ = [
    "BIASES",
    "EXPERTS",
    "QK_NORMS",
    "SETTINGS",
    "TENSORS",
    "WINDOWS",
    "Family",
    "Form",
    "Interleaved",
    "Joined",
    "Paired",
    "Piece",
    "Same",
    "Stacked",
    "Tensors",
    "Transposed",
]

Tensors = Mapping[str, str | Form]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models, as their config.json and their safetensors files describe it.

    Attributes:
      model_type: as config.json says it.
      architecture: the class of transformers.
      config: makes the config of a member; its arguments are the settings, by our names.
      settings: for each of those arguments the key of config.json that says it; `a.b` is the key
        b of the mapping at a.
      tensors: for each of our parameters its form in the files; `*` stands for the layer, and a
        name that ends before the parameter's own (`weight`, `bias`) for all that are there. Where
        forms know sizes: a function that gives all this for the settings, by our names.
      switches: for keys of config.json the key of the bool that turns each one on; where it is
        not true, the key says nothing.
      fixed: keys of config.json that may have one of these values only, the first where it is
        silent: what the parts compute in one way.
      defaults: what keys of config.json mean where it is silent, beside what Llama's do; for
        `layer_types`, a pattern that repeats over the depth.
      readings: where in a model a setting is found, by our name, for those that are this family's
        own; see interop/hugging_face/compare.py for all others.
      constants: keys that are written with these values and not read, as they are for training.
      spare: patterns of names of further tensors that files may hold, and that are not read.
    """

    model_type: str
    architecture: str
    config: Callable[..., fdl.Config]
    settings: Mapping[str, str]
    tensors: Tensors | Callable[[Mapping[str, Any]], Tensors]
    switches: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    readings: Mapping[str, Callable[[LanguageModel], Any]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    spare: Sequence[str] = ()
    whole_heads: bool = False


# The settings of Llama, by the keys of config.json that most families share.
SETTINGS: Mapping[str, str] = {
    "hidden_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "seq_len": "max_position_embeddings",
    "eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "theta": "rope_theta",
    "scaling": "rope_scaling",
}

# Those of families whose projections may have biases.
BIASES: Mapping[str, str] = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}

# Those of families in which some layers, or all, have a sliding window.
WINDOWS: Mapping[str, str] = {"window": "sliding_window", "layer_types": "layer_types"}

_LAYER = "model.layers.*"
# The tensors of Llama, by the names that most families share.
TENSORS: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "blocks.*.attention_norm": f"{_LAYER}.input_layernorm",
    "blocks.*.attention.query": f"{_LAYER}.self_attn.q_proj",
    "blocks.*.attention.key": f"{_LAYER}.self_attn.k_proj",
    "blocks.*.attention.value": f"{_LAYER}.self_attn.v_proj",
    "blocks.*.attention.out": f"{_LAYER}.self_attn.o_proj",
    "blocks.*.mlp_norm": f"{_LAYER}.post_attention_layernorm",
    "blocks.*.mlp.gate": f"{_LAYER}.mlp.gate_proj",
    "blocks.*.mlp.up": f"{_LAYER}.mlp.up_proj",
    "blocks.*.mlp.down": f"{_LAYER}.mlp.down_proj",
    "norm": "model.norm",
    "unembedding": "lm_head",
}

# Those of families that normalise queries and keys head by head.
QK_NORMS: Mapping[str, str] = {
    "blocks.*.attention.query_norm": f"{_LAYER}.self_attn.q_norm",
    "blocks.*.attention.key_norm": f"{_LAYER}.self_attn.k_norm",
}

# Those of a mixture of experts, as Qwen and DeepSeek name them.
EXPERTS: Tensors = {
    "blocks.*.mlp.router": f"{_LAYER}.mlp.gate",
    "blocks.*.mlp.experts.gate": Stacked(f"{_LAYER}.mlp.experts.{{expert}}.gate_proj.weight"),
    "blocks.*.mlp.experts.up": Stacked(f"{_LAYER}.mlp.experts.{{expert}}.up_proj.weight"),
    "blocks.*.mlp.experts.down": Stacked(f"{_LAYER}.mlp.experts.{{expert}}.down_proj.weight"),
}
