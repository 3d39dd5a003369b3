"""Number formats: the replica that computes beside float32 weights, and loss scaling."""

import copy
import functools

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt import fiddlers, optim
from fidgpt.train import RunError, precision
from fidgpt.train.precision import BFloat16, Float32, LossScaling, native_precision


class Tied(nn.Module):
    """A table held twice, a frozen weight, and a function kept as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.activation = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x))) * self.frozen


@pytest.fixture
def model() -> Tied:
    torch.manual_seed(0)
    return Tied()


def test_the_replica_keeps_ties_and_leaves_the_model_alone(model):
    replica = BFloat16().replica(model)
    assert replica.second.weight is replica.first.weight
    assert [p.dtype for p in replica.parameters()] == [torch.bfloat16] * 3
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 3
    assert not replica.frozen.requires_grad
    assert replica.first.weight.data_ptr() != model.first.weight.data_ptr()


def test_gradients_come_back_in_float32_and_add_up(model):
    precision = BFloat16()
    replica = precision.replica(model)
    x = torch.linspace(-1, 1, 32, dtype=torch.bfloat16).view(4, 8)
    replica(x).float().square().mean().backward()
    precision.pull_gradients(model, replica)
    once = model.first.weight.grad.clone()
    assert once.dtype == torch.float32
    replica(x).float().square().mean().backward()
    precision.pull_gradients(model, replica)
    assert all(p.grad is None for p in replica.parameters())
    assert model.frozen.grad is None
    torch.testing.assert_close(model.first.weight.grad, 2 * once, rtol=0, atol=0)
    exact = copy.deepcopy(model).requires_grad_()
    exact.zero_grad()
    (2 * exact(x.float()).square().mean()).backward()
    assert (exact.first.weight.grad - 2 * once).norm() < 2e-2 * exact.first.weight.grad.norm()


def test_the_native_precision_follows_the_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path))
    measured = functools.cache(precision._remembered_gain.__wrapped__)
    monkeypatch.setattr(precision, "_remembered_gain", measured)
    monkeypatch.setattr("fidgpt.train.precision.gain_by_bfloat16", lambda: 2.2)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    for supported, expected in ((False, Float32), (True, BFloat16)):
        monkeypatch.setattr(
            torch.cpu, "_is_avx512_bf16_supported", lambda answer=supported: answer, raising=False
        )
        assert type(native_precision()) is expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert type(native_precision()) is BFloat16


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


def test_what_stays_infinite_however_small_the_factor_has_diverged():
    scaling = LossScaling(init_scale=1.0)
    judged = [scaling.accepts(is_finite=False) for _ in range(20)]
    assert not any(judged[:14]) and judged[-1]


def test_float16_learns_as_float32_does(cfg, train):
    cfg.num_steps = 4
    fiddlers.use_float16(cfg, init_scale=1024.0)
    ours = train(cfg, "narrow")
    assert all(row["skipped"] == 0 and row["loss_scale"] == 1024.0 for row in ours)
    fiddlers.use_float32(cfg)
    for row, exact in zip(ours, train(cfg, "exact"), strict=True):
        assert row["loss"] == pytest.approx(exact["loss"], rel=2e-3)


def test_overflows_leave_steps_out_and_a_resumed_run_knows_the_factor(cfg, train):
    cfg.num_steps = 6
    fiddlers.use_float16(cfg, init_scale=2.0**18)
    rows = train(cfg)
    skipped, scales = ([row[name] for row in rows] for name in ("skipped", "loss_scale"))
    assert 0 < sum(skipped) < 6
    for step in range(5):
        assert scales[step + 1] == scales[step] / (1 + skipped[step])
    assert train(cfg, resume=True, resume_step=4)[4]["loss_scale"] == scales[4]
    assert cfg.precision.init_scale == 2.0**18


def test_a_loss_that_is_no_number_is_no_overflow_of_the_scale(cfg, train):
    cfg.num_steps = 4
    cfg.schedule = fdl.Config(optim.Constant)
    cfg.optimizer.lr = 1e5
    fiddlers.use_float16(cfg, init_scale=1024.0)
    with pytest.raises(RunError, match="step 2 diverged: loss is nan"):
        train(cfg)
