"""Number formats: the replica that computes beside float32 weights."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fidgpt.train.precision import BFloat16, Float32, Precision, native_precision


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


def _step(model: nn.Module, replica: nn.Module, precision: Precision, optimizer) -> None:
    x = torch.linspace(-1, 1, 32).view(4, 8).to(precision.dtype)
    replica(x).float().square().mean().backward()
    precision.pull_gradients(model, replica)
    optimizer.step()
    optimizer.zero_grad()
    precision.push_weights(model, replica)


def test_float32_computes_on_the_model_itself(model):
    assert Float32().replica(model) is model


def test_the_replica_keeps_ties_and_leaves_the_model_alone(model):
    replica = BFloat16().replica(model)
    assert replica.second.weight is replica.first.weight
    assert [p.dtype for p in replica.parameters()] == [torch.bfloat16] * 3
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 3
    assert not replica.frozen.requires_grad
    assert replica.first.weight.data_ptr() != model.first.weight.data_ptr()


def test_making_a_replica_copies_no_float32_weights(model, monkeypatch):
    def refuse(parameter: nn.Parameter, memo: object) -> None:
        raise AssertionError(f"a copy of {tuple(parameter.shape)} float32 numbers")

    monkeypatch.setattr(nn.Parameter, "__deepcopy__", refuse)
    BFloat16().replica(model)


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


def test_lent_gradients_are_added_to_and_come_back(model):
    precision = BFloat16()
    replica = precision.replica(model)
    model.first.weight.grad = torch.full_like(model.first.weight, 257.0)
    precision.return_gradients(model, replica)
    assert model.first.weight.grad is None
    replica.first.weight.grad += 2
    precision.pull_gradients(model, replica)
    assert torch.equal(model.first.weight.grad, torch.full((8, 8), 258.0))


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_any_optimizer_moves_the_float32_weights_and_the_replica_follows(model, make):
    precision = BFloat16()
    replica = precision.replica(model)
    optimizer = make(model.parameters(), lr=1e-5)  # too small for bfloat16 to hold
    before = model.first.weight.detach().clone()
    for _ in range(3):
        _step(model, replica, precision, optimizer)
    assert not torch.equal(model.first.weight, before)
    for weight, twin in zip(model.parameters(), replica.parameters(), strict=True):
        assert torch.equal(twin, weight.bfloat16())


def test_a_resumed_run_is_the_run_that_never_stopped(model):
    precision = BFloat16()
    replica = precision.replica(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(model, replica, precision, optimizer)
    saved = copy.deepcopy(model.state_dict())
    _step(model, replica, precision, optimizer)

    resumed = Tied()
    replica = precision.replica(resumed)
    resumed.load_state_dict(saved)
    precision.push_weights(resumed, replica)
    _step(resumed, replica, precision, torch.optim.SGD(resumed.parameters(), lr=0.1))
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_native_precision_follows_what_the_machine_says(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    for supported, expected in ((True, BFloat16), (False, Float32)):
        monkeypatch.setattr(
            torch.cpu, "_is_avx512_bf16_supported", lambda answer=supported: answer, raising=False
        )
        assert type(native_precision()) is expected
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert type(native_precision()) is Float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert type(native_precision()) is BFloat16


def test_every_part_is_a_precision():
    assert all(isinstance(part, Precision) for part in (Float32(), BFloat16(), native_precision()))
