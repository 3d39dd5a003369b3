"""Predicting further ahead: what is read, what is scored, what learns, and when none of it is."""

import copy
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.cost import flops_per_token
from fidgpt.model import (
    Attention,
    AttentionContext,
    Block,
    ContextFactory,
    Embedding,
    LearnedPositions,
    PackedDocuments,
    RMSNorm,
    RoPE,
    SwiGLU,
    Unembedding,
    materialize,
    one_document,
    padded,
    sdpa,
    token_table,
)
from fidgpt.model.cache import Cache
from fidgpt.model.prediction import MultiTokenTransformer, TokenLoss, TokenPrediction
from fidgpt.model.reports import Reports, collecting
from fidgpt.train import CrossEntropy
from fidgpt.train.loss import NextToken

VOCAB, HIDDEN = 50, 32


def small(
    *,
    num_predictions: int = 2,
    positions: nn.Module | None = None,
    loss: TokenLoss | None = None,
    layout: ContextFactory = one_document,
) -> MultiTokenTransformer:
    """A model of two layers, with all weights drawn widely."""
    rope = RoPE(head_dim=8)

    def block() -> Block:
        return Block(
            attention_norm=RMSNorm(hidden_dim=HIDDEN),
            attention=Attention(hidden_dim=HIDDEN, head_dim=8, rope=rope, kernel=sdpa),
            mlp_norm=RMSNorm(hidden_dim=HIDDEN),
            mlp=SwiGLU(hidden_dim=HIDDEN),
        )

    table = token_table(vocab_size=VOCAB, hidden_dim=HIDDEN)
    model = MultiTokenTransformer(
        hidden_dim=HIDDEN,
        num_layers=2,
        loss=CrossEntropy() if loss is None else loss,
        layout=layout,
        embedding=Embedding(table, positions=positions),
        blocks=[block],
        norm=RMSNorm(hidden_dim=HIDDEN),
        unembedding=Unembedding(table),
        num_predictions=num_predictions,
    )
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.is_meta:
            nn.init.normal_(parameter, std=0.3)
    return model


def text(batch: int = 2, seq: int = 12) -> Tensor:
    return torch.randint(1, VOCAB, (batch, seq), generator=torch.Generator().manual_seed(3))


def reported(
    model: MultiTokenTransformer, tokens: Tensor, layout: AttentionContext | None = None
) -> Reports:
    with collecting() as reports:
        model.train().features(tokens, layout)
    return reports


def by_hand(model: MultiTokenTransformer, document: Tensor) -> list[Tensor]:
    """The losses of every prediction on one document, token by token, as the paper writes them."""
    model = copy.deepcopy(model).eval()
    known, losses = model.features(document[None]), []
    for ahead, part in enumerate(model.predictions, start=1):
        assert isinstance(part, TokenPrediction)
        count = len(document) - ahead
        vectors = model.embedding.weight[document[ahead:]][None]
        joined = [part.hidden_norm(known[:, :count]), part.token_norm(vectors)]
        known = part.norm(part.block(part.project(torch.cat(joined, dim=-1)), None))
        logits = (known @ model.unembedding.weight.T)[0, :-1]
        losses.append(F.cross_entropy(logits, document[ahead + 1 :], reduction="none"))
    return losses


@pytest.mark.parametrize("num_predictions", [1, 3])
def test_each_prediction_is_that_of_the_paper(num_predictions):
    model, tokens = small(num_predictions=num_predictions), text()
    rows = [by_hand(model, row) for row in tokens]
    reports = reported(model, tokens)
    expected = [torch.cat(losses).mean() for losses in zip(*rows, strict=True)]
    for ahead, loss in enumerate(expected, start=1):
        torch.testing.assert_close(reports.metrics[f"mtp/{ahead}"], loss.detach())
    total = 0.3 * torch.stack(expected).mean()
    torch.testing.assert_close(reports.losses["mtp"], total)
    assert set(reports.metrics) == {f"mtp/{i + 1}" for i in range(num_predictions)}


def test_the_objective_adds_it_to_its_own():
    model, batch = small(), text()
    objective = NextToken(model, CrossEntropy())
    with torch.no_grad():
        alone = objective.eval()(batch)
        both = objective.train()(batch)
    torch.testing.assert_close(both - alone, reported(model, batch[:, :-1]).losses["mtp"])


def test_nothing_is_foretold_from_what_is_to_be_foretold():
    """A prediction k ahead at token i reads tokens up to i + k; its target is i + k + 1."""
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(features: Tensor, unembedding: nn.Module, targets: Tensor, _: object) -> Tensor:
        seen.append((features.unflatten(0, (2, -1)), targets.unflatten(0, (2, -1))))
        return features.sum()

    model, tokens = small(loss=keep), text()
    reported(model, tokens)
    before = seen[:]
    for changed in range(tokens.shape[1]):
        seen.clear()
        other = tokens.clone()
        other[:, changed] = (tokens[:, changed] + 1) % VOCAB
        reported(model, other)
        for ahead, ((old, target), (new, _)) in enumerate(zip(before, seen, strict=True), 1):
            first = max(0, changed - ahead)  # that may know of it
            assert torch.equal(old[:, :first], new[:, :first])
            assert not torch.isclose(old[:, first:], new[:, first:]).all() or first >= old.shape[1]
            assert torch.equal(target, tokens[:, ahead + 1 :])


