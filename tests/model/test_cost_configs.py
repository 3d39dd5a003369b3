"""What the parts of every family say that they compute, against torch's own counter."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fidgpt import configs
from fidgpt.cost import first_of_each, flops_per_token, undeclared_flops
from fidgpt.graph import build

SEQ = 64  # no longer than any window: torch counts whole squares, and we count windows


def families() -> dict[str, Callable[[], Any]]:
    """The first config of each file that needs no arguments."""
    found: dict[str, Callable[[], Any]] = {}
    for name in configs.__all__:
        config = getattr(configs, name)
        if not inspect.signature(config).parameters:
            found.setdefault(config.__module__.rpartition(".")[2], config)
    return found


@pytest.mark.parametrize("config", families().values(), ids=families())
def test_families_cost_what_torch_counts(config: Callable[[], Any]) -> None:
    with torch.device("meta"):
        model = build(config()).model
    with first_of_each(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, SEQ, dtype=torch.long, device="meta"))
        said = flops_per_token(model, seq_len=SEQ)
    assert said == pytest.approx(counter.get_total_flops() / SEQ, rel=1e-2)
    assert undeclared_flops(model, seq_len=SEQ) == {}
