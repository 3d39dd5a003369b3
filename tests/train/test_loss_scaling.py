"""Training in float16: the loss is scaled, an overflow costs a step, and all of it is resumed."""

import copy

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt.fiddlers import use_float16, use_float32
from fidgpt.optim import Constant
from fidgpt.train import Float16, RunError, Stateful
from fidgpt.train.step import LossScaling


def test_the_factor_moves_as_torchs_own_does():
    """Reference: torch.amp.GradScaler."""
    ours = LossScaling(init_scale=1024.0, growth_interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for finite in (True, True, True, False, True, True, False, False, True, True, True, True):
        assert ours.scale == theirs.get_scale()
        theirs.scale(weight.sum()).backward()
        if not finite:
            weight.grad = torch.full((1,), torch.inf)
        assert ours.accepts(is_finite=finite) == finite
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
    assert ours.scale == theirs.get_scale()


def test_gradients_come_back_as_those_of_the_loss():
    scaling = LossScaling(init_scale=512.0)
    weight = nn.Parameter(torch.ones(3))
    scaling.scaled((weight * torch.arange(3.0)).sum()).backward()
    scaling.unscale([weight, nn.Parameter(torch.ones(1))])
    assert weight.grad is not None and torch.equal(weight.grad, torch.arange(3.0))


def test_what_stays_infinite_however_small_the_factor_has_diverged():
    scaling = LossScaling(init_scale=1.0)
    judged = [scaling.accepts(is_finite=False) for _ in range(20)]
    assert not any(judged[:14]) and judged[-1]


def test_its_memory_is_restored():
    scaling = LossScaling(init_scale=8.0, growth_interval=2)
    assert isinstance(scaling, Stateful)
    scaling.accepts(is_finite=True)
    other = LossScaling(init_scale=2.0, growth_interval=2)
    other.load_state_dict(copy.deepcopy(scaling.state_dict()))
    assert other.accepts(is_finite=True) and other.scale == 16.0


def test_a_run_that_goes_on_with_a_shorter_interval_doubles_the_factor_at_once():
    shorter = LossScaling(growth_interval=2)
    shorter.load_state_dict({"scale": 8.0, "steps": 5})
    assert shorter.accepts(is_finite=True) and shorter.scale == 16.0


@pytest.mark.parametrize("wrong", [{"init_scale": 0.0}, {"growth_interval": 0}])
def test_a_factor_and_an_interval_are_needed(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Float16(**wrong)


def test_float16_learns_as_float32_does(cfg, train):
    cfg.num_steps = 4
    use_float16(cfg, init_scale=1024.0)
    ours = train(cfg, "narrow")
    assert all(row["skipped"] == 0 and row["loss_scale"] == 1024.0 for row in ours)
    use_float32(cfg)
    for row, exact in zip(ours, train(cfg, "exact"), strict=True):
        assert row["loss"] == pytest.approx(exact["loss"], rel=2e-3)


def test_overflows_leave_steps_out_and_a_resumed_run_knows_the_factor(cfg, train):
    cfg.num_steps = 6
    use_float16(cfg, init_scale=2.0**18)
    rows = train(cfg)
    skipped, scales = ([row[name] for row in rows] for name in ("skipped", "loss_scale"))
    assert 0 < sum(skipped) < 6
    for step in range(5):
        assert scales[step + 1] == scales[step] / (1 + skipped[step])
    assert train(cfg, resume=True, resume_step=4)[4]["loss_scale"] == scales[4]
    assert cfg.precision.init_scale == 2.0**18


def test_a_loss_that_is_no_number_is_no_overflow_of_the_scale(cfg, train):
    cfg.num_steps = 4
    cfg.schedule = fdl.Config(Constant)
    cfg.optimizer.lr = 1e5
    use_float16(cfg, init_scale=1024.0)
    with pytest.raises(RunError, match="step 2 diverged: loss is nan"):
        train(cfg)
