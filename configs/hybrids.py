"""What families share in which most layers have a recurrent mixer, and some have attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs.hub import Form
from fidgpt.configs.windows import FULL, LINEAR, shortest_period
from fidgpt.fiddlers.patterns import repeated
from fidgpt.fiddlers.recurrent import put_mixer
from fidgpt.train import Trainer

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
    """Return the tensor forms of each layer's mixer, given the forms of each kind of layer."""
    return {
        f"blocks.{layer}.attention.{path}": form
        for layer in range(num_layers)
        for path, form in names[kinds[layer % len(kinds)]].items()
    }


def periodic_kinds(hub: Mapping[str, Any], *, key: str, name: str = LINEAR) -> list[str]:
    """Return layer types with attention in every n-th layer, by a key of config.json or 4."""
    every = hub.get(key) or 4
    return [name if (i + 1) % every else FULL for i in range(hub["num_hidden_layers"])]
