"""Compilation, recomputation and low precision."""

from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import ConfigError, clone_part, find
from fidgpt.model import Compile, Float8, Recompute, Shared, Transformer, keep_products
from fidgpt.train import Float16, Trainer

# Wrappers of block factories, outermost first, independent of the order of fiddlers.
_WRAPPERS = (Shared, Compile, Recompute, Float8)


def use_recompute(cfg: fdl.Config[Trainer], every: int = 1) -> None:
    """Recompute blocks in the backward pass, keeping only their inputs.

    Args:
      cfg: the graph to change.
      every: recompute only the first of every `every` blocks of the pattern.
    """
    if every < 1:
        raise ConfigError(f"{every=} must be 1 or more layers.")
    for model in find(cfg, Transformer):
        if every > 1:
            model.blocks = repeated(model.blocks, every)
            model.blocks = [
                block if number % every == 0 else _without(block, Recompute)
                for number, block in enumerate(model.blocks)
            ]
        _wrap_blocks(model, Recompute, every=every)


def use_selective_recompute(cfg: fdl.Config[Trainer]) -> None:
    """Recompute blocks in the backward pass, except for matrix products and attention."""
    for model in find(cfg, Transformer):
        _wrap_blocks(model, Recompute, keep=keep_products)


def use_compile(cfg: fdl.Config[Trainer], mode: str | None = None) -> None:
    """Compile blocks with torch.compile, once for all layers of a kind.

    Args:
      cfg: the graph to change.
      mode: "reduce-overhead" records CUDA graphs, "max-autotune" benchmarks kernels; defaults to
        torch's default.
    """
    options: dict[str, Any] = {} if mode is None else {"mode": mode}
    for model in find(cfg, Transformer):
        _wrap_blocks(model, Compile, **options)


def use_float8(cfg: fdl.Config[Trainer]) -> None:
    """Multiply in float8 inside of blocks, on GPUs that support it (torchao)."""
    for model in find(cfg, Transformer):
        _wrap_blocks(model, Float8)


def use_float16(cfg: fdl.Config[Trainer], init_scale: float = 65536.0) -> None:
    """Compute in float16 with loss scaling, for GPUs without bfloat16.

    Args:
      cfg: the graph to change.
      init_scale: initial loss scale.
    """
    cfg.precision = fdl.Config(Float16, init_scale=init_scale)


def _wrap_blocks(
    model: fdl.Buildable[Transformer], part: type, *, every: int = 1, **arguments: Any
) -> None:
    """Wrap the factories of blocks."""
    put: dict[int, fdl.Buildable] = {}  # a shared factory stays shared

    def wrapped(block: fdl.Buildable) -> fdl.Buildable:
        if id(block) not in put:
            put[id(block)] = _wrap(block, part, arguments)
        return put[id(block)]

    if model.first_blocks:
        model.first_blocks = [wrapped(block) for block in model.first_blocks]
    model.blocks = [
        block if number % every else wrapped(block) for number, block in enumerate(model.blocks)
    ]


def _wrap(block: fdl.Buildable, part: type, arguments: dict[str, Any]) -> fdl.Buildable:
    found = fdl.get_callable(block)
    if found is part:
        return fdl.Config(part, block=block.block, **arguments)
    if found in _WRAPPERS and _WRAPPERS.index(found) < _WRAPPERS.index(part):
        outer = clone_part(block)
        outer.block = _wrap(block.block, part, arguments)
        return outer
    return fdl.Config(part, block=block, **arguments)


def _without(block: fdl.Buildable, part: type) -> fdl.Buildable:
    found = fdl.get_callable(block)
    if found is part:
        return block.block
    if found in _WRAPPERS:
        block.block = _without(block.block, part)
    return block
