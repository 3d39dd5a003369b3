"""The model of a Levanter file as directives."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fidgpt.graph import ConfigError
from fidgpt.interop.recipes import Recipe, refuse

BLOCK = "model.blocks[0]"  # the entry for all layers
_SCALING = f"{BLOCK}.attention.rope.scaling"


def _map_experts(recipe: Recipe, ffn_dim: int) -> None:
    """Map a mixture of experts; Levanter divides the weight of the balancing loss by top_k."""
    count = recipe.take("model.n_routed_experts", 8)
    chosen = recipe.take("model.num_experts_per_tok", 2)
    recipe.change("fiddler:use_moe", num_experts=count, top_k=chosen, ffn_dim=ffn_dim)
    if shared := recipe.take("model.n_shared_experts", 0):
        recipe.change("fiddler:use_shared_expert", ffn_dim=shared * ffn_dim)
    section = recipe.section("model")
    losses = {"lbl_coef": (0.01, max(chosen, 1)), "rzl_coef": (0.001, 1)}
    for i, (key, (usual, divisor)) in enumerate(losses.items()):
        weight = recipe.take(f"model.{key}", 0.0 if key in section else usual)  # null is none
        recipe.wanted[f"{BLOCK}.mlp.balancing[{i}].weight"] = weight / divisor


def _map_window(recipe: Recipe) -> None:
    """Map a sliding window, unless it is at least as long as training sequences."""
    window = recipe.take("model.sliding_window", 4096)
    if window < recipe.wanted.get("seq_len", 0):
        recipe.change("fiddler:use_sliding_window", window=window, every=0)


def _map_switched_window(recipe: Recipe) -> None:
    if not recipe.section("model").get("use_sliding_window"):
        names = ("use_sliding_window", "sliding_window", "max_window_layers")
        recipe.drop([f"model.{name}" for name in names])


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
    map_window: Callable[[Recipe], None] | None = None


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


def map_model(recipe: Recipe) -> None:
    """Record the changes from the named config's model to the model of the section `model:`."""
    name = recipe.take("model.type", "llama")
    kind = _KINDS.get(name) or refuse("model.type", name, _KINDS)
    _map_sizes(recipe, kind)
    _map_gpt2(recipe) if name == "gpt2" else _map_gated(recipe, kind)
    recipe.want({"model.initializer_range": ("model.embedding.weight.init.std", 0.02)})
    kept = recipe.take("model.gradient_checkpointing", False, bool | str)
    if kept in (True, "full", "recompute"):
        recipe.last.append("fiddler:use_recompute")
    elif kept:
        recipe.note("model.gradient_checkpointing", kept, "fidgpt has no equivalent")


def _map_sizes(recipe: Recipe, kind: _Kind) -> None:
    length = recipe.take("model.max_seq_len", recipe.take("model.seq_len", kind.seq_len))
    width = recipe.take("model.hidden_dim", kind.hidden_dim)
    heads = recipe.take("model.num_heads", kind.num_heads)
    head_dim = recipe.take("model.head_dim", kind.head_dim, int)
    if head_dim is None:
        head_dim, rest = divmod(width, heads)
        if rest:
            raise ConfigError(f"model.hidden_dim={width} must be a multiple of num_heads={heads}.")
    recipe.wanted["seq_len"] = recipe.take("train_seq_len", length)
    recipe.wanted["model.hidden_dim"] = width
    recipe.want({"model.num_layers": ("model.num_layers", kind.num_layers)})
    recipe.wanted[f"{BLOCK}.attention.head_dim"] = head_dim
    if heads * head_dim != width:
        recipe.wanted[f"{BLOCK}.attention.num_heads"] = heads
    kv_heads = recipe.take("model.num_kv_heads", kind.num_kv_heads or heads)
    if kv_heads != heads:
        recipe.change("fiddler:use_gqa", num_kv_heads=kv_heads)


def _map_gated(recipe: Recipe, kind: _Kind) -> None:
    """Map models with RoPE, RMSNorm and gated MLPs."""
    if not recipe.take("model.tie_word_embeddings", kind.tie_word_embeddings):
        recipe.change("fiddler:untie_embeddings")
    activation = recipe.take("model.activation_function", kind.activation_function)
    if activation == "gelu_new":
        recipe.change("fiddler:use_geglu")
    elif activation not in ("silu", "swish"):
        recipe.note("model.activation_function", activation, "MLPs are gated by SiLU")
    eps = recipe.take("model.layer_norm_epsilon", kind.layer_norm_epsilon)
    has_weights = recipe.take("model.use_layer_norm_weight", True)
    norm = kind.norm if has_weights else "use_weightless_norm"
    if norm != "use_rms_norm" or eps != 1e-5:
        recipe.change(f"fiddler:{norm}", eps=eps)
    recipe.switch({"model.hybrid_norm": "fiddler:use_sandwich_norm"})
    for further_norm in kind.further_norms:
        recipe.change(f"fiddler:{further_norm}", eps=eps)
    ffn_dim = recipe.take("model.intermediate_dim", kind.intermediate_dim)
    if kind.is_mixture:
        _map_experts(recipe, ffn_dim)
    else:
        recipe.wanted[f"{BLOCK}.mlp.ffn_dim"] = ffn_dim
    recipe.directives += kind.changes
    recipe.wanted.update(kind.wanted)
    if kind.map_window:
        kind.map_window(recipe)
    _map_rope(recipe)


def _map_rope(recipe: Recipe) -> None:
    kind = recipe.take("model.rope.type", "default")
    theta = 500_000.0 if kind == "llama3" else 10_000.0
    recipe.want({"model.rope.theta": (f"{BLOCK}.attention.rope.theta", theta)})
    if kind in ("default", "linear"):
        if (factor := recipe.take("model.rope.factor", 1.0)) != 1.0:
            recipe.change(f"use:{_SCALING}=LinearScaling", factor=factor)
    elif kind == "llama3":
        recipe.change(
            f"use:{_SCALING}=Llama3Scaling",
            factor=recipe.take("model.rope.factor", 8.0),
            original_seq_len=recipe.take("model.rope.original_max_position_embeddings", 8192, int),
            low_freq_factor=recipe.take("model.rope.low_freq_factor", 1.0),
            high_freq_factor=recipe.take("model.rope.high_freq_factor", 4.0),
        )
    else:
        recipe.drop(
            ["model.rope"], f"{kind} is not mapped: set {_SCALING}, if it has an equivalent"
        )


def _map_gpt2(recipe: Recipe) -> None:
    """Map GPT-2: learned positions, LayerNorm, GELU and biases."""
    recipe.directives[0] = "config:gpt2_124m"
    if (scale := recipe.take("model.mlp_scale", 4)) != 4:
        recipe.wanted[f"{BLOCK}.mlp.ffn_dim"] = scale * recipe.wanted.get("model.hidden_dim", 0)
    if (eps := recipe.take("model.layer_norm_epsilon", 1e-5)) != 1e-5:
        recipe.change("fiddler:use_layer_norm", eps=eps)
    if not recipe.take("model.use_bias", True):
        for name in ("attention_norm", "attention", "mlp_norm", "mlp"):
            recipe.wanted[f"{BLOCK}.{name}.bias"] = False
        recipe.wanted["model.norm.bias"] = False
    recipe.want(
        {
            "model.embed_pdrop": ("model.dropout", 0.0),
            "model.resid_pdrop": (f"{BLOCK}.dropout", 0.0),
            "model.attn_pdrop": (f"{BLOCK}.attention.dropout", 0.0),
        }
    )
