"""Runs whose numbers come again: torch is told so while they last, and what cannot is refused."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt.fiddlers import use_determinism, use_moe, use_muon
from fidgpt.parallel import DataParallel
from fidgpt.train import RunDirectory, RunError


class Asking:
    """Remembers whether torch was to be deterministic in each step."""

    seen: ClassVar[list[bool]] = []

    def observing(self, run: RunDirectory, parallel: DataParallel) -> AbstractContextManager[None]:
        return nullcontext()

    def stepping(self, step: int) -> AbstractContextManager[None]:
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return nullcontext()


def put(parameters: Iterable[nn.Parameter]) -> None:
    """Changes gradients by an operation that has no deterministic form."""
    gradient = next(iter(parameters)).grad
    assert gradient is not None
    gradient.put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_torch_is_deterministic_for_as_long_as_the_run_lasts(cfg, train):
    cfg.num_steps = 3
    use_moe(cfg)
    use_muon(cfg)
    plain = train(cfg, "plain")
    use_determinism(cfg)
    cfg.observers = [*cfg.observers, fdl.Config(Asking)]
    Asking.seen.clear()
    rows = train(cfg)
    assert Asking.seen == [True, True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    assert memory.fill_uninitialized_memory
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]


def test_a_part_that_cannot_is_refused_with_torchs_words(cfg, train):
    cfg.num_steps = 2
    use_determinism(cfg)
    cfg.gradient_transform = put
    with pytest.raises(RunError, match=r"put_.* does not have a deterministic(.|\n)*without"):
        train(cfg)
    assert not torch.are_deterministic_algorithms_enabled()
