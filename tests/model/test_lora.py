"""Low-rank adapters, against a plain Linear and the formula that peft computes."""

import functools
import math

import pytest
import torch
from torch import Tensor, nn

from fidgpt.cost import flops_per_token
from fidgpt.model.init import Constant
from fidgpt.model.linear import Linear, LoRALinear, is_adapter
from fidgpt.model.materialization import materialize
from fidgpt.model.mlp import SwiGLU

RANK, ALPHA = 3, 12.0


def trained() -> LoRALinear:
    """An adapter that has moved away from its start."""
    linear = LoRALinear(8, 6, rank=RANK, alpha=ALPHA, bias=True).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        nn.init.normal_(parameter, generator=generator)
    return linear


def inputs() -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)).double()


def materialized(model: nn.Module) -> nn.Module:
    materialize(model, device=torch.device("cpu"), seed=0)
    return model


def test_it_starts_as_the_plain_linear_of_the_same_seed():
    with torch.device("meta"):
        plain, adapted = Linear(8, 6, bias=True), LoRALinear(8, 6, rank=RANK, bias=True)
    x = inputs().float()
    assert torch.equal(materialized(adapted)(x), materialized(plain)(x))
    assert torch.equal(adapted.lora_b, torch.zeros(6, RANK))
    assert not torch.equal(adapted.lora_a, torch.zeros(RANK, 8))


def test_weights_of_a_plain_model_load_by_their_names():
    plain = SwiGLU(hidden_dim=8, bias=True)
    adapted = SwiGLU(hidden_dim=8, bias=True, linear=functools.partial(LoRALinear, rank=RANK))
    missing, unexpected = adapted.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(name.endswith((".lora_a", ".lora_b")) for name in missing)
    x = inputs().float()
    assert torch.equal(adapted(x), plain(x))


def test_it_computes_what_peft_computes():
    """There, it is base(x) + lora_B(lora_A(dropout(x))) * (lora_alpha / r)."""
    linear, x = trained(), inputs()
    base = x @ linear.weight.T + linear.bias
    expected = base + ((x @ linear.lora_a.T) @ linear.lora_b.T) * (ALPHA / RANK)
    torch.testing.assert_close(linear(x), expected)


def test_alpha_is_the_rank_unless_said():
    linear = trained()
    plain = LoRALinear(8, 6, rank=RANK, bias=True).double()
    plain.load_state_dict(linear.state_dict())
    same = LoRALinear(8, 6, rank=RANK, alpha=RANK, bias=True).double()
    same.load_state_dict(linear.state_dict())
    assert torch.equal(plain(inputs()), same(inputs()))
    assert not torch.equal(plain(inputs()), linear(inputs()))


def test_a_merged_weight_computes_the_same():
    linear, x = trained(), inputs()
    merged = Linear(8, 6, bias=True).double()
    merged.load_state_dict({"weight": linear.merged_weight(), "bias": linear.bias})
    torch.testing.assert_close(merged(x), linear(x))


def test_gradients_are_those_of_the_formula():
    linear, x = trained(), inputs()
    outer = torch.linspace(-1, 1, 2 * 5 * 6, dtype=torch.float64).view(2, 5, 6)
    (linear(x) * outer).sum().backward()
    rows, gradient = x.flatten(0, 1), outer.flatten(0, 1)
    scale = ALPHA / RANK
    torch.testing.assert_close(linear.weight.grad, gradient.T @ rows)
    torch.testing.assert_close(linear.bias.grad, gradient.sum(0))
    torch.testing.assert_close(linear.lora_a.grad, scale * linear.lora_b.T @ gradient.T @ rows)
    torch.testing.assert_close(linear.lora_b.grad, scale * gradient.T @ rows @ linear.lora_a.T)


def test_adapters_learn_while_the_weight_stays():
    linear = LoRALinear(8, 6, rank=RANK)
    for name, parameter in linear.named_parameters():
        parameter.requires_grad_(is_adapter(name, parameter))
    linear(inputs().float()).sum().backward()
    assert linear.weight.grad is None
    assert linear.lora_a.grad is not None  # and zero as long as B is
    assert linear.lora_b.grad is not None
    assert linear.lora_b.grad.abs().sum() > 0


def test_adapters_are_told_by_their_names():
    model = SwiGLU(hidden_dim=8, bias=True, linear=functools.partial(LoRALinear, rank=RANK))
    told = {name for name, parameter in model.named_parameters() if is_adapter(name, parameter)}
    assert told == {f"{part}.lora_{half}" for part in ("gate", "up", "down") for half in "ab"}


def test_dropout_drops_what_adapters_hear_and_nothing_else():
    linear = LoRALinear(8, 6, rank=RANK, dropout=0.5, init=Constant(1.0))
    x = torch.ones(4000, 8)
    assert torch.equal(linear(x), torch.full((4000, 6), 8.0))  # B is zero
    nn.init.ones_(linear.lora_a)
    nn.init.ones_(linear.lora_b)
    torch.manual_seed(0)
    dropped = (linear(x).detach() - 8) / RANK  # each of the 8 numbers counts 2 or 0
    assert set(dropped[:, 0].tolist()) == set(range(0, 17, 2))
    assert float(dropped.mean()) == pytest.approx(8, abs=5 * math.sqrt(8 / 4000))
    assert torch.equal(linear.eval()(x), torch.full((4000, 6), 8.0 + RANK * 8))


def test_it_costs_its_weight_and_both_thin_products():
    assert flops_per_token(LoRALinear(8, 6, rank=RANK), seq_len=1) == 2 * (8 * 6 + RANK * (8 + 6))


@pytest.mark.parametrize(
    ("wrong", "told"), [({"rank": 0}, "rank=0"), ({"rank": 1, "dropout": 1.0}, "dropout=1.0")]
)
def test_what_cannot_be_is_said(wrong, told):
    with pytest.raises(ValueError, match=told):
        LoRALinear(8, 6, **wrong)