def test_documents_are_foretold_as_if_alone():
    layout = PackedDocuments(end_of_text=0)
    model, tokens = small(layout=layout), text(batch=1)
    tokens[0, 5] = 0  # begins the second document
    documents = tokens[0, :6], tokens[0, 5:]  # the first one foretells where it ends
    reports = reported(model, tokens)
    model.layout = one_document
    for ahead in (1, 2):
        losses = [by_hand(model, document)[ahead - 1] for document in documents]
        expected = torch.cat(losses).mean().detach()
        torch.testing.assert_close(reports.metrics[f"mtp/{ahead}"], expected)


def test_rows_that_are_padded_count_their_tokens_alone():
    model, tokens = small(), text()
    present = torch.tensor([[0] * 4 + [1] * 8, [1] * 7 + [0] * 5])
    reports = reported(model, tokens, padded(tokens, present=present))
    rows = [by_hand(model, row[there.bool()]) for row, there in zip(tokens, present, strict=True)]
    for ahead, losses in enumerate(zip(*rows, strict=True), start=1):
        expected = torch.cat(losses).mean().detach()
        torch.testing.assert_close(reports.metrics[f"mtp/{ahead}"], expected)


def test_learned_positions_are_those_of_the_tokens():
    positions = LearnedPositions(seq_len=12, hidden_dim=HIDDEN)
    model = small(num_predictions=1, positions=positions)
    shown: list[Tensor] = []
    positions.register_forward_pre_hook(lambda _, given: shown.append(given[0]))
    reported(model, text())
    assert [numbers[0].tolist() for numbers in shown] == [list(range(12)), list(range(1, 11))]


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_what_is_too_short_is_not_foretold(seq):
    reports = reported(small(), text(seq=seq))
    assert list(reports.metrics) == ["mtp/1", "mtp/2"][: max(0, seq - 2)]


def test_no_target_at_all_is_no_loss_and_no_nan():
    model = small(layout=PackedDocuments(end_of_text=0))
    reports = reported(model, torch.zeros(2, 12, dtype=torch.long))
    assert reports.losses["mtp"] == 0
    reports.losses["mtp"].backward()
    assert not any(p.grad.isnan().any() for p in model.parameters() if p.grad is not None)


def test_everything_learns_from_it():
    model = small()
    reported(model, text()).losses["mtp"].backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.any()


def test_evaluation_and_generation_know_nothing_of_it():
    model, tokens = small(), text()
    plain = super(MultiTokenTransformer, model).features
    with collecting() as reports:
        model.eval()
        assert torch.equal(model.features(tokens), plain(tokens))
        cached = replace(one_document(tokens), cache=Cache(capacity=12))
        assert torch.equal(model.train().features(tokens, cached), plain(tokens))
        assert not reports.losses and not reports.metrics


def test_it_costs_what_torch_counts():
    with torch.device("meta"):
        model, tokens = small(loss=lambda x, score, *_: score(x).sum()), text(seq=512)
    with FlopCounterMode(display=False) as counter, collecting():
        model.train()(tokens.to("meta"))
    counted = counter.get_total_flops() / tokens.numel()
    assert flops_per_token(model, seq_len=512) == pytest.approx(counted, rel=1e-2)


def test_it_is_built_without_memory_and_filled():
    with torch.device("meta"):
        model = small()
    materialize(model, device=torch.device("cpu"), seed=0)
    assert model.embedding.weight is model.unembedding.weight
    assert reported(model, text()).losses["mtp"].item() == pytest.approx(0.3 * 3.9, rel=0.05)


@pytest.mark.parametrize(("num_layers", "kind"), [(1, "c"), (2, "b"), (3, "a"), (4, "b")])
def test_its_block_is_like_that_of_the_last_layer(num_layers, kind):
    class Named(nn.Identity):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    table = token_table(vocab_size=VOCAB, hidden_dim=HIDDEN)
    model = MultiTokenTransformer(
        hidden_dim=HIDDEN,
        num_layers=num_layers,
        embedding=Embedding(table),
        blocks=[partial(Named, "a"), partial(Named, "b")],
        first_blocks=[partial(Named, "c")],
        norm=nn.Identity(),
        unembedding=Unembedding(table),
        loss=CrossEntropy(),
    )
    (prediction,) = model.predictions
    assert isinstance(prediction, TokenPrediction) and isinstance(prediction.block, Named)
    assert prediction.block.name == kind == cast(Named, model.blocks[-1]).name
    assert prediction.block is not model.blocks[-1]


def test_without_a_prediction_it_is_refused():
    with pytest.raises(ValueError, match="num_predictions=0"):
        small(num_predictions=0)
