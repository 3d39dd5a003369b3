"""Compilation, recomputation and low precision."""

import fiddle as fdl

from fidgpt.graph import find
from fidgpt.model import Compile, Float8, Recompute, Transformer, keep_products
from fidgpt.train import Float16, Trainer

__all__ = ["use_compile", "use_float8", "use_float16", "use_recompute", "use_selective_recompute"]


def use_recompute(cfg: fdl.Config[Trainer], every: int = 1) -> None:
    """Recompute blocks in the backward pass, keeping only their inputs.

    Args:
      cfg: the graph to change.
      every: recompute only the first of every so many layers.
    """
    for model in find(cfg, Transformer):
        model.recompute = fdl.Config(Recompute, every=every)


def use_selective_recompute(cfg: fdl.Config[Trainer]) -> None:
    """Recompute blocks in the backward pass, except for matrix products and attention."""
    for model in find(cfg, Transformer):
        model.recompute = fdl.Config(Recompute, keep=keep_products)


def use_compile(cfg: fdl.Config[Trainer], mode: str | None = None) -> None:
    """Compile blocks with torch.compile, once for all layers of a kind.

    Args:
      cfg: the graph to change.
      mode: "reduce-overhead" records CUDA graphs, "max-autotune" benchmarks kernels; defaults to
        torch's default.
    """
    for model in find(cfg, Transformer):
        model.compile = fdl.Config(Compile, mode=mode)


def use_float8(cfg: fdl.Config[Trainer], recipe: str = "tensorwise") -> None:
    """Multiply in float8 inside of blocks, on GPUs that support it (torchao).

    Args:
      cfg: the graph to change.
      recipe: "rowwise" scales each row by itself, which is slower and more exact.
    """
    for model in find(cfg, Transformer):
        model.float8 = fdl.Config(Float8, recipe=recipe)


def use_float16(cfg: fdl.Config[Trainer], init_scale: float = 65536.0) -> None:
    """Compute in float16 with loss scaling, for GPUs without bfloat16.

    Args:
      cfg: the graph to change.
      init_scale: initial loss scale.
    """
    cfg.precision = fdl.Config(Float16, init_scale=init_scale)
