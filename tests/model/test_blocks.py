"""Where the norms of a layer stand, in every kind of block, written out."""

import pytest
import torch
from torch import Tensor, nn

from fidgpt.model import (
    AttentionContext,
    Block,
    ParallelBlock,
    PostNormBlock,
    SandwichBlock,
    Shared,
)

WIDTH = 6


class Mixing(nn.Module):
    """Stands where attention does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, layout: AttentionContext | None) -> Tensor:
        return self.linear(x)


def parts() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "attention_norm": nn.LayerNorm(WIDTH, bias=False),
        "attention": Mixing(WIDTH),
        "mlp_norm": nn.RMSNorm(WIDTH),
        "mlp": nn.Linear(WIDTH, WIDTH),
    }


def pre(x, p, scale):
    x = x + scale * p["attention"](p["attention_norm"](x), None)
    return x + scale * p["mlp"](p["mlp_norm"](x))


def post(x, p, scale):
    x = x + scale * p["attention_norm"](p["attention"](x, None))
    return x + scale * p["mlp_norm"](p["mlp"](x))


def parallel(x, p, scale):
    both = p["attention"](p["attention_norm"](x), None) + p["mlp"](p["mlp_norm"](x))
    return x + scale * both


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(
    ("kind", "formula"), [(Block, pre), (PostNormBlock, post), (ParallelBlock, parallel)]
)
def test_a_block_adds_its_branches_as_its_formula_says(kind, formula, scale):
    made, x = parts(), torch.randn(2, 3, WIDTH)
    block = kind(**made, branch_scale=scale)
    torch.testing.assert_close(block(x), formula(x, made, scale))


def test_a_sandwich_normalises_on_both_sides():
    made, x = parts(), torch.randn(2, 3, WIDTH)
    outer = {"attention_out_norm": nn.RMSNorm(WIDTH), "mlp_out_norm": nn.LayerNorm(WIDTH)}
    middle = x + outer["attention_out_norm"](made["attention"](made["attention_norm"](x), None))
    expected = middle + outer["mlp_out_norm"](made["mlp"](made["mlp_norm"](middle)))
    torch.testing.assert_close(SandwichBlock(**made, **outer)(x), expected)


@pytest.mark.parametrize("kind", [Block, PostNormBlock, ParallelBlock])
def test_branches_are_dropped_in_training_only(kind):
    block, x = kind(**parts(), dropout=0.5), torch.randn(2, 3, WIDTH)
    block.dropout = 1.0  # which no constructor takes
    assert torch.equal(block.train()(x), x)
    assert not torch.equal(block.eval()(x), x)


def test_shared_gives_every_layer_one_block():
    made = []
    factory = Shared(block=lambda: made.append(nn.Identity()) or made[-1])
    assert factory() is factory() is made[0]
    assert len(made) == 1
