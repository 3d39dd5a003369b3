"""Lion against the formula of its paper, written in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from fidgpt.optim import Lion


def test_steps_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    weights = nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
    optimizer = Lion([weights], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    theta, mean = weights.detach().numpy().copy(), np.zeros((5, 3))
    for step in range(5):
        gradient = np.random.default_rng(step).normal(size=(5, 3))
        weights.grad = torch.from_numpy(gradient)
        optimizer.step()
        update = np.sign(0.9 * mean + 0.1 * gradient)
        theta = theta - 0.1 * (update + 0.5 * theta)
        mean = 0.99 * mean + 0.01 * gradient
        np.testing.assert_allclose(weights.detach().numpy(), theta, rtol=1e-12)
    np.testing.assert_allclose(optimizer.state[weights]["mean"].numpy(), mean, rtol=1e-12)


def test_a_group_keeps_its_own_settings() -> None:
    fast, slow = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = Lion([{"params": [fast]}, {"params": [slow], "lr": 0.01}], lr=0.1)
    fast.grad = slow.grad = torch.tensor([1.0, -2.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(fast.detach(), torch.tensor([-0.1, 0.1, 0.0]))
    torch.testing.assert_close(slow.detach(), torch.tensor([-0.01, 0.01, 0.0]))


def test_a_parameter_without_gradient_stays_and_a_closure_is_called() -> None:
    weights = nn.Parameter(torch.ones(2))
    optimizer = Lion([weights], lr=0.1)
    assert optimizer.step(lambda: 7.0) == 7.0
    assert torch.equal(weights, torch.ones(2)) and not optimizer.state


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": -0.1}, "lr=-0.1"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lr": 0.1, "betas": (0.9, 1.0)}, "less than 1"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Lion([nn.Parameter(torch.zeros(1))], **settings)
