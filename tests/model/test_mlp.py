"""MLPs against their formulas, and the sizes that follow from others."""

import math
from typing import TypeVar

import pytest
import torch
from torch import nn

from fidgpt.model import GELU, SwiGLU, gated_ffn_dim, multiple_of

MLP = TypeVar("MLP", GELU, SwiGLU)


def part(kind: type[MLP], ffn_dim: int | None = None) -> MLP:
    module = kind(hidden_dim=24, ffn_dim=ffn_dim, bias=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.double()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1)).double()


def test_gelu_is_the_tanh_form_of_gpt2(x):
    module = part(GELU)
    up = module.up(x)
    inner = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
    expected = module.down(0.5 * up * (1 + torch.tanh(inner)))
    torch.testing.assert_close(module(x), expected)


def test_swiglu_gates_by_a_silu(x):
    module = part(SwiGLU)
    gate = module.gate(x)
    expected = module.down(gate / (1 + torch.exp(-gate)) * module.up(x))
    torch.testing.assert_close(module(x), expected)


def test_widths_inside():
    assert part(GELU).up.out_features == 4 * 24
    assert part(SwiGLU).up.out_features == gated_ffn_dim(hidden_dim=24)
    assert part(GELU, ffn_dim=10).down.in_features == 10
    assert part(SwiGLU, ffn_dim=10).down.in_features == 10


@pytest.mark.parametrize("kind", [GELU, SwiGLU])
def test_no_bias_unless_said(kind):
    names = [name for name, _ in kind(hidden_dim=24).named_parameters()]
    assert not any("bias" in name for name in names)


@pytest.mark.parametrize("hidden_dim", [768, 1024, 4096])
def test_a_gated_mlp_is_as_large_as_a_plain_one(hidden_dim):
    """Llama 7B's 11,008 of 4,096 is the same rule, rounded up to a multiple of 256."""
    width = gated_ffn_dim(hidden_dim=hidden_dim)
    assert width % 64 == 0
    assert 0 <= width - 8 * hidden_dim / 3 < 64
    assert gated_ffn_dim(hidden_dim=4096, multiple=256) == 11_008


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 8), (8, 8), (8.01, 16), (15.9, 16), (16, 16), (0, 0), (15, 16)]
)
def test_multiple_of_rounds_up(value, expected):
    result = multiple_of(multiple=8, value=value)
    assert result == expected
    assert isinstance(result, int)
