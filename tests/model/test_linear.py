"""Linear, against torch's, and what may make one."""

import functools

import torch
from torch import nn

from fidgpt.model.init import Constant
from fidgpt.model.linear import Linear, LinearFactory, LoRALinear


def test_it_computes_what_torch_computes():
    ours, theirs = Linear(3, 5, bias=True), nn.Linear(3, 5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(x), theirs(x))


def test_the_weight_starts_as_said_and_the_bias_at_zero():
    linear = Linear(3, 5, bias=True, init=Constant(2.0))
    assert torch.equal(linear.weight, torch.full((5, 3), 2.0))
    assert torch.equal(linear.bias, torch.zeros(5))


def test_no_bias_unless_said():
    assert Linear(3, 5).bias is None


def test_classes_and_partials_make_linears():
    for factory in (Linear, functools.partial(LoRALinear, rank=2)):
        assert isinstance(factory, LinearFactory)
        made = factory(3, 5, bias=True, init=Constant(2.0))
        assert made.weight.shape == (5, 3)
        assert torch.equal(made(torch.ones(1, 3)), torch.full((1, 5), 6.0))
