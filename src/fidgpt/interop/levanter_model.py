"""Sections of a Levanter file, the directives collected from them, and its model."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fidgpt.graph import suggest
from fidgpt.graph.errors import raise_all
from fidgpt.graph.hints import fits
from fidgpt.graph.values import as_asked
from fidgpt.graph.yaml import Foreign

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(slots=True)
class Plan:
    """The state of a conversion.

    Attributes:
      config: the named config to start from.
      changes: directives that replace components.
      wanted: values for paths of the graph.
      last: directives to apply once those values are set.
      unmapped: paths of the file for which fidgpt has no equivalent, each with its value and why.
      errors: errors in the file.
      sections: the sections read so far.
    """

    config: str = "config:base"
    changes: list[str] = field(default_factory=list)
    wanted: dict[str, Any] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    sections: "list[Section]" = field(default_factory=list)

    def close(self) -> None:
        """Note what is left in a section and neither null nor neutral, and raise all errors."""
        for section in self.sections:
            items = section.left.items()
            left = [key for key, value in items if section.neutral.get(key, ...) != value]
            section.drop(left, "fidgpt has no equivalent")
        raise_all(self.errors)


class Section:
    """A mapping of the file, from which each entry is removed once it is read.

    Args:
      plan: gets what is found.
      path: of the mapping.
      written: its content.
      neutral: entries that change nothing at these values.
    """

    def __init__(
        self, plan: Plan, path: str, written: Any, neutral: Mapping[str, Any] | None = None
    ) -> None:
        self.plan = plan
        self.path = path
        self.neutral = neutral or {}
        self.left: dict[Any, Any] = {}
        plan.sections.append(self)
        if isinstance(written, Foreign):
            plan.unmapped.append(f"{path}: {written.tag} {written.value:.60} (is another file)")
        elif isinstance(written, dict):
            self.left = dict(written)
        elif written is not None:
            plan.errors.append(f"{path} is {shown(written)}, but must be a mapping.")

    def section(self, key: str, neutral: Mapping[str, Any] | None = None) -> "Section":
        """Return the section inside this one; empty if unset."""
        return self.inside(key, self.left.pop(key, None), neutral)

    def inside(self, key: str, written: Any, neutral: Mapping[str, Any] | None = None) -> "Section":
        """Return a value of this section as a section of its own."""
        return Section(self.plan, self._at(key), written, neutral)

    def take(self, key: str, default: Any, kind: type | None = None) -> Any:
        """Remove and return a value of its default's type; the default replaces null."""
        value = self.left.pop(key, None)
        if value is None:
            return default
        kind = kind or type(default)
        value = as_asked(value, kind)
        if fits(value, kind):
            return value
        self.error(key, value, _WORDS[kind])
        return default

    def want(self, rows: Mapping[str, tuple[Any, str]]) -> None:
        """Map keys to paths; `rows` has the Levanter default and the path of each key."""
        for key, (default, path) in rows.items():
            self.plan.wanted[path] = self.take(key, default, int if default is None else None)

    def change(self, name: str, /, **arguments: Any) -> None:
        """Add a directive such as `fiddler:use_x(a=1)`."""
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        self.plan.changes.append(f"{name}({text})" if text else name)

    def error(self, key: str, value: Any, wanted: str) -> None:
        """Record an invalid value."""
        self.plan.errors.append(f"{self._at(key)} is {shown(value)}, but must be {wanted}.")

    def unmap(self, key: str, value: Any, reason: str) -> None:
        """Record that a value, set or by default, has no equivalent in fidgpt."""
        self.plan.unmapped.append(f"{self._at(key)}: {shown(value)} ({reason})")

    def drop(self, keys: Iterable[Any], reason: str = "") -> None:
        """Remove entries; with a reason, record that they have no equivalent."""
        for key in keys:
            value = self.left.pop(key, None)
            if value is not None and reason:
                self.unmap(str(key), value, reason)

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".removeprefix(".")


def shown(value: Any) -> str:
    """Return a short text of a value for a message."""
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Foreign):
        return f"{value.tag} {value.value:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value!s:.60}"


BLOCK = "model.blocks[0]"  # the entry for all layers
_SCALING = f"{BLOCK}.attention.rope.scaling"
_LENGTH = "original_max_position_embeddings"

# Entries that change nothing at these values where they are not read; null never does.
MODEL_NEUTRAL = {
    **{"scan_layers": True, "gradient_checkpointing": False, "upcast_attn": False},
    **{"use_bias": False, "input_embedding_norm": False, "activation_function": "gelu_new"},
}


