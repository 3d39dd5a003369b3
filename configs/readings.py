"""How to read settings from a model: a path in it, or a function of it."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from fidgpt import model as library
from fidgpt.configs.activations import ACTIVATIONS
from fidgpt.configs.windows import FULL, LINEAR, SLIDING
from fidgpt.fiddlers.recurrent import RECURRENT

DENSE, SPARSE = "dense", "sparse"  # types of MLPs in config.json


def mixers_of(model: Any) -> list[Any]:
    """Return the mixers of all layers; a layer may have two."""
    mixers = [block.attention for block in model.blocks]
    pairs = [(m.first, m.second) if isinstance(m, library.MixerPair) else (m,) for m in mixers]
    return [mixer for pair in pairs for mixer in pair]


def attention_of(model: Any) -> Any:
    """Return the first attention of a model, one of fidgpt's rather than a project's mixer.

    Raises:
      StopIteration: no layer has one.
    """
    others, usual = (*RECURRENT, library.NoMixer), (library.Attention, library.LatentAttention)
    candidates = [mixer for mixer in mixers_of(model) if not isinstance(mixer, others)]
    return next(iter(sorted(candidates, key=lambda mixer: not isinstance(mixer, usual))))


def of_attention(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reading of a model's first attention; of a model without one there is none."""
    return lambda model: read(attention_of(model))


