"""Blocks that are recomputed, compiled or computed in 8 bits."""

import functools
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fidgpt.files import cache_directory
from fidgpt.model.blocks import BlockFactory
from fidgpt.model.linear import MachineError, extended

__all__ = ["Compile", "Float8", "Keep", "Recompute", "keep_products"]


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
}


@runtime_checkable
class Keep(Protocol):
    """Says which results a block keeps though it computes again."""

    def __call__(self, operation: str, /) -> bool:
        """Whether to keep what an operation of torch's gives, such as `aten.mm.default`."""
        ...


def keep_products(operation: str) -> bool:
    """Matrix products and attention: all else of a block is cheap to compute, and large to keep."""
    return operation in _PRODUCTS


class Recompute:
    """A factory whose blocks keep little for the backward pass, and compute it once more there.

    A third more computing for a fraction of the memory (Chen et al., 2016, arXiv:1604.06174).
    Losses and gradients are those of the block itself, bit for bit, dropout included: the state
    of random numbers is put back for the second time.

    Args:
      block: makes the block, which stays of its class and keeps its names.
      keep: which results are kept; only the block's input unless said.
    """

    WRAPS: ClassVar[Mapping[str, str]] = {"block": "live"}

    def __init__(self, block: BlockFactory, *, keep: Keep | None = None) -> None:
        self._make = block
        self._keep = keep

    def __call__(self) -> nn.Module:
        """A block; what it computes in evaluation and generation it computes once."""
        block = extended(self._make(), Recomputed)
        block.recompute_keeps = self._keep
        return block


class Recomputed(nn.Module):
    """What `Recompute` makes of a block."""

    recompute_keeps: Keep | None

    def forward(self, *args: Any) -> Any:
        """The block's own, computed again when gradients need it."""
        if not torch.is_grad_enabled():
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


_WANTS_COMPILER = "inductor"
_MOST_FORMS = 128  # of the blocks of one class
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class Compile:
    """A factory whose blocks are compiled by torch when they first train.

    A block is compiled and not the model: code is made once for all layers that are alike, however
    many there are. Sizes are those of training; evaluation and generation, whose sizes change, are
    computed as written. What was compiled is kept in the user's cache folder for later runs, unless
    TORCHINDUCTOR_CACHE_DIR names another.

    Args:
      block: makes the block, which stays of its class and keeps its names.
      mode: torch's word for what is to be gained: "max-autotune" tries kernels out, and
        "reduce-overhead" records CUDA graphs, which gains where blocks are small.
      backend: what makes code; torch's Inductor unless said.

    Raises:
      MachineError: as a run begins, or in the first step, where there is no compiler for C++.
    """

    # The code that torch makes rounds in its own way.
    WRAPS: ClassVar[Mapping[str, str]] = {"block": "restart"}

    def __init__(
        self, block: BlockFactory, *, mode: str | None = None, backend: str = "inductor"
    ) -> None:
        self._make = block
        self._settings = (mode, backend)

    def __call__(self) -> nn.Module:
        """A block."""
        block = extended(self._make(), Compiled)
        block.compile_settings = self._settings
        return block


class Compiled(nn.Module):
    """What `Compile` makes of a block."""

    compile_settings: tuple[str | None, str]

    def forward(self, x: Tensor, *args: Any) -> Any:
        """The block's own, compiled where it trains."""
        if x.is_meta or not (self.training and torch.is_grad_enabled()):
            return super().forward(x, *args)
        order = type(self).__mro__
        block = order[order.index(Compiled) + 1]
        return _compiled(block, *self.compile_settings)(self, x, *args)

    def require_machine(self, device: torch.device) -> None:
        """Raises MachineError where code is to be made and no compiler is there."""
        if self.compile_settings[1] == _WANTS_COMPILER:
            _require_compiler()


@functools.cache
def _compiled(block: type[nn.Module], mode: str | None, backend: str) -> Callable[..., Any]:
    """The forward pass of a class, whose instances share what is compiled."""
    if backend == _WANTS_COMPILER:
        _require_compiler()
    os.environ.setdefault(_CACHE, str(cache_directory() / "compiled"))
    compiled = torch.compile(block.forward, dynamic=False, mode=mode, backend=backend)
    settings = attrgetter("_dynamo.config")(torch)  # which has no public name
    # A block that computes again reports only once, and what layers share is made only once.
    settings.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Past torch's 8 the rest would be computed as written, slowly and rounded otherwise than in a
    # run that goes on from there: kinds of layers times lengths of growing sequences are more.
    settings.recompile_limit = max(settings.recompile_limit, _MOST_FORMS)
    return compiled


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++", "cl"]
    if not any(map(shutil.which, candidates)):
        raise MachineError(
            f"there is no C++ compiler here (looked for {', '.join(candidates)}), which "
            "torch.compile needs: install one, name it in the environment variable CXX, or train "
            "without use_compile."
        )


_OLDEST = (8, 9)  # Nvidia's Ada and Hopper


class Float8:
    """A factory whose blocks multiply in float8: weights stay, and are scaled and cast at each use.

    Inputs, weights and gradients are each scaled by their largest number, as torchao's training in
    float8 does by default (Micikevicius et al., 2022, arXiv:2209.05433). It gains where products
    are large, in bfloat16 otherwise, and compiled. Maps whose sizes are no multiples of 16, and
    those with adapters, compute as before.

    Args:
      block: makes the block, which stays of its class and keeps its names.

    Raises:
      MachineError: as a run begins, or in the first step, where torchao or the GPU is missing.
    """

    WRAPS: ClassVar[Mapping[str, str]] = {"block": "restart"}

    def __init__(self, block: BlockFactory) -> None:
        self._make = block

    def __call__(self) -> nn.Module:
        """A block."""
        block = self._make()
        for module in block.modules():
            if isinstance(module, nn.Linear) and _fits(module):
                extended(module, InFloat8)
        return block


class InFloat8(nn.Linear):
    """What `Float8` makes of a linear map."""

    def forward(self, input: Tensor) -> Tensor:
        """The product in float8; without memory, in the format of its input."""
        if input.is_meta:
            return super().forward(input)
        require_float8(input.device)
        return _product(self, input)

    def require_machine(self, device: torch.device) -> None:
        """Raises MachineError as `require_float8` does."""
        require_float8(device)


def require_float8(device: torch.device) -> None:
    """Raises MachineError unless a device multiplies in float8, and torchao is there to do it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _OLDEST:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a {device.type}"
        raise MachineError(
            f"{name} does not multiply in float8: use_float8 needs an Nvidia GPU of compute "
            f"capability {_OLDEST[0]}.{_OLDEST[1]} (Ada, Hopper) or later. Train without it."
        )
    _torchao()


def _torchao() -> Any:
    try:
        from torchao.float8 import float8_linear  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MachineError(
            f"use_float8 needs torchao ({error}): install it with `pip install fidgpt[float8]`, or "
            "train without it."
        ) from error
    return float8_linear.Float8Linear


def _product(module: nn.Linear, input: Tensor) -> Tensor:
    linear = _torchao()
    if not hasattr(module, "linear_mm_config"):
        # A Float8Linear in its place would hold the weight of this moment, which FSDP replaces.
        with torch.no_grad():
            settings = vars(linear.from_float(module))
        own = vars(module)
        own.update((name, value) for name, value in settings.items() if name not in own)
    return linear.forward(module, input)


def _fits(module: nn.Linear) -> bool:
    is_plain = type(module).forward is nn.Linear.forward
    return is_plain and not (module.in_features % 16 or module.out_features % 16)
