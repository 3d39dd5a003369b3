"""Blocks and the Transformer: norms, patterns, errors."""

import pytest
import torch
from torch import Tensor, nn

from fidgpt.model import (
    AttentionContext,
    Block,
    Embedding,
    ParallelBlock,
    PostNormBlock,
    SandwichBlock,
    Shared,
    Transformer,
    Unembedding,
    token_table,
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
def test_a_block_computes_its_formula(kind, formula, scale):
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


class Numbered(nn.Module):
    """Adds its number, so that sums show which blocks ran."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor, layout: AttentionContext) -> torch.Tensor:
        return x + self.number


class StackMixing(nn.Module):
    """Stands where attention does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, layout: AttentionContext | None) -> torch.Tensor:
        return self.linear(x)


def transformer(blocks, num_layers: int, hidden_dim: int = 4, width: int = 4) -> Transformer:
    table = token_table(vocab_size=7, hidden_dim=width)
    return Transformer(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        embedding=Embedding(table),
        blocks=blocks,
        norm=nn.Identity(),
        unembedding=Unembedding(table),
    )


@pytest.mark.parametrize(("kinds", "num_layers"), [(1, 3), (2, 5), (3, 3), (6, 12), (3, 2)])
def test_the_pattern_repeats_over_the_depth(kinds, num_layers):
    made = []

    def factory(kind):
        def make() -> Numbered:
            made.append(kind)
            return Numbered(kind)

        return make

    model = transformer([factory(kind) for kind in range(kinds)], num_layers)
    assert made == [i % kinds for i in range(num_layers)]
    assert [block.number for block in model.blocks] == made
    assert len(set(model.blocks)) == num_layers
    tokens = torch.tensor([[1, 2]])
    torch.testing.assert_close(model.features(tokens), model.embedding(tokens) + sum(made))


def test_a_factory_that_returns_one_block_shares_it():
    block = Numbered(1)
    assert set(transformer([lambda: block], 3).blocks) == {block}


def test_a_block_adds_both_branches_to_the_stream():
    block = Block(
        attention_norm=nn.LayerNorm(4, bias=False),
        attention=StackMixing(4),
        mlp_norm=nn.RMSNorm(4),
        mlp=nn.Linear(4, 4),
    )
    x = torch.randn(2, 3, 4)
    middle = x + block.attention(block.attention_norm(x), None)
    assert torch.equal(block(x), middle + block.mlp(block.mlp_norm(middle)))


def test_logits_are_the_unembedded_features(make_model):
    model = make_model()
    tokens = torch.randint(0, 50, (2, 9))
    assert torch.equal(model(tokens), model.unembedding(model.features(tokens)))
    assert model(tokens).shape == (2, 9, 50)


def test_a_later_token_never_changes_earlier_logits(make_model):
    model = make_model()
    tokens = torch.arange(12).view(1, 12)
    logits = model(tokens)
    for changed in (1, 6, 11):
        other = tokens.clone()
        other[:, changed:] += 20
        assert torch.equal(model(other)[:, :changed], logits[:, :changed])
        assert not torch.equal(model(other)[:, changed], logits[:, changed])


def test_dropout_works_in_training_only(make_model):
    model = make_model()
    tokens = torch.arange(12).view(1, 12)
    logits = model(tokens)
    for part in (model, *model.blocks):
        part.dropout = 0.5
        assert torch.equal(model(tokens), logits)
        model.train()
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        part.dropout = 0.0


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"num_layers": 0, "blocks": [lambda: Numbered(0)]}, ("num_layers=0", "1 or more")),
        ({"num_layers": 2, "blocks": []}, ("blocks=[]", "is empty")),
        (
            {"num_layers": 1, "blocks": [lambda: Numbered(0)], "hidden_dim": 8, "width": 4},
            ("hidden_dim=8", "width 4"),
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(options, numbers):
    with pytest.raises(ValueError) as error:
        transformer(**options)
    assert all(number in str(error.value) for number in numbers)
