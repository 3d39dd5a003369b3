"""What families share in which most layers have a recurrent mixer, and some have attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs.hub import Form
from fidgpt.configs.windows import FULL, shortest_period
from fidgpt.fiddlers.patterns import repeated
from fidgpt.fiddlers.recurrent import RECURRENT, put_mixer
from fidgpt.model import Attention, MixerPair
from fidgpt.train import Trainer

LINEAR = "linear_attention"  # the name of layers with a recurrent mixer in config.json
THREE_TO_ONE = (LINEAR, LINEAR, LINEAR, FULL)


def use_mixers(
    cfg: fdl.Config[Trainer], kinds: Sequence[str], mixer: Any, name: str = LINEAR, **sizes: Any
) -> None:
    """Use another mixer in the layers of a kind, by a pattern that repeats over the depth.

    Raises:
      ValueError: a kind is neither `name` nor full attention.
    """
    if unknown := sorted({*kinds} - {name, FULL}):
        raise ValueError(f"layer_types has {', '.join(unknown)}; use {name} and {FULL}.")
    kinds = shortest_period([kinds[i % len(kinds)] for i in range(cfg.model.num_layers)])
    cfg.model.blocks = repeated(cfg.model.blocks, len(kinds))
    for block, kind in zip(cfg.model.blocks, kinds, strict=True):
        if kind == name:
            put_mixer(block, mixer, **sizes)


def by_layer(
    kinds: Sequence[str], num_layers: int, names: Mapping[str, Mapping[str, str | Form]]
) -> dict[str, str | Form]:
    """Return the forms of the tensors of each layer's mixer, by those of each kind of layer."""
    return {
        f"blocks.{layer}.attention.{path}": form
        for layer in range(num_layers)
        for path, form in names[kinds[layer % len(kinds)]].items()
    }


def periodic_kinds(found: Mapping[str, Any], *, key: str, name: str = LINEAR) -> list[str]:
    """Return layer types with attention in every n-th layer, by a key of config.json or 4."""
    every = found.get(key) or 4
    return [name if (i + 1) % every else FULL for i in range(found["num_hidden_layers"])]


def of_attention(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reading of a model's first attention; of a model without one there is none."""
    return lambda model: read(next(m for m in _mixers(model) if isinstance(m, Attention)))


def of_mixer(kind: type, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reading of a model's first mixer of a kind; of a model without one there is none."""
    return lambda model: read(next(m for m in _mixers(model) if isinstance(m, kind)))


def kinds_of(model: Any, name: str = LINEAR) -> list[str]:
    """Return the kind of each layer of a model."""
    return [name if isinstance(mixer, RECURRENT) else FULL for mixer in _mixers(model)]


def _mixers(model: Any) -> list[Any]:
    mixers = [block.attention for block in model.blocks]
    pairs = [(m.first, m.second) if isinstance(m, MixerPair) else (m,) for m in mixers]
    return [mixer for pair in pairs for mixer in pair]


# Readings of settings of attention, in models whose first layer has none.
READINGS: Mapping[str, Callable[[Any], Any]] = {
    "num_heads": of_attention(lambda attention: attention.num_heads),
    "num_kv_heads": of_attention(lambda attention: attention.num_kv_heads),
    "head_dim": of_attention(lambda attention: attention.head_dim),
    "attention_bias": of_attention(lambda attention: attention.key.bias is not None),
    "mixers": kinds_of,
}
