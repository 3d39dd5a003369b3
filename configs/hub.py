"""Model families of the Hugging Face hub: their settings and tensors."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.configs.tensor_forms import (
    AsRow,
    Form,
    Interleaved,
    Joined,
    Paired,
    Piece,
    Same,
    Stacked,
    Transposed,
)

__all__ = [
    "AS_EXPERTS",
    "BIASES",
    "EXPERTS",
    "EXPERT_ROWS",
    "GATED",
    "KEYS",
    "LAYER",
    "NEOX_MLP",
    "QKV",
    "QK_NORMS",
    "SELECTION_BIAS",
    "SETTINGS",
    "SILU",
    "TENSORS",
    "AsRow",
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
    "experts_as",
    "four_widths",
    "in_layers",
    "joined",
    "keys",
    "linears",
    "llama3_rope",
    "mlp_as",
    "shared_as",
    "transposed",
    "with_adjacent_pairs",
    "without",
]

T = TypeVar("T")
Tensors = Mapping[str, str | Form]
SizedTensors = Callable[[Mapping[str, Any]], Tensors]
# The only activation that most families support.
SILU: Mapping[str, tuple[str, ...]] = {"hidden_act": ("silu",)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models, as described by its config.json and safetensors files.

    Attributes:
      model_type: `model_type` in config.json.
      architecture: name of the class in transformers; defaults to the model_type in other letters.
      config: returns the config of a model; its arguments are the settings.
      settings: key in config.json of each argument; `holder.key` is a key of the object `holder`.
        `layer_types`, `mixers`, `kinds`, `roped`, `thetas` and `attention_layers` have an item for
        each layer.
      tensors: form in the files of each fidgpt parameter; `*` is the layer, and a name without a
        final `weight` or `bias` covers both. If forms depend on sizes, a function from the settings
        to this mapping.
      switches: for keys of config.json, the boolean key that enables each; unless it is true, the
        key is ignored.
      fixed: keys of config.json and their supported values, the default first.
      defaults: values of missing keys of config.json that differ from Llama's; for `layer_types`, a
        pattern that repeats over the depth. A function computes the value of a missing key, or of
        one that is null, from the others, as from a key inside of another one.
      readings: how to read settings specific to this family from a model; see `readings.py` for the
        common ones.
      aliases: other names of keys of `settings`, in files or in `rope_parameters`, besides the
        usual names of sizes; see `other_names`.
      constants: keys that are written with these values but not read, as they only concern
        training.
      known: other keys of files, which `defaults` read, or which have no effect; `near` also takes
        them as one text, with spaces between them.
      ignored: patterns of names of other tensors in files, which are not read.
      holder: model_type that is written, with the family's keys in `text_config`, where the auto
        classes of transformers know the whole model only; empty writes the family's own.
      whole_heads: whether num_heads must divide hidden_dim.
      scalings: of a dynamic RoPE, by the name of the key that has their factor.
    """

    model_type: str
    architecture: str = ""
    config: Callable[..., fdl.Config]
    settings: Mapping[str, str]
    tensors: Tensors | SizedTensors
    switches: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    readings: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    known: Sequence[str] = ()
    ignored: Sequence[str] = ()
    holder: str = ""
    whole_heads: bool = False
    scalings: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.architecture:
            words = self.model_type.replace("-", "_").split("_")
            name = "".join(word[0].upper() + word[1:] for word in words)
            object.__setattr__(self, "architecture", f"{name}ForCausalLM")

    @property
    def other_names(self) -> dict[str, str]:
        """Names by which files may have a key of the family: `aliases`, and usual names of sizes.

        As in transformers, whose classes know the usual name of what they call otherwise.
        """
        ours = {
            KEYS[name]: self.settings[name] for name in RENAMED.split() if name in self.settings
        }
        others = {usual: key for usual, key in ours.items() if usual not in self.settings.values()}
        return others | dict(self.aliases)

    def complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings, and the defaults of the config for the others."""
        parameters = inspect.signature(self.config).parameters
        return {name: parameter.default for name, parameter in parameters.items()} | dict(settings)

    def near(
        self,
        model_type: str,
        config: Callable[..., fdl.Config] | None = None,
        names: str = "",
        /,
        *,
        architecture: str = "",
        settings: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> "Family":
        """Return a family that differs from this one in a few things.

        Mappings are added to this family's mappings, where `...` as a value takes a key away; so
        are `known` keys, and functions for tensors. Other values replace this family's values.

        Args:
          model_type: see `Family`.
          config: defaults to the config of this family.
          names: further settings with usual keys; see `keys`.
          architecture: see `Family`.
          settings: further settings with other keys.
          changes: of other attributes.
        """
        changes["settings"] = keys(names, **(settings or {}))
        if isinstance(known := changes.get("known"), str):
            changes["known"] = tuple(known.split())
        merged = {name: _merged(getattr(self, name), change) for name, change in changes.items()}
        merged |= {name: changes[name] for name in ("ignored",) if name in changes}
        config = self.config if config is None else config
        return replace(
            self, model_type=model_type, architecture=architecture, config=config, **merged
        )


def _merged(ours: Any, change: Any) -> Any:
    """Return an attribute of a family with a change; see `Family.near`."""
    if callable(ours) or callable(change):
        return lambda settings: {**_called(ours, settings), **_called(change, settings)}
    if isinstance(ours, Mapping):
        return {name: value for name, value in {**ours, **change}.items() if value is not ...}
    return (*ours, *change) if isinstance(ours, tuple) else change


def _called(tensors: Any, settings: Mapping[str, Any]) -> Tensors:
    called: Any = tensors(settings) if callable(tensors) else tensors
    return called


def without(names: Mapping[str, T], *left_out: str) -> dict[str, T]:
    """Return the names without the names of some settings."""
    return {name: key for name, key in names.items() if name not in left_out}


# The keys of config.json that most families have for settings, and the keys of mixtures of experts
# with the names of Qwen.
KEYS: Mapping[str, str] = {
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
    "local_theta": "rope_local_base_freq",
    "rotary_share": "partial_rotary_factor",
    "window": "sliding_window",
    "layer_types": "layer_types",
    "activation": "hidden_act",
    "embedding_scale": "embedding_multiplier",
    "logit_cap": "final_logit_softcapping",
    "qk_norm": "use_qk_norm",
    "expert_ffn_dim": "moe_intermediate_size",
    "shared_ffn_dim": "shared_expert_intermediate_size",
    "num_shared": "num_shared_experts",
    "top_k": "num_experts_per_tok",
    "normalize": "norm_topk_prob",
    "every": "decoder_sparse_step",
    "dense_layers": "mlp_only_layers",
    "mlp_types": "mlp_layer_types",
    "first_dense": "first_k_dense_replace",
    "num_groups": "n_group",
    "top_groups": "topk_group",
    "route_scale": "routed_scaling_factor",
    "mixers": "layer_types",
    "kinds": "layer_types",
    "thetas": "layer_rope_theta",
    "roped": "no_rope_layers",
    "nope_every": "no_rope_layer_interval",
}
# Settings whose usual key is another name of the key that a family has for them.
RENAMED = "hidden_dim num_layers num_heads seq_len theta rotary_share top_k normalize num_groups"


def keys(names: str = "", /, **others: Any) -> dict[str, Any]:
    """Return the key of each setting: the usual one of some names, and others.

    Args:
      names: of settings, between spaces; one that `KEYS` lacks is its own key.
      others: keys of further settings.
    """
    return {name: KEYS.get(name, name) for name in names.split()} | others


# The settings of Llama, with the keys of config.json that most families share.
SETTINGS: Mapping[str, str] = keys(
    "hidden_dim num_layers num_heads num_kv_heads head_dim ffn_dim vocab_size seq_len eps tied "
    "theta scaling"
)
# Settings of families whose projections may have biases.
BIASES: Mapping[str, str] = keys("attention_bias mlp_bias")

LAYER = "model.layers.*"
# The tensors of Llama, with the names that most families share.
TENSORS: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "blocks.*.attention_norm": f"{LAYER}.input_layernorm",
    "blocks.*.attention.query": f"{LAYER}.self_attn.q_proj",
    "blocks.*.attention.key": f"{LAYER}.self_attn.k_proj",
    "blocks.*.attention.value": f"{LAYER}.self_attn.v_proj",
    "blocks.*.attention.out": f"{LAYER}.self_attn.o_proj",
    "blocks.*.mlp_norm": f"{LAYER}.post_attention_layernorm",
    "blocks.*.mlp.gate": f"{LAYER}.mlp.gate_proj",
    "blocks.*.mlp.up": f"{LAYER}.mlp.up_proj",
    "blocks.*.mlp.down": f"{LAYER}.mlp.down_proj",
    "norm": "model.norm",
    "unembedding": "lm_head",
}

# Tensors of families that normalize queries and keys per head.
QK_NORMS: Mapping[str, str] = {
    "blocks.*.attention.query_norm": f"{LAYER}.self_attn.q_norm",
    "blocks.*.attention.key_norm": f"{LAYER}.self_attn.k_norm",
}

QKV = tuple(f"blocks.*.attention.{name}" for name in ("query", "key", "value"))
GATED = ("blocks.*.mlp.gate", "blocks.*.mlp.up")
EXPERT_ROWS = ("blocks.*.mlp.experts.gate", "blocks.*.mlp.experts.up")


def in_layers(layer: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a layer's tensors by the paths of parameters, from those inside of it."""
    return {f"blocks.*.{path}": f"{layer}.{name}" for path, name in names.items()}


