"""AdamW, against torch's own with the same settings."""

from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.optim import adamw


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    for _ in range(4):
        model(torch.ones(2, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_steps_are_those_of_the_unfused_loop():
    model, reference = _model(), _model()
    settings: dict[str, Any] = dict(lr=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    _train(model, adamw(model.parameters(), **settings))
    _train(reference, torch.optim.AdamW(reference.parameters(), **settings, foreach=False))
    torch.testing.assert_close(list(model.parameters()), list(reference.parameters()))


def test_is_fused_where_torch_can():
    assert adamw(_model().parameters(), lr=1e-3).defaults["fused"] is True


@pytest.mark.parametrize("grouped", [False, True])
def test_is_not_fused_where_torch_cannot(grouped):
    weights = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = adamw([{"params": iter([weights])}] if grouped else [weights], lr=1e-3)
    assert not optimizer.defaults["fused"]
    assert not optimizer.param_groups[0]["fused"]
    weights.grad = torch.ones_like(weights)
    optimizer.step()
    assert weights.abs().min() > 0


def test_a_group_keeps_its_own_settings():
    model = _model()
    groups = [{"params": iter([model.weight])}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = adamw(groups, lr=1e-3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert optimizer.param_groups[0]["params"] == [model.weight]
