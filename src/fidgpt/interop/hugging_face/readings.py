"""Where in a built model each setting is found, by our names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError
from fidgpt.model import LanguageModel, LatentAttention, LearnedPositions, Softcap


def read_settings(family: Family, model: LanguageModel, *, seq_len: int | None) -> dict[str, Any]:
    """The settings that a model would have, were it of the family.

    What no reading is known for is left out; whether what is said is all of it shows when a model
    is built from it again. RoPE scaling is the built part.

    Args:
      family: says which settings there are.
      model: built, with memory or without.
      seq_len: where the model itself knows no longest sequence.

    Raises:
      ConfigError: it lacks a part in which the family has a setting.
    """
    found: dict[str, Any] = {}
    readings = {**READINGS, **family.readings}
    for name in family.settings:
        if name == "seq_len":
            found[name] = _learned_length(model) or seq_len
        elif name in readings:
            try:
                value = readings[name](model)
            except StopIteration:
                continue  # no layer has it, so that any value would do
            except (AttributeError, IndexError, TypeError) as error:
                raise ConfigError(f"the model has no {name}: {error}") from error
            if name != "window" or value is not None or "layer_types" not in family.settings:
                found[name] = value
    return found


def _learned_length(model: Any) -> int | None:
    positions = getattr(getattr(model, "embedding", None), "positions", None)
    return positions.weight.shape[0] if isinstance(positions, LearnedPositions) else None


def _attention(model: Any) -> Any:
    return model.blocks[0].attention


def _rope(model: Any) -> Any:
    """The RoPE of the first layer that looks back without end, else of the first that has one."""
    ropes = zip(_of_attentions(model, "window"), _of_attentions(model, "rope"), strict=True)
    turning = [(window is not None, rope) for window, rope in ropes if rope is not None]
    return next(rope for _, rope in sorted(turning, key=lambda one: one[0]))


def _of_attentions(model: Any, name: str) -> list[Any]:
    """What every layer's attention has under a name; None where it is one of somebody's own."""
    return [getattr(block.attention, name, None) for block in model.blocks]


def _num_kv_heads(model: Any) -> int:
    """Latent attention has a key for every head."""
    attention = _attention(model)
    is_latent = isinstance(attention, LatentAttention)
    return attention.num_heads if is_latent else attention.num_kv_heads


def _window(model: Any) -> int | None:
    return next(_given(_of_attentions(model, "window")), None)


def _layer_types(model: Any) -> list[str]:
    windows = _of_attentions(model, "window")
    return ["full_attention" if window is None else "sliding_attention" for window in windows]


def _dense_width(model: Any) -> int:
    """Of a layer's MLP; where every layer is a mixture, of its experts."""
    dense = (block.mlp for block in model.blocks if hasattr(block.mlp, "up"))
    mlp = next(dense, None)
    return _expert_width(model) if mlp is None else mlp.up.out_features


def _mixture(model: Any) -> Any:
    return next(block.mlp for block in model.blocks if hasattr(block.mlp, "experts"))


def _expert_width(model: Any) -> int:
    return _mixture(model).experts.down.shape[2]


def _num_shared(model: Any) -> int:
    return _mixture(model).shared.up.out_features // _expert_width(model)


def _first_dense(model: Any) -> int:
    mixtures = (i for i, block in enumerate(model.blocks) if hasattr(block.mlp, "experts"))
    return next(mixtures, len(model.blocks))


def _score_cap(model: Any) -> float | None:
    caps = (change.cap for change in _attention(model).scores if isinstance(change, Softcap))
    return next(caps, None)


def _given(values: Any) -> Iterator[Any]:
    return (value for value in values if value is not None)


READINGS: Mapping[str, Callable[[Any], Any]] = {
    "hidden_dim": lambda model: model.embedding.weight.shape[1],
    "vocab_size": lambda model: model.embedding.weight.shape[0],
    "num_layers": lambda model: len(model.blocks),
    "num_heads": lambda model: _attention(model).num_heads,
    "num_kv_heads": _num_kv_heads,
    "head_dim": lambda model: _attention(model).head_dim,
    "ffn_dim": _dense_width,
    "eps": lambda model: model.norm.eps,
    "tied": lambda model: model.unembedding.weight is model.embedding.weight,
    "theta": lambda model: float(_rope(model).theta),
    "scaling": lambda model: _rope(model).scaling,
    "attention_bias": lambda model: _attention(model).out.bias is not None,
    "mlp_bias": lambda model: model.blocks[0].mlp.down.bias is not None,
    "window": _window,
    "layer_types": _layer_types,
    "score_cap": _score_cap,
    "logit_cap": lambda model: model.unembedding.softcap,
    "num_experts": lambda model: _mixture(model).num_experts,
    "top_k": lambda model: _mixture(model).router.top_k,
    "normalize": lambda model: _mixture(model).router.normalize,
    "expert_ffn_dim": _expert_width,
    "num_shared": _num_shared,
    "first_dense": _first_dense,
    "num_groups": lambda model: getattr(_mixture(model).router.groups, "num_groups", 1),
    "top_groups": lambda model: getattr(_mixture(model).router.groups, "top_groups", 1),
    "route_scale": lambda model: _mixture(model).router.scale,
    "rope_head_dim": lambda model: _attention(model).rope_head_dim,
    "value_head_dim": lambda model: _attention(model).value_head_dim,
    "kv_rank": lambda model: _attention(model).kv_rank,
    "query_rank": lambda model: getattr(_attention(model).query_down, "out_features", None),
}
