"""Norms of gradients are torch's own, over whatever there is; clipping by value comes before."""

import math

import pytest
import torch
from torch import nn

from fidgpt.train import ClipByValue
from fidgpt.train.step import GradientNorms, norms_of, require_bound


def parameters() -> list[nn.Parameter]:
    """Three that have gradients, and one between them that has none."""
    drawn = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (2,), (7,), (4, 1))]
    for parameter in (made[0], made[2], made[3]):
        parameter.grad = torch.randn(parameter.shape, generator=drawn) * 3
    return made


@pytest.mark.parametrize("max_norm", [1.0, 1e6, math.inf])
def test_clipping_is_bit_for_bit_that_of_torch(max_norm: float) -> None:
    own, torchs = parameters(), parameters()
    norms = GradientNorms(own)
    expected = nn.utils.clip_grad_norm_(torchs, max_norm)
    norms.clip(max_norm)
    assert torch.equal(norms.total, expected)
    for one, other in zip(own, torchs, strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad
        else:
            assert torch.equal(one.grad, other.grad)


def test_small_gradients_are_not_multiplied_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = GradientNorms(parameters())
    monkeypatch.delattr(nn.utils, "clip_grads_with_norm_")
    norms.clip(norms.total.item() * 1.01)
    with pytest.raises(AttributeError):
        norms.clip(norms.total.item())


def test_without_a_bound_gradients_stay_and_are_measured() -> None:
    own, before = parameters(), parameters()
    norms = GradientNorms(own)
    norms.clip(None)
    grads = [p.grad.flatten() for p in before if p.grad is not None]
    assert norms.total.item() == pytest.approx(torch.cat(grads).norm().item(), rel=1e-6)
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(own, before, strict=True)
        if a.grad is not None and b.grad is not None
    )


def test_a_part_has_a_norm_of_its_own_and_no_gradients_have_none() -> None:
    own = parameters()
    norms = GradientNorms(own)
    first, _, third, _ = own
    assert first.grad is not None and third.grad is not None
    assert norms.over([first]).item() == pytest.approx(first.grad.norm().item(), rel=1e-6)
    both = norms.over([first, third]).item()
    assert both == pytest.approx(math.hypot(first.grad.norm(), third.grad.norm()), rel=1e-6)
    assert norms.over([own[1]]).item() == 0
    assert GradientNorms([own[1]]).total.item() == 0
    assert norms_of([]).numel() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(value: float) -> None:
    own = parameters()
    gradient = own[2].grad
    assert gradient is not None
    gradient[3] = value
    norms = GradientNorms(own)
    assert [id(p) for p in norms.not_finite()] == [id(own[2])]
    assert not norms.total.isfinite()


def test_no_number_exceeds_the_bound_and_smaller_ones_stay() -> None:
    own, before = parameters(), parameters()
    ClipByValue(1.5)(own)
    for parameter, old in zip(own, before, strict=True):
        if parameter.grad is not None and old.grad is not None:
            assert torch.equal(parameter.grad, old.grad.clamp(-1.5, 1.5))
    assert max(p.grad.abs().max().item() for p in own if p.grad is not None) == 1.5
    with pytest.raises(ValueError, match=r"max_grad_value=0\.0 must be above 0"):
        ClipByValue(0.0)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_norm_that_leaves_no_gradient_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="max_grad_norm=.* must be above 0"):
        require_bound(bound)
    for allowed in (None, 1e-3, math.inf):
        require_bound(allowed)