def joined(
    paths: Sequence[str], name: str, *, of: int | Sequence[int], groups: int = 1, dim: int = 0
) -> dict[str, Form]:
    """Return the forms of parameters whose rows one tensor joins, in this order; see `Joined`."""
    return {path: Joined(name, i, of, dim=dim, groups=groups) for i, path in enumerate(paths)}


def transposed(tensors: Tensors) -> dict[str, Form]:
    """Return the forms of tensors that are transposed in files."""
    return {path: Transposed(form) for path, form in tensors.items()}


def with_adjacent_pairs(tensors: Tensors) -> SizedTensors:
    """Return the tensors as a function of the settings, where files pair adjacent rotary rows."""

    def paired(settings: Mapping[str, Any]) -> Tensors:
        head_dim = settings.get("head_dim") or settings["hidden_dim"] // settings["num_heads"]
        turning = settings.get("rotary_dim") or int(head_dim * settings.get("rotary_share", 1.0))
        rows = {**dict.fromkeys(QKV[:2], 0), **dict.fromkeys(QK_NORMS, -1)}
        pairs = {
            path: Paired(tensors[path], 0, turning, head_dim - turning, dim)
            for path, dim in rows.items()
            if path in tensors
        }
        return {**tensors, **pairs}

    return paired


# Tensors of plain MLPs with the names of GPT-NeoX.
NEOX_MLP = {"mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h"}


