"""What is computed, kept and compiled so that training is faster or needs less memory."""

from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import ConfigError, clone_part, find
from fidgpt.model import Compile, Float8, Recompute, Shared, Transformer, keep_products
from fidgpt.train import Float16, Trainer

# What may stand around the maker of a block, the outermost first, in whatever order fiddlers come.
_AROUND = (Shared, Compile, Recompute, Float8)


def use_recompute(cfg: fdl.Config[Trainer], every: int = 1) -> None:
    """Blocks keep their input alone and compute again in the backward pass.

    Args:
      cfg: the graph to change.
      every: of so many blocks of the pattern the first one does so, and no other.
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
        _put_around(model, Recompute, every=every)


def use_selective_recompute(cfg: fdl.Config[Trainer]) -> None:
    """Blocks keep what matrix products and attention gave, and compute the rest again."""
    for model in find(cfg, Transformer):
        _put_around(model, Recompute, keep=keep_products)


def use_compile(cfg: fdl.Config[Trainer], mode: str | None = None) -> None:
    """Blocks are compiled by torch, once for all layers of a kind.

    Args:
      cfg: the graph to change.
      mode: "reduce-overhead" records CUDA graphs, "max-autotune" tries kernels out; torch's default
        unless said.
    """
    said: dict[str, Any] = {} if mode is None else {"mode": mode}
    for model in find(cfg, Transformer):
        _put_around(model, Compile, **said)


def use_float8(cfg: fdl.Config[Trainer]) -> None:
    """Matrix products inside blocks are computed in 8 bits, on GPUs that have such (torchao)."""
    for model in find(cfg, Transformer):
        _put_around(model, Float8)


def use_float16(cfg: fdl.Config[Trainer], init_scale: float = 65536.0) -> None:
    """Computes in float16 and scales the loss, for GPUs that have no bfloat16.

    Args:
      cfg: the graph to change.
      init_scale: what the loss is multiplied with at first.
    """
    cfg.precision = fdl.Config(Float16, init_scale=init_scale)


def _put_around(
    model: fdl.Buildable[Transformer], part: type, *, every: int = 1, **arguments: Any
) -> None:
    """Blocks are made by a part that calls what made them before."""
    put: dict[int, fdl.Buildable] = {}  # a factory that comes twice stays one

    def around(block: fdl.Buildable) -> fdl.Buildable:
        if id(block) not in put:
            put[id(block)] = _around(block, part, arguments)
        return put[id(block)]

    if model.first_blocks:
        model.first_blocks = [around(block) for block in model.first_blocks]
    model.blocks = [
        block if number % every else around(block) for number, block in enumerate(model.blocks)
    ]


def _around(block: fdl.Buildable, part: type, arguments: dict[str, Any]) -> fdl.Buildable:
    found = fdl.get_callable(block)
    if found is part:
        return fdl.Config(part, block=block.block, **arguments)
    if found in _AROUND and _AROUND.index(found) < _AROUND.index(part):
        outer = clone_part(block)
        outer.block = _around(block.block, part, arguments)
        return outer
    return fdl.Config(part, block=block, **arguments)


def _without(block: fdl.Buildable, part: type) -> fdl.Buildable:
    found = fdl.get_callable(block)
    if found is part:
        return block.block
    if found in _AROUND:
        block.block = _without(block.block, part)
    return block
