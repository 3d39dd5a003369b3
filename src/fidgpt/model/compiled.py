"""Blocks compiled by torch: one compilation for all layers of a kind, kept for the next run."""

import functools
import os
import shutil
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fidgpt.data import cache_directory
from fidgpt.model.blocks import BlockFactory
from fidgpt.model.extended import MachineError, extended

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
    MAY_STAND_AROUND: ClassVar[Mapping[str, str]] = {"block": "restart"}

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
