"""NorMuon beside its formula, and its schedules."""

import pytest
import torch
from small_models import drawn
from torch import nn

from fidgpt.optim import NorMuon, Rise, Switched


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 5, 3)])
def test_a_step_is_its_formula(shape: tuple[int, ...]) -> None:
    """The update is near U V^T by an exact decomposition, and its rows move by equal amounts."""
    weight = nn.Parameter(drawn(*shape, dtype=torch.float64))
    before = weight.detach().clone()
    group = {"params": [weight], "orthogonal": True}
    optimizer = NorMuon(
        [group], lr=0.1, cautious_decay=0.3, momentum=0.0, beta2=0.0, adjust_lr_fn="original"
    )
    weight.grad = drawn(*shape, seed=1, dtype=torch.float64)
    grad = weight.grad
    rows, columns = shape[-2:]
    # Rows of one norm, an orthogonal matrix, whose rows or columns are divided by their length.
    grad = grad / grad.norm(dim=-1, keepdim=True)
    left, _, right = torch.linalg.svd(grad, full_matrices=False)
    update = left @ right
    dim = -1 if rows >= columns else -2
    update = update / update.norm(dim=dim, keepdim=True)
    update = update * (min(rows, columns) / max(rows, columns)) ** 0.5
    optimizer.step()
    rate = 0.1 * max(1, rows / columns) ** 0.5
    agrees = update * before >= 0
    expected = before - rate * (update + 0.3 * before * agrees)
    assert torch.allclose(weight, expected, atol=0.04)  # Polar Express ends near 1
    moved = (before - rate * 0.3 * before * agrees - weight).norm(dim=dim)
    assert torch.allclose(moved, moved.mean(-1, keepdim=True), rtol=0.2)


def test_schedules_switch() -> None:
    schedule = Switched(step=3, before=Rise(num_steps=4, begin=0.5), after=float)
    assert [schedule(step) for step in range(5)] == [0.625, 0.75, 0.875, 3.0, 4.0]
    assert Rise(num_steps=4, first=0)(0) == 0 and Rise(num_steps=4)(9) == 1
    with pytest.raises(ValueError, match="num_steps=0"):
        Rise(num_steps=0)
    with pytest.raises(ValueError, match="ns_steps=6 must be at most 5"):
        NorMuon([{"params": [], "orthogonal": True}], lr=0.1, ns_steps=6)