def _map_experts(section: Section, ffn_dim: int) -> None:
    """Map a mixture of experts; Levanter divides the weight of the balancing loss by top_k."""
    count = section.take("n_routed_experts", 8)
    chosen = section.take("num_experts_per_tok", 2)
    section.change("fiddler:use_moe", num_experts=count, top_k=chosen, ffn_dim=ffn_dim)
    if shared := section.take("n_shared_experts", 0):
        section.change("fiddler:use_shared_expert", ffn_dim=shared * ffn_dim)
    for i, (key, default, divisor) in enumerate(
        [("lbl_coef", 0.01, max(chosen, 1)), ("rzl_coef", 0.001, 1)]
    ):
        default = 0.0 if key in section.left and section.left[key] is None else default
        weight = section.take(key, default) / divisor
        section.plan.wanted[f"{BLOCK}.mlp.balancing[{i}].weight"] = weight


def _map_window(section: Section) -> None:
    """Map a sliding window, unless it is at least as long as training sequences."""
    window = section.take("sliding_window", 4096)
    if window < section.plan.wanted.get("seq_len", 0):
        section.change("fiddler:use_sliding_window", window=window, every=0)


def _map_switched_window(section: Section) -> None:
    if not section.left.get("use_sliding_window"):
        section.drop(("use_sliding_window", "sliding_window", "max_window_layers"))


class _Kind(NamedTuple):
    """The meaning of a model `type` in Levanter.

    Attributes:
      norm: fiddler for its norms.
      further_norms: fiddlers for additional norms.
      changes: directives that always apply.
      wanted: values that always apply.
      is_mixture: whether its MLPs are experts.
      map_window: maps its sliding window, if it may have one.

    All other attributes are Levanter's defaults for the entries of that name.
    """

    seq_len: int = 2048
    hidden_dim: int = 4096
    intermediate_dim: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = 32
    head_dim: int | None = None
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    activation_function: str = "silu"
    norm: str = "use_rms_norm"
    further_norms: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    wanted: tuple[tuple[str, Any], ...] = ()
    is_mixture: bool = False
    map_window: Callable[[Section], None] | None = None


_MISTRAL = _Kind(8192, intermediate_dim=14336, num_kv_heads=8, layer_norm_epsilon=1e-6)
_KINDS = {
    "llama": _Kind(),
    "mistral": _MISTRAL._replace(map_window=_map_window),
    "mixtral": _MISTRAL._replace(is_mixture=True),
    "gemma": _Kind(
        *(8192, 2048, 16384, 18, 8, 1, 256),
        tie_word_embeddings=True,
        activation_function="gelu_new",
        norm="use_offset_norm",
        changes=("use:model.embedding.scale=root_of_width",),
    ),
    "qwen": _Kind(
        wanted=((f"{BLOCK}.attention.bias", True), (f"{BLOCK}.attention.out_bias", False)),
        map_window=_map_switched_window,
    ),
    "qwen3": _Kind(further_norms=("use_qk_norm",), map_window=_map_switched_window),
    "gpt2": _Kind(1024, 768, num_layers=12, num_heads=12, num_kv_heads=None),
}


def map_model(section: Section, seq_len: int | None) -> None:
    """Record the changes from the named config's model to that of a section.

    Args:
      section: `model:`.
      seq_len: length of the training sequences, if the file sets it elsewhere.
    """
    name = section.take("type", "llama")
    if name not in _KINDS:
        section.error("type", name, f"a model that fidgpt has. {suggest(name, _KINDS)}"[:-1])
        return
    kind = _KINDS[name]
    _map_sizes(section, kind, seq_len)
    _map_gpt2(section) if name == "gpt2" else _map_gated(section, kind)
    section.want({"initializer_range": (0.02, "model.embedding.weight.init.std")})
    if section.left.get("gradient_checkpointing") in (True, "full", "recompute"):
        del section.left["gradient_checkpointing"]
        section.plan.last.append("fiddler:use_recompute")
    kernels = ("use_flash_attention", "attn_backend", "flash_attention_block_size")
    section.drop(kernels, "kernels are chosen by fidgpt")


def _map_sizes(section: Section, kind: _Kind, seq_len: int | None) -> None:
    plan = section.plan
    length = section.take("max_seq_len" if "max_seq_len" in section.left else "seq_len", None, int)
    width = section.take("hidden_dim", kind.hidden_dim)
    heads = section.take("num_heads", kind.num_heads)
    head_dim = section.take("head_dim", kind.head_dim, int)
    if head_dim is None:
        if heads < 1 or width % heads:
            plan.errors.append(
                f"model.hidden_dim={width} must be a multiple of num_heads={heads}; change one of "
                "them, or set head_dim."
            )
            return
        head_dim = width // heads
    plan.wanted["seq_len"] = seq_len or length or kind.seq_len
    plan.wanted["model.hidden_dim"] = width
    section.want({"num_layers": (kind.num_layers, "model.num_layers")})
    plan.wanted[f"{BLOCK}.attention.head_dim"] = head_dim
    if heads * head_dim != width:
        plan.wanted[f"{BLOCK}.attention.num_heads"] = heads
    kv_heads = section.take("num_kv_heads", kind.num_kv_heads or heads)
    if kv_heads != heads:
        section.change("fiddler:use_gqa", num_kv_heads=kv_heads)


