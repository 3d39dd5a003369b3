"""Wrappers of blocks: activation checkpointing, compilation and float8."""

import functools
import os
import shutil
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fidgpt.files import cache_directory
from fidgpt.model.linear import MachineError, extended
from fidgpt.ranges import require_size

__all__ = ["Compile", "Float8", "Keep", "Recompute", "keep_all", "keep_products"]


_PRODUCTS = {
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.mm.default",
    "aten._grouped_mm.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_mm.default",
    "fidgpt.blockwise_attention.default",
    "fidgpt.grouped_linear.default",
    "fidgpt.planned_attention.default",
}


@runtime_checkable
class Keep(Protocol):
    """Selects results to keep instead of recomputing them."""

    def __call__(self, operation: str, /) -> bool:
        """Return whether to keep the result of a torch operation, such as `aten.mm.default`."""
        ...


def keep_products(operation: str) -> bool:
    """Keep matrix products and attention; everything else is cheap to recompute."""
    return operation in _PRODUCTS


def keep_all(operation: str) -> bool:
    """Keep everything, so that nothing is recomputed."""
    return True


# Torch 2.13 refuses to recompute what the forward pass did not do: marks for the profiler, of which
# FSDP makes others where weights are there already, are no part of it.
SAC_IGNORED_OPS.update(
    getattr(getattr(torch.ops.profiler, name), overload)
    for name, overload in (
        ("_record_function_enter_new", "default"),
        ("_record_function_exit", "_RecordFunction"),
    )
)


class Recompute:
    """Activation checkpointing of blocks (Chen et al., 2016, arXiv:1604.06174).

    Activations are recomputed in the backward pass, which takes a third more operations and a
    fraction of the memory. Losses and gradients are bit-identical, dropout included.

    Args:
      keep: selects results to keep; defaults to the block's input alone.
      every: recompute only the first of every so many layers.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, *, keep: Keep | None = None, every: int = 1) -> None:
        require_size(every=every)
        self._keep = keep
        self._every = every

    def __call__(self, block: nn.Module, /, *, layer: int) -> nn.Module:
        """Return a block that recomputes, though only in training."""
        if layer % self._every:
            return block
        block = extended(block, Recomputed)
        block.recompute_keeps = self._keep
        return block


class Recomputed(nn.Module):
    """Mixin of blocks changed by `Recompute`."""

    recompute_keeps: Keep | None

    def forward(self, *args: Any) -> Any:
        """Call the block's forward, checkpointed if gradients are enabled."""
        if not torch.is_grad_enabled() or self.recompute_keeps is keep_all:
            return super().forward(*args)
        if self.recompute_keeps is None:
            return checkpoint(super().forward, *args, use_reentrant=False)
        contexts = partial(
            create_selective_checkpoint_contexts, partial(_policy, self.recompute_keeps)
        )
        return checkpoint(super().forward, *args, use_reentrant=False, context_fn=contexts)


def _policy(
    keep: Keep, context: object, operation: object, *args: object, **kwargs: object
) -> CheckpointPolicy:
    kept = keep(str(operation))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_NEEDS_COMPILER = "inductor"
_MAX_GRAPHS = 128  # per block class
_CACHE, _THREADS = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"


class Compile:
    """Compilation of blocks by torch.compile, for training (regional compilation).

    Blocks are compiled instead of the whole model, so that equal layers share one graph. Evaluation
    and generation, whose shapes vary, run eagerly. Compiled code is cached in fidgpt's cache
    directory for later runs, or in TORCHINDUCTOR_CACHE_DIR.

    Args:
      mode: `mode` of torch.compile: "max-autotune" benchmarks kernels, "reduce-overhead" records
        CUDA graphs, which helps small blocks.
      backend: `backend` of torch.compile.

    Raises:
      ValueError: torch.compile has no such mode.
      MachineError: at the start of a run, if there is no C++ compiler.
    """

    def __init__(self, *, mode: str | None = None, backend: str = "inductor") -> None:
        if mode is not None and mode not in _MODES:
            raise ValueError(f"{mode=} is none of {', '.join(_MODES)}.")
        self._settings = (mode, backend)

    def __call__(self, block: nn.Module, /, *, layer: int) -> nn.Module:
        """Return a block that is compiled when it is first used in training."""
        block = extended(block, Compiled)
        block.compile_settings = self._settings
        return block


class Compiled(nn.Module):
    """Mixin of blocks changed by `Compile`."""

    compile_settings: tuple[str | None, str]

    def forward(self, x: Tensor, *args: Any) -> Any:
        """Call the block's forward, compiled in training."""
        if x.is_meta or not (self.training and torch.is_grad_enabled()):
            return super().forward(x, *args)
        _share(self, x, *args)
        order = type(self).__mro__
        block = order[order.index(Compiled) + 1]
        return _compiled(block, *self.compile_settings)(self, x, *args)

    def require_machine(self, device: torch.device) -> None:
        """Raise MachineError if there is no compiler."""
        if self.compile_settings[1] == _NEEDS_COMPILER:
            _require_compiler()


