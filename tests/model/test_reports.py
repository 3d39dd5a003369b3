"""Reports of modules: collection, counts and checkpointing."""

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fidgpt.model.reports import collecting, report_loss, report_metric, report_tally


class Reporting(nn.Module):
    """A layer that reports in all three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        report_loss("size", y.square().mean())
        report_metric("mean", y.mean())
        report_tally(self, (y > 0).sum(0))
        return x + y

    def settle(self, tally: Tensor) -> dict[str, Tensor]:
        return {}


@pytest.fixture
def parts() -> list[Reporting]:
    """Two layers."""
    return [filled(Reporting(), seed=0), filled(Reporting(), seed=1)]


X = drawn(3, 4)


def test_losses_and_tallies_add_up_and_metrics_are_averaged(parts):
    with collecting() as reports:
        between = parts[0](X)
        parts[1](between)
    first, second = parts[0].linear(X).tanh(), parts[1].linear(between).tanh()
    torch.testing.assert_close(
        reports.losses["size"], first.square().mean() + second.square().mean()
    )
    torch.testing.assert_close(reports.metrics["mean"], (first.mean() + second.mean()) / 2)
    assert list(reports.tallies) == parts
    assert torch.equal(reports.tallies[parts[1]], (second > 0).sum(0))
    assert not reports.metrics["mean"].requires_grad


def test_what_is_computed_again_in_the_backward_pass_counts_once(parts):
    gradients, received = [], []
    for wrapped in (False, True):
        parts[0].zero_grad()
        with collecting() as around:
            with collecting() as reports:
                out = checkpoint(parts[0], X, use_reentrant=False) if wrapped else parts[0](X)
            loss = out.sum() + reports.losses["size"]
        loss.backward()
        gradients.append(parts[0].linear.weight.grad)
        received.append((reports.losses, around.tallies[parts[0]]))
    assert torch.equal(gradients[0], gradients[1])
    assert received[0][0] == received[1][0]
    assert torch.equal(received[0][1], received[1][1])