def of_mixer(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reading of a model's first recurrent mixer; of a model without one there is none."""
    return lambda model: read(next(m for m in mixers_of(model) if isinstance(m, RECURRENT)))


def kinds_of(model: Any, name: str = LINEAR) -> list[str]:
    """Return the kind of each layer of a model; `name` is the kind of recurrent ones."""
    mixers = [block.attention for block in model.blocks]
    return [name if isinstance(mixer, RECURRENT) else FULL for mixer in mixers]


def mlp_types_of(model: Any) -> list[str]:
    """Return the types of MLPs of a model's layers."""
    return [SPARSE if hasattr(block.mlp, "experts") else DENSE for block in model.blocks]


def layers_with(model: Any, mlp_type: str) -> list[int]:
    """Return which layers of a model have an MLP of a type."""
    return [i for i, kind in enumerate(mlp_types_of(model)) if kind == mlp_type]


def mixture_of(model: Any) -> Any:
    """Return the first mixture of experts of a model."""
    return next(block.mlp for block in model.blocks if hasattr(block.mlp, "experts"))


def each_attention(model: Any, name: str) -> list[Any]:
    """Return an attribute of every layer's attention; None where it has none."""
    mixers = [getattr(block.attention, "second", block.attention) for block in model.blocks]
    return [getattr(mixer, name, None) for mixer in mixers]


def _rotates(model: Any) -> list[int]:
    """Return 1 for each layer that rotates queries and keys, else 0."""
    ropes = each_attention(model, "rope")
    return [int(getattr(rope, "rotation", rope) is not None) for rope in ropes]


def rope_of(model: Any) -> Any:
    """Return the RoPE of the first layer without a window, or of the first that has one."""
    ropes = zip(each_attention(model, "window"), each_attention(model, "rope"), strict=True)
    candidates = [(window is not None, getattr(rope, "rotation", rope)) for window, rope in ropes]
    return next(rope for _, rope in sorted(candidates, key=itemgetter(0)) if rope is not None)


def _theta_in_windows(model: Any) -> float:
    windows, ropes = (each_attention(model, name) for name in ("window", "rope"))
    return next(rope.theta for window, rope in zip(windows, ropes, strict=True) if window)


def _num_kv_heads(attention: Any) -> int:
    is_latent = isinstance(attention, library.LatentAttention)  # has a key for every head
    return attention.num_heads if is_latent else attention.num_kv_heads


def _expert_width(model: Any) -> int:
    return mixture_of(model).experts.down.shape[2]


def _shared_width(model: Any) -> int:
    shared = mixture_of(model).shared
    return 0 if shared is None else getattr(shared, "mlp", shared).ffn_dim


def _dense_width(model: Any) -> int:
    """Return the width of an MLP; where every layer is a mixture, the width of an expert."""
    dense = (block.mlp.up.out_features for block in model.blocks if hasattr(block.mlp, "up"))
    return next(dense, None) or _expert_width(model)


def _activation(model: Any) -> str | None:
    """Return the name of the activation of plain MLPs."""
    activation = model.blocks[0].mlp.activation
    return next((name for name, function in ACTIVATIONS.items() if function is activation), None)


def _filter(mixer: Any) -> Any:
    return mixer.filter if isinstance(mixer, library.ShortConvolution) else mixer.key_filter


def _router(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda model: read(mixture_of(model).router)


# Of settings that families share.
READINGS: Mapping[str, str | Callable[[Any], Any]] = {
    "hidden_dim": lambda model: model.embedding.weight.shape[1],
    "vocab_size": lambda model: model.embedding.weight.shape[0],
    "num_layers": lambda model: len(model.blocks),
    "num_heads": of_attention(lambda mixer: mixer.num_heads),
    "num_kv_heads": of_attention(_num_kv_heads),
    "head_dim": of_attention(lambda mixer: mixer.head_dim),
    "ffn_dim": _dense_width,
    "eps": lambda model: getattr(model.norm, "norm", model.norm).eps,  # of the last of several
    "tied": lambda model: model.unembedding.weight is model.embedding.weight,
    "theta": lambda model: float(rope_of(model).theta),
    "scaling": lambda model: rope_of(model).scaling,
    "local_theta": _theta_in_windows,
    "thetas": lambda model: [(rope and rope.theta) or 0 for rope in each_attention(model, "rope")],
    "rotary_share": lambda model: rope_of(model).rotary_dim / rope_of(model).head_dim,
    "activation": _activation,
    "embedding_scale": "embedding.scale",
    "scaled": lambda model: model.embedding.scale != 1.0,
    "score_scale": of_attention(lambda mixer: mixer.scale),
    "branch_scale": "blocks.0.branch_scale",
    "logit_scale": "unembedding.scale",
    "parallel": lambda model: isinstance(model.blocks[0], library.ParallelBlock),
    # A projection that has a bias if the input projections have one.
    "attention_bias": of_attention(lambda mixer: getattr(mixer, "key", mixer.out).bias is not None),
    "attention_out_bias": of_attention(lambda mixer: mixer.out.bias is not None),
    "mlp_bias": lambda model: any("down.bias" in path for path, _ in model.named_parameters()),
    "qk_norm": lambda model: any(each_attention(model, "query_norm")),
    "sandwich": lambda model: isinstance(model.blocks[0], library.SandwichBlock),
    **dict.fromkeys(("roped", "no_rope_layers"), _rotates),  # a list, or one that may be empty
    "window": lambda model: next(filter(None, each_attention(model, "window")), None),
    "layer_types": lambda model: [
        SLIDING if window else FULL for window in each_attention(model, "window")
    ],
    "score_cap": of_attention(
        lambda mixer: next((s.cap for s in mixer.scores if isinstance(s, library.Softcap)), None)
    ),
    "logit_cap": "unembedding.softcap",
    "num_experts": lambda model: mixture_of(model).num_experts,
    "top_k": _router(lambda router: router.top_k),
    "normalize": _router(lambda router: router.normalize),
    "num_groups": _router(lambda router: getattr(router.groups, "num_groups", 1)),
    "top_groups": _router(lambda router: getattr(router.groups, "top_groups", 1)),
    "route_scale": _router(lambda router: router.scale),
    "expert_ffn_dim": _expert_width,
    "shared_ffn_dim": _shared_width,
    "num_shared": lambda model: _shared_width(model) // _expert_width(model),
    "first_dense": lambda model: next(iter(layers_with(model, SPARSE)), len(model.blocks)),
    "mlp_types": mlp_types_of,
    "moe_layers": lambda model: layers_with(model, SPARSE),
    "dense_layers": lambda model: layers_with(model, DENSE),
    "every": lambda _: 1,
    "rope_head_dim": of_attention(lambda mixer: mixer.rope_head_dim),
    "value_head_dim": of_attention(lambda mixer: mixer.value_head_dim),
    "kv_rank": of_attention(lambda mixer: mixer.kv_rank),
    "query_rank": of_attention(lambda mixer: getattr(mixer.query_down, "out_features", None)),
    "index_heads": of_attention(lambda mixer: mixer.indexer.num_heads),
    "index_dim": of_attention(lambda mixer: mixer.indexer.head_dim),
    "index_top_k": of_attention(lambda mixer: mixer.indexer.top_k),
    # Of recurrent mixers.
    "mixers": kinds_of,
    "filter_size": of_mixer(lambda mixer: _filter(mixer).kernel_size[0]),
    "filter_bias": of_mixer(lambda mixer: _filter(mixer).bias is not None),
    "delta_heads": of_mixer(lambda mixer: mixer.num_heads),
    "delta_key_heads": of_mixer(lambda mixer: mixer.num_key_heads),
    "delta_head_dim": of_mixer(lambda mixer: mixer.head_dim),
    "delta_value_dim": of_mixer(lambda mixer: mixer.value_head_dim),
    "expand": of_mixer(lambda mixer: mixer.out.in_features // mixer.out.out_features),
    "mamba_heads": of_mixer(lambda mixer: mixer.num_heads),
    "mamba_head_dim": of_mixer(lambda mixer: mixer.head_dim),
    "mamba_groups": of_mixer(lambda mixer: mixer.num_groups),
    "state_dim": of_mixer(lambda mixer: mixer.state_dim),
    "mamba_bias": of_mixer(lambda mixer: mixer.out.bias is not None),
}