def _map_gated(section: Section, kind: _Kind) -> None:
    """Map models with RoPE, RMSNorm and gated MLPs."""
    plan = section.plan
    if not section.take("tie_word_embeddings", kind.tie_word_embeddings):
        section.change("fiddler:untie_embeddings")
    activation = section.take("activation_function", kind.activation_function)
    if activation == "gelu_new":
        section.change("fiddler:use_geglu")
    elif activation not in ("silu", "swish"):
        section.unmap("activation_function", activation, "MLPs are gated by SiLU")
    eps = section.take("layer_norm_epsilon", kind.layer_norm_epsilon)
    has_weights = section.take("use_layer_norm_weight", True)
    norm = kind.norm if has_weights else "use_weightless_norm"
    if norm != "use_rms_norm" or eps != 1e-5:
        section.change(f"fiddler:{norm}", eps=eps)
    if section.take("hybrid_norm", False):
        section.change("fiddler:use_sandwich_norm")
    for one in kind.further_norms:
        section.change(f"fiddler:{one}", eps=eps)
    ffn_dim = section.take("intermediate_dim", kind.intermediate_dim)
    if kind.is_mixture:
        _map_experts(section, ffn_dim)
    else:
        plan.wanted[f"{BLOCK}.mlp.ffn_dim"] = ffn_dim
    plan.changes += kind.changes
    plan.wanted.update(kind.wanted)
    if kind.map_window:
        kind.map_window(section)
    _map_rope(section.section("rope"))


def _map_rope(rope: Section) -> None:
    kind = rope.take("type", "default")
    theta = 500_000.0 if kind == "llama3" else 10_000.0
    rope.want({"theta": (theta, f"{BLOCK}.attention.rope.theta")})
    if kind in ("default", "linear"):
        factor = rope.take("factor", 1.0)
        if factor != 1.0:
            rope.change(f"use:{_SCALING}=LinearScaling", factor=factor)
    elif kind == "llama3":
        rope.change(
            f"use:{_SCALING}=Llama3Scaling",
            factor=rope.take("factor", 8.0),
            original_seq_len=rope.take(_LENGTH, 8192, int),
            low_freq_factor=rope.take("low_freq_factor", 1.0),
            high_freq_factor=rope.take("high_freq_factor", 4.0),
        )
    elif kind == "yarn":
        _map_yarn(rope)
    else:
        rope.unmap("type", kind, "RoPE is not scaled")


def _map_yarn(rope: Section) -> None:
    """Map YaRN as in its paper, from which Levanter's differs unless the factor is 1."""
    factor, over = rope.take("factor", 1.0), rope.take("mscale", 1.0)
    arguments = {
        "original_seq_len": rope.take(_LENGTH, 2048, int),
        "beta_fast": rope.take("beta_fast", 32.0),
        "beta_slow": rope.take("beta_slow", 1.0),
    }
    if factor <= 0:
        rope.error("factor", factor, "a number above 0")
    elif factor != 1.0:
        amplitude = 1.0 if factor < 1 else math.sqrt(0.1 * over * math.log(factor) + 1)
        rope.change(f"use:{_SCALING}=YaRN", factor=factor, **arguments, amplitude=amplitude)
        rope.unmap("type", "yarn", "wavelengths are scaled as in the paper, in Levanter by more")


def _map_gpt2(section: Section) -> None:
    """Map GPT-2: learned positions, LayerNorm, GELU and biases."""
    plan = section.plan
    plan.config = "config:gpt2_124m"
    scale = section.take("mlp_scale", 4)
    if scale != 4:
        plan.wanted[f"{BLOCK}.mlp.ffn_dim"] = scale * plan.wanted.get("model.hidden_dim", 0)
    eps = section.take("layer_norm_epsilon", 1e-5)
    if eps != 1e-5:
        section.change("fiddler:use_layer_norm", eps=eps)
    if not section.take("use_bias", True):
        for name in ("attention_norm", "attention", "mlp_norm", "mlp"):
            plan.wanted[f"{BLOCK}.{name}.bias"] = False
        plan.wanted["model.norm.bias"] = False
    section.want(
        {
            "embed_pdrop": (0.0, "model.dropout"),
            "resid_pdrop": (0.0, f"{BLOCK}.dropout"),
            "attn_pdrop": (0.0, f"{BLOCK}.attention.dropout"),
        }
    )
    if section.take("scale_attn_by_inverse_layer_idx", False):
        scale = plan.wanted.get(f"{BLOCK}.attention.head_dim", 1) ** -0.5
        layers = range(plan.wanted.get("model.num_layers", 0))
        plan.last.append("fiddler:unroll")
        plan.last += [f"set:model.blocks[{i}].attention.scale={scale / (i + 1)!r}" for i in layers]
