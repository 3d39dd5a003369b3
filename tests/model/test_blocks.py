"""Blocks and the Transformer: norms, patterns, errors."""

from functools import partial
from typing import Any

import pytest
import torch
from small_models import drawn, make_model, small_model
from torch import Tensor, nn

from fidgpt import model as lm

WIDTH = 6
X = drawn(2, 3, WIDTH)
TOKENS = torch.arange(12).view(1, 12)


class Mixing(nn.Linear):
    """Stands where attention does."""

    def forward(self, x: Tensor, ctx: object) -> Tensor:  # pyright: ignore
        return super().forward(x)


def parts(*more: str) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "attention_norm": nn.LayerNorm(WIDTH, bias=False),
        "attention": Mixing(WIDTH, WIDTH),
        "mlp_norm": nn.RMSNorm(WIDTH),
        "mlp": nn.Linear(WIDTH, WIDTH),
        **{name: nn.LayerNorm(WIDTH) for name in more},
    }


OUT_NORMS = ("attention_out_norm", "mlp_out_norm")


def pre(x, p, scale):
    x = x + scale * p["attention"](p["attention_norm"](x), None)
    return x + scale * p["mlp"](p["mlp_norm"](x))


def post(x, p, scale):
    x = x + scale * p["attention_norm"](p["attention"](x, None))
    return x + scale * p["mlp_norm"](p["mlp"](x))


def parallel(x, p, scale):
    both = p["attention"](p["attention_norm"](x), None) + p["mlp"](p["mlp_norm"](x))
    return x + scale * both


def sandwich(x, p, scale):
    x = x + scale * p["attention_out_norm"](p["attention"](p["attention_norm"](x), None))
    return x + scale * p["mlp_out_norm"](p["mlp"](p["mlp_norm"](x)))


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(
    ("kind", "formula", "norms"),
    [
        (lm.Block, pre, ()),
        (lm.PostNormBlock, post, ()),
        (lm.ParallelBlock, parallel, ()),
        (lm.SandwichBlock, sandwich, OUT_NORMS),
    ],
)
def test_a_block_computes_its_formula_and_drops_branches_in_training(kind, formula, norms, scale):
    made = parts(*norms)
    block = kind(**made, branch_scale=scale, dropout=0.5).eval()
    torch.testing.assert_close(block(X), formula(X, made, scale))
    block.dropout = 1.0  # which no constructor takes
    assert torch.equal(block.train()(X), X)


def test_a_layer_may_have_one_branch_alone():
    made = parts()
    mixing = lm.Block(**made | {"mlp_norm": nn.Identity(), "mlp": lm.NoMLP()})
    mixed = X + made["attention"](made["attention_norm"](X), None)
    torch.testing.assert_close(mixing(X), mixed)
    computing = lm.Block(**made | {"attention_norm": nn.Identity(), "attention": lm.NoMixer()})
    torch.testing.assert_close(computing(X), X + made["mlp"](made["mlp_norm"](X)))


def test_a_pair_of_mixers_adds_what_both_return():
    first, second = Mixing(WIDTH, WIDTH), Mixing(WIDTH, WIDTH)
    pair = lm.MixerPair(first=first, second=second, first_scale=0.5, second_scale=-2.0)
    torch.testing.assert_close(pair(X), 0.5 * first(X, None) - 2.0 * second(X, None))


class Numbered(nn.Module):
    """Adds its number, so that sums show which blocks ran."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor, ctx: object) -> Tensor:
        return x + self.number


@pytest.mark.parametrize(("kinds", "num_layers"), [(1, 3), (2, 5), (3, 3), (6, 12), (3, 2)])
def test_the_pattern_repeats_over_the_depth(kinds, num_layers):
    factories = [partial(Numbered, kind) for kind in range(kinds)]
    model = small_model(*factories, num_layers=num_layers, norm=nn.Identity())
    numbers = [i % kinds for i in range(num_layers)]
    assert [block.number for block in model.blocks] == numbers
    assert len(set(model.blocks)) == num_layers
    torch.testing.assert_close(model.features(TOKENS), model.embedding(TOKENS) + sum(numbers))


def test_logits_are_the_unembedded_features_and_blind_to_later_tokens():
    model = make_model()
    logits = model(TOKENS)
    assert torch.equal(logits, model.unembedding(model.features(TOKENS)))
    assert logits.shape == (1, 12, 50)
    for changed in (1, 6, 11):
        other = TOKENS.clone()
        other[:, changed:] += 20
        assert torch.equal(model(other)[:, :changed], logits[:, :changed])
        assert not torch.equal(model(other)[:, changed], logits[:, changed])


def test_dropout_works_in_training_only():
    model = make_model()
    logits = model(TOKENS)
    for part in (model, *model.blocks):
        part.dropout = 0.5
        assert torch.equal(model(TOKENS), logits)
        assert not torch.equal(model.train()(TOKENS), model(TOKENS))
        model.eval()
        part.dropout = 0.0
