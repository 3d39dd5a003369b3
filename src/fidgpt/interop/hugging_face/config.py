"""A hub config as a graph."""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.tensors import tensors_of
from fidgpt.model import (
    Capacity,
    LanguageModel,
    LatentAttention,
    LearnedPositions,
    LoRALinear,
    Softcap,
    StackedLoRA,
    dropless,
)
from fidgpt.model.linear import Linear
from fidgpt.model.moe import SelectionBias


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


_ABSENT = "absent"
# What every module has, and what changes no number that a model computes outside of training.
_IGNORED = {*vars(nn.Module()), "dropout", "init", "kernel", "layout", "balancing"}
_IGNORED_OF = {LoRALinear: {"scale"}, SelectionBias: {"rate"}}
_LIKE = {LoRALinear: Linear, StackedLoRA: _ABSENT, Capacity: _ABSENT}


class Difference(NamedTuple):
    """A place where two models differ; `*` stands for every layer.

    Attributes:
      path: of a part, or of a value in it.
      ours: what the first model has there.
      theirs: what the second one has.
    """

    path: str
    ours: str
    theirs: str


def differences(ours: nn.Module, theirs: nn.Module) -> list[Difference]:
    """Where two models would compute differently with the same weights; empty if nowhere.

    Adapters are no difference: they stand beside what is compared. Sizes of parameters are.
    """
    found = [*_of_parts(ours, theirs)]
    told = tuple(f"{one.path}." for one in found)
    found += [one for one in _of_tensors(ours, theirs) if not one.path.startswith(told)]
    layers = len(getattr(ours, "blocks", ()))
    counts = Counter(_starred(one) for one in found)
    whole = {one for one, count in counts.items() if count == layers > 1}
    return [*dict.fromkeys(one if (all := _starred(one)) not in whole else all for one in found)]


def _starred(one: Difference) -> Difference:
    return one._replace(path=re.sub(r"(?<=^blocks\.)\d+(?=\.)", "*", one.path))


def _of_parts(ours: nn.Module, theirs: nn.Module) -> Iterator[Difference]:
    sides = [dict(side.named_modules(remove_duplicate=False)) for side in (ours, theirs)]
    told: set[str] = set()
    for path in {**sides[0], **sides[1]}:
        if path.rpartition(".")[0] in told:
            told.add(path)
            continue
        here, there = (side.get(path) for side in sides)
        kinds = [_kind(one) for one in (here, there)]
        if kinds[0] is not kinds[1]:
            told.add(path)
            yield Difference(path, *(_shown(kind) for kind in kinds))
        elif here is not None and there is not None:
            yield from _of_values(path, _values(here), _values(there))


def _kind(part: nn.Module | None) -> Any:
    kind = _ABSENT if part is None else type(part)
    return _LIKE.get(kind, kind)


def _values(part: nn.Module) -> dict[str, Any]:
    # Capacity, a part without weights, is dropless too outside of training.
    ignored = _IGNORED | _IGNORED_OF.get(type(part), set())
    return {
        name: value
        for name, value in vars(part).items()
        if name not in ignored and value is not dropless
    }


def _of_values(path: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    for name in {**ours, **theirs}:
        here, there = (side.get(name, _ABSENT) for side in (ours, theirs))
        is_part = {id(here), id(there)} == {id(None), id(_ABSENT)}  # which was told of
        if not is_part and not _alike(here, there):
            yield Difference(f"{path}.{name}".removeprefix("."), _shown(here), _shown(there))


def _of_tensors(ours: nn.Module, theirs: nn.Module) -> Iterator[Difference]:
    sides = [_tensors(side) for side in (ours, theirs)]
    for path in {**sides[0], **sides[1]}:
        here, there = (side.get(path, _ABSENT) for side in sides)
        if here != there:
            yield Difference(path, here, there)


def _tensors(model: nn.Module) -> dict[str, str]:
    """The shape of each tensor by its path, or the path under which it was met before."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for path, tensor in tensors_of(model).items():
        known = first.setdefault(id(tensor), path)
        found[path] = str(list(tensor.shape)) if known == path else f"tied to {known}"
    return found


def _alike(here: Any, there: Any) -> bool:
    """Whether two values mean the same; objects do by their class and all that they hold."""
    if isinstance(here, float) and isinstance(there, float):
        return math.isclose(here, there, rel_tol=1e-9)
    if type(here) is not type(there):
        return isinstance(here, int | float) and isinstance(there, int | float) and here == there
    if isinstance(here, list | tuple):
        return len(here) == len(there) and all(map(_alike, here, there))
    if isinstance(here, dict):
        return here.keys() == there.keys() and all(_alike(here[key], there[key]) for key in here)
    if isinstance(here, functools.partial):
        here, there = ((one.func, one.args, one.keywords) for one in (here, there))
        return all(map(_alike, here, there))
    if isinstance(here, Tensor):
        return here.shape == there.shape
    if isinstance(here, nn.Module):
        return not differences(here, there)
    if isinstance(here, type | FunctionType) or not hasattr(here, "__dict__"):
        return bool(here == there)
    return _alike(vars(here), vars(there))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | None):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    name = getattr(value, "__name__", None)
    held = getattr(value, "__dict__", {})
    inside = ", ".join(f"{key}={_shown(one)}" for key, one in held.items())
    return name or f"{type(value).__name__}({inside:.80})"
