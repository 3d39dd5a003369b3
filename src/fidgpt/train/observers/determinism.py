"""Runs whose numbers come again on a GPU."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from fidgpt.parallel import DataParallel
from fidgpt.train.run import RunDirectory, RunError

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_MEMORY: Any = torch.utils.deterministic  # a module whose attributes no type says
_REPEATABLE = ":4096:8"  # one of the two settings that Nvidia's manual of cuBLAS gives


class Determinism:
    """Lets torch use only algorithms that give the same bits whenever they are given the same.

    On a CPU with the same number of threads they all do. On a GPU some add up in the order in which
    threads come by, such as the backward pass of FlashAttention, so that two runs of one config, or
    a run and what it was before it was resumed, part in the last digits. The others take longer.
    """

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        os.environ.setdefault(_CUBLAS, _REPEATABLE)  # read at the first product
        before = _settings()
        # No NaN in fresh memory: what nobody reads before it is written costs time only.
        _set(True, False, False)
        try:
            yield
        finally:
            _set(*before)

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise RunError(
                f"a part of the run has no form whose numbers come again: "
                f"{str(error).splitlines()[0]:.200}\nUse another part, or train without "
                "fiddler:use_determinism."
            ) from error


def _settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _MEMORY.fill_uninitialized_memory,
    )


def _set(is_on: bool, only_warns: bool, fills: bool) -> None:
    torch.use_deterministic_algorithms(is_on, warn_only=only_warns)
    _MEMORY.fill_uninitialized_memory = fills