def llama3_rope(factor: float, length: int = 8192) -> dict[str, Any]:
    """Return Llama 3's `rope_scaling` of config.json."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": length,
    }


def linears(holder: str, names: str = "query key value out") -> dict[str, str]:
    """Return the names of linear layers, such as `q_proj`, by their names in fidgpt."""
    return {name: f"{holder}.{name[0]}_proj" for name in names.split()}


def experts_as(mlp: str, *names: str) -> dict[str, str | Form]:
    """Return the tensors of stacked experts, by their names in files for gate, up and down.

    Args:
      mlp: name of what holds them.
      names: default to the names in Qwen and DeepSeek.
    """
    parts = zip(("gate", "up", "down"), names or ("gate_proj", "up_proj", "down_proj"), strict=True)
    return {
        f"blocks.*.mlp.experts.{part}": Stacked(f"{mlp}.experts.{{expert}}.{name}.weight")
        for part, name in parts
    }


# Tensors of mixtures of experts, with the names of Qwen and DeepSeek.
EXPERTS: Tensors = {"blocks.*.mlp.router": f"{LAYER}.mlp.gate", **experts_as(f"{LAYER}.mlp")}


def four_widths(hub: Mapping[str, Any]) -> int:
    """Return the usual width of plain MLPs where config.json has none."""
    return 4 * (hub["n_embd"] if "n_embd" in hub else hub["hidden_size"])


# Where config.json has no width of dense MLPs, as all may be mixtures.
AS_EXPERTS = {"intermediate_size": lambda hub: hub["moe_intermediate_size"]}
SELECTION_BIAS = "blocks.*.mlp.router.selection_bias.bias"


def mlp_as(name: str, form: str = "{}_proj", *, path: str = "mlp") -> dict[str, str]:
    """Return the tensors of gated MLPs, by their name in a layer."""
    parts = ("gate", "up", "down")
    return {f"blocks.*.{path}.{part}": f"{LAYER}.{name}.{form.format(part)}" for part in parts}


shared_as = partial(mlp_as, path="mlp.shared")  # of experts for all tokens