def _share(block: nn.Module, x: Tensor, ctx: Any = None, *_: Any) -> None:
    """Compute what layers share before the first of them, which would have a graph of its own.

    A module that keeps something for all layers of a pass, by `AttentionContext.cached`, computes
    it in `prepare_pass(ctx, dtype)`.
    """
    if ctx is not None:
        for module in block.modules():
            if hasattr(type(module), "prepare_pass"):
                cast(Any, module).prepare_pass(ctx, x.dtype)


@functools.cache
def _compiled(block: type[nn.Module], mode: str | None, backend: str) -> Callable[..., Any]:
    """Return the compiled forward of a class, which its instances share."""
    if backend == _NEEDS_COMPILER:
        _require_compiler()
    os.environ.setdefault(_CACHE, str(cache_directory() / "compiled"))
    if not torch.accelerator.is_available():
        # A block has a few kernels, and each process of torch's pool imports torch for them.
        os.environ.setdefault(_THREADS, "1")
    compiled = torch.compile(block.forward, dynamic=False, mode=mode, backend=backend)
    settings = attrgetter("_dynamo.config")(torch)  # torch._dynamo is private
    # Recomputation must not repeat reports or recompute what layers share.
    settings.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Beyond torch's limit of 8 graphs, blocks would run eagerly: slower, and rounded differently
    # than in a resumed run. Kinds of layers times sequence lengths may exceed 8.
    settings.recompile_limit = max(settings.recompile_limit, _MAX_GRAPHS)
    return compiled


def compilers() -> list[str]:
    """Return the names of C++ compilers to try: the one in the variable CXX, or the usual ones."""
    named = os.environ.get("CXX")
    return [named] if named else ["g++", "clang++", "c++", "cl"]


def has_compiler() -> bool:
    """Return whether this machine has a C++ compiler, which torch.compile needs."""
    return any(map(shutil.which, compilers()))


def _require_compiler() -> None:
    if not has_compiler():
        raise MachineError(
            f"torch.compile needs a C++ compiler, but none was found (tried "
            f"{', '.join(compilers())}); install one, set the environment variable CXX, or train "
            "without use_compile."
        )


_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
_MIN_CAPABILITY = (8, 9)  # Ada; Hopper is 9.0


class Float8:
    """Products of linear layers in float8, with weights kept as they are.

    Inputs, weights and gradients are scaled by their absolute maximum (Micikevicius et al., 2022,
    arXiv:2209.05433), as torchao's float8 training does. This is faster for large matrices in
    compiled blocks. Layers with adapters, or with sizes that are not multiples of 16, are
    unchanged.

    Args:
      recipe: torchao's: "tensorwise" has one scale for each tensor, which is the fastest;
        "rowwise" one for each row, which is more exact; "rowwise_with_gw_hp" also leaves the
        gradients of weights in the format of the input.

    Raises:
      ValueError: the recipe is unknown.
      MachineError: at the start of a run, if torchao or a suitable GPU is missing.
    """

    def __init__(self, *, recipe: str = _RECIPES[0]) -> None:
        if recipe not in _RECIPES:
            raise ValueError(f"{recipe=} is none of {', '.join(_RECIPES)}.")
        self.recipe = recipe

    def __call__(self, block: nn.Module, /, *, layer: int) -> nn.Module:
        """Return the block, with its linear layers changed."""
        for module in block.modules():
            if isinstance(module, nn.Linear) and _fits(module):
                extended(module, InFloat8).float8_recipe = self.recipe
        return block


class InFloat8(nn.Linear):
    """Mixin of linear layers converted by `Float8`."""

    float8_recipe: str

    def forward(self, input: Tensor) -> Tensor:
        """Return the product in float8; on the meta device, in the input's dtype."""
        if input.is_meta:
            return super().forward(input)
        require_float8(input.device)
        return _product(self, input)

    def require_machine(self, device: torch.device) -> None:
        """Raise MachineError as `require_float8` does."""
        require_float8(device)


def require_float8(device: torch.device) -> None:
    """Raise MachineError unless the device supports float8 and torchao is installed."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a {device.type}"
        raise MachineError(
            f"{name} does not support float8: use_float8 needs an NVIDIA GPU of compute capability "
            f"{_MIN_CAPABILITY[0]}.{_MIN_CAPABILITY[1]} (Ada, Hopper) or later. Train without it."
        )
    _torchao()


def _torchao() -> Any:
    try:
        from torchao import float8  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MachineError(
            f"use_float8 needs torchao ({error}): install it with `pip install fidgpt[float8]`, or "
            "train without it."
        ) from error
    return float8


def _product(module: InFloat8, input: Tensor) -> Tensor:
    torchao = _torchao()
    linear = torchao.float8_linear.Float8Linear
    if not hasattr(module, "linear_mm_config"):
        # Copy its settings only: a Float8Linear would hold on to the weight, which FSDP replaces.
        with torch.no_grad():
            config = torchao.Float8LinearConfig.from_recipe_name(module.float8_recipe)
            settings = vars(linear.from_float(module, config))
        own = vars(module)
        own.update((name, value) for name, value in settings.items() if name not in own)
    return linear.forward(module, input)


def _fits(module: nn.Linear) -> bool:
    is_plain = type(module).forward is nn.Linear.forward
    return is_plain and not (module.in_features % 16 or module.out_features % 16)
