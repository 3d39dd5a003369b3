"""Sliding windows by layer."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.fiddlers.patterns import repeated
from fidgpt.model import RoPE
from fidgpt.tags import HeadDim, Window
from fidgpt.train import Trainer

T = TypeVar("T")

# The names of kinds of layers in config.json; the last kind has a recurrent mixer.
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
OLD_KINDS = {"mamba": LINEAR, "attention": FULL}  # as earlier files call them
# Keys of config.json with the distance of layers without a window, where it has no layer types.
PERIODS = ("sliding_window_pattern", "_sliding_window_pattern")


def look_back(cfg: fdl.Config[Trainer], window: int | None, layer_types: Sequence[str]) -> None:
    """Set the window of sliding layers by a pattern that repeats over the depth; None for none.

    Raises:
      ValueError: a layer type is unknown.
    """
    windows = shortest_period(windows_of(layer_types, window))
    cfg.model.blocks = repeated(cfg.model.blocks, len(windows))
    for block, width in zip(cfg.model.blocks, windows, strict=True):
        block.attention.window = None if width is None else Window.new(width)


def rotate_in_windows_only(cfg: fdl.Config[Trainer], window: int | None) -> None:
    """Use no RoPE in layers without a window, unless `window` is None."""
    first = getattr(cfg.model, "first_blocks", ())
    for block in [*first, *cfg.model.blocks] if window is not None else ():
        if block.attention.window is None:
            block.attention.rope = None


def window_of_rotated(model: Any) -> int | None:
    """Return the window of a model that rotates in windows only; any where it never does."""
    attentions = [block.attention for block in model.blocks]
    window = next(filter(None, (attention.window for attention in attentions)), None)
    return window or (4096 if attentions[0].rope is None else None)


def rotate_in_windows_by(cfg: fdl.Config[Trainer], theta: float) -> None:
    """Use an unscaled RoPE with another base in layers with a window."""
    local = fdl.Config(RoPE, head_dim=HeadDim.new(), theta=theta)
    for block in [*getattr(cfg.model, "first_blocks", ()), *cfg.model.blocks]:
        if block.attention.window is not None:
            block.attention.rope = local


def rotate_by_layer(cfg: fdl.Config[Trainer], thetas: Sequence[float]) -> None:
    """Use a RoPE of another base in each layer of a pattern that repeats; none where that is 0."""
    thetas = shortest_period(thetas)
    rope = cfg.model.blocks[0].attention.rope
    ropes = {theta: fdl.copy_with(rope, theta=float(theta)) for theta in thetas if theta}
    cfg.model.blocks = repeated(cfg.model.blocks, len(thetas))
    for i, block in enumerate(cfg.model.blocks):
        block.attention.rope = ropes.get(thetas[i % len(thetas)])


def windows_of(layer_types: Sequence[str], window: int | None) -> list[int | None]:
    """Return the window of each layer of a pattern of `layer_types` as in config.json.

    Raises:
      ValueError: a layer type is unknown.
    """
    if unknown := sorted({*layer_types} - {SLIDING, FULL}):
        raise ValueError(f"layer_types has {', '.join(unknown)}; use {SLIDING} and {FULL}.")
    return [window if kind == SLIDING else None for kind in layer_types]


def sliding_from(layer: int, num_layers: int) -> list[str]:
    """Return layer types with full attention before `layer`, and sliding windows from there on."""
    return [SLIDING if i >= layer else FULL for i in range(num_layers)]


def periodic_layers(hub: Mapping[str, Any], *, period: int = 4) -> list[str]:
    """Return layer types with a window in all layers but every n-th, by keys of config.json."""
    every = next(filter(None, map(hub.get, PERIODS)), period)
    return [SLIDING if (i + 1) % every else FULL for i in range(hub["num_hidden_layers"])]


def shortest_period(pattern: Sequence[T]) -> Sequence[T]:
    """Return the shortest prefix that gives the whole pattern when repeated."""
    return next(
        pattern[:n]
        for n in range(1, len(pattern) + 1)
        if all(item == pattern[i % n] for i, item in enumerate(pattern))
    )
