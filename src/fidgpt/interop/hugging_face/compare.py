"""What a model computes: its settings as a member of a family, and how two models differ."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from fidgpt import model as library
from fidgpt.configs.hub import Family
from fidgpt.configs.windows import FULL, SLIDING
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.tensors import tensors_of
from fidgpt.model.linear import Linear
from fidgpt.model.moe import SelectionBias


def read_settings(
    family: Family, model: library.LanguageModel, *, seq_len: int | None
) -> dict[str, Any]:
    """Return the settings that a model would have if it were of the family.

    Whether they describe all of it shows when a model is built from them. RoPE scaling is the
    built object. Settings that no layer has are left out.

    Args:
      family: has the names of the settings.
      model: built, with memory or without.
      seq_len: used where the model itself has no longest sequence.

    Raises:
      ConfigError: it lacks a module of which the family has a setting.
    """
    found: dict[str, Any] = {}
    readings = {**READINGS, **family.readings}
    positions = getattr(getattr(model, "embedding", None), "positions", None)
    if isinstance(positions, library.LearnedPositions):
        seq_len = positions.weight.shape[0]
    for name in family.settings:
        if name == "seq_len":
            found[name] = seq_len
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


def _attention(model: Any) -> Any:
    return model.blocks[0].attention


def _of_attentions(model: Any, name: str) -> list[Any]:
    """Return an attribute of every layer's attention; None where it has none."""
    return [getattr(block.attention, name, None) for block in model.blocks]


def _rope(model: Any) -> Any:
    """Return the RoPE of the first layer without a window, or of the first that has one."""
    ropes = zip(_of_attentions(model, "window"), _of_attentions(model, "rope"), strict=True)
    found = [(window is not None, rope) for window, rope in ropes if rope is not None]
    return next(rope for _, rope in sorted(found, key=lambda one: one[0]))


def _num_kv_heads(model: Any) -> int:
    attention = _attention(model)
    is_latent = isinstance(attention, library.LatentAttention)  # has a key for every head
    return attention.num_heads if is_latent else attention.num_kv_heads


def _dense_width(model: Any) -> int:
    """Return the width of an MLP; where every layer is a mixture, that of an expert."""
    dense = (block.mlp.up.out_features for block in model.blocks if hasattr(block.mlp, "up"))
    return next(dense, None) or _expert_width(model)


def _mixture(model: Any) -> Any:
    return next(block.mlp for block in model.blocks if hasattr(block.mlp, "experts"))


def _expert_width(model: Any) -> int:
    return _mixture(model).experts.down.shape[2]


def _first_dense(model: Any) -> int:
    mixtures = (i for i, block in enumerate(model.blocks) if hasattr(block.mlp, "experts"))
    return next(mixtures, len(model.blocks))


def _score_cap(model: Any) -> float | None:
    scores = _attention(model).scores
    return next((one.cap for one in scores if isinstance(one, library.Softcap)), None)


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
    "window": lambda model: next(filter(None, _of_attentions(model, "window")), None),
    "layer_types": lambda model: [
        SLIDING if one else FULL for one in _of_attentions(model, "window")
    ],
    "score_cap": _score_cap,
    "logit_cap": lambda model: model.unembedding.softcap,
    "num_experts": lambda model: _mixture(model).num_experts,
    "top_k": lambda model: _mixture(model).router.top_k,
    "normalize": lambda model: _mixture(model).router.normalize,
    "expert_ffn_dim": _expert_width,
    "num_shared": lambda model: _mixture(model).shared.up.out_features // _expert_width(model),
    "first_dense": _first_dense,
    "num_groups": lambda model: getattr(_mixture(model).router.groups, "num_groups", 1),
    "top_groups": lambda model: getattr(_mixture(model).router.groups, "top_groups", 1),
    "route_scale": lambda model: _mixture(model).router.scale,
    "rope_head_dim": lambda model: _attention(model).rope_head_dim,
    "value_head_dim": lambda model: _attention(model).value_head_dim,
    "kv_rank": lambda model: _attention(model).kv_rank,
    "query_rank": lambda model: getattr(_attention(model).query_down, "out_features", None),
}


# What every module has, and what changes no number that a model computes outside of training.
_IGNORED = {*vars(nn.Module()), "dropout", "init", "kernel", "layout", "balancing"}
_IGNORED_OF = {library.LoRALinear: {"scale"}, SelectionBias: {"rate"}}
_KINDS = {library.LoRALinear: Linear, library.StackedLoRA: None, library.Capacity: None}


class Difference(NamedTuple):
    """A path at which two models differ; `*` stands for every layer.

    Attributes:
      path: of a module, or of a value in it.
      ours: what the first model has there.
      theirs: what the second one has.
    """

    path: str
    ours: str
    theirs: str


def differences(ours: nn.Module, theirs: nn.Module) -> list[Difference]:
    """Return where two models would compute differently with the same weights.

    Adapters are not compared, but sizes of parameters are. Below a module of another class nothing
    is listed.
    """
    sides = [dict(_facts(one)) for one in (ours, theirs)]
    found: list[Difference] = []
    replaced: set[str] = set()
    for path in {**sides[0], **sides[1]}:
        here, there = (side.get(path) for side in sides)
        holders = path.split(".")
        is_known = any(".".join(holders[:i]) in replaced for i in range(len(holders)))
        if here != there and not is_known:
            shown = [_shown(side[path]) if path in side else "absent" for side in sides]
            found.append(Difference(path, *shown))
            replaced |= {path} if isinstance(here, type) or isinstance(there, type) else set()
    layers = len(getattr(ours, "blocks", ()))
    counts = Counter(_starred(one) for one in found)
    whole = {one for one, count in counts.items() if count == layers > 1}
    return [*dict.fromkeys(one if (all := _starred(one)) not in whole else all for one in found)]


def _starred(one: Difference) -> Difference:
    return one._replace(path=re.sub(r"(?<=^blocks\.)\d+(?=\.)", "*", one.path))


def _facts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the class of each module, its values, and the shapes of tensors, by path."""
    for path, module in model.named_modules(remove_duplicate=False):
        kind = _KINDS.get(type(module), type(module))
        if kind is None:
            continue
        yield path, kind
        ignored = _IGNORED | _IGNORED_OF.get(type(module), set())
        for name, value in vars(module).items():
            # Capacity, which is left out above, is dropless too outside of training.
            if name not in ignored and value is not library.dropless:
                yield f"{path}.{name}".removeprefix("."), _comparable(value)
    first: dict[int, str] = {}
    for path, tensor in tensors_of(model).items():
        known = first.setdefault(id(tensor), path)
        yield path, str(list(tensor.shape)) if known == path else f"tied to {known}"


class _Object(NamedTuple):
    """The class of an object, and all that it holds."""

    kind: Any
    content: Any


def _comparable(value: Any) -> Any:
    """Return a value that is equal to another one's if both mean the same."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in value.items()}
    if isinstance(value, functools.partial):
        return _comparable([value.func, value.args, value.keywords])
    if isinstance(value, Tensor):
        return list(value.shape)
    if isinstance(value, nn.Module):
        return _Object(type(value), dict(_facts(value)))
    if isinstance(value, type | FunctionType) or not hasattr(value, "__dict__"):
        return value
    return _Object(type(value), _comparable(vars(value)))


def _shown(value: Any) -> str:
    if isinstance(value, str | bool | int | float | None):
        return str(value)
    if isinstance(value, _Object):
        inside = ", ".join(f"{key}={_shown(one)}" for key, one in dict(value.content).items())
        return f"{value.kind.__name__}({inside:.80})"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return getattr(value, "__name__", None) or str(value)
