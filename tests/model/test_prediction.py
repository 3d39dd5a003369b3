"""Predicting further ahead: what is read, what is scored, what learns, and when none of it is."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import CPU, filled, small_block, small_model
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fidgpt import model as lm
from fidgpt.cost import forward_pass
from fidgpt.model.cache import Cache
from fidgpt.model.reports import Reports, collecting
from fidgpt.train import CrossEntropy
from fidgpt.train.loss import NextToken

VOCAB = 50


def small(
    *, num_predictions: int = 2, loss: Any = None, **options: Any
) -> lm.MultiTokenTransformer:
    """A model of two layers, with all weights drawn widely."""
    model = small_model(
        partial(small_block, partial(lm.Attention, rope=lm.RoPE(head_dim=8), kernel=lm.sdpa)),
        kind=lm.MultiTokenTransformer,
        loss=loss or CrossEntropy(),
        num_predictions=num_predictions,
        **options,
    )
    return filled(model) if model.device == CPU else model


def text(batch: int = 2, seq: int = 12) -> Tensor:
    return torch.randint(1, VOCAB, (batch, seq), generator=torch.Generator().manual_seed(3))


def reported(
    model: lm.MultiTokenTransformer, tokens: Tensor, layout: lm.AttentionContext | None = None
) -> Reports:
    with collecting() as reports:
        model.train().features(tokens, layout)
    return reports


def by_hand(model: lm.MultiTokenTransformer, document: Tensor) -> list[Tensor]:
    """The losses of every prediction on one document, token by token, as the paper writes them."""
    model = copy.deepcopy(model).eval()
    known, losses = model.features(document[None]), []
    for ahead, part in enumerate(model.predictions, start=1):
        assert isinstance(part, lm.TokenPrediction)
        count = len(document) - ahead
        vectors = model.embedding.weight[document[ahead:]][None]
        joined = [part.hidden_norm(known[:, :count]), part.token_norm(vectors)]
        known = part.norm(part.block(part.project(torch.cat(joined, dim=-1)), None))
        logits = (known @ torch.as_tensor(model.unembedding.weight).T)[0, :-1]
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
    reports.losses["mtp"].backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert set(reports.metrics) == {f"mtp/{i + 1}" for i in range(num_predictions)}


def test_the_objective_adds_it_to_its_own():
    model, batch = small(), text()
    objective = NextToken(model, CrossEntropy())
    with torch.no_grad():
        alone = objective.eval()(batch)
        both = objective.train()(batch)
    torch.testing.assert_close(both - alone, reported(model, batch[:, :-1]).losses["mtp"])


def compare_by_hand(model: lm.MultiTokenTransformer, reports: Reports, documents: Any) -> None:
    """Reports, and the mean over documents that are predicted as if alone."""
    rows = [by_hand(model, document) for document in documents]
    for ahead, losses in enumerate(zip(*rows, strict=True), start=1):
        expected = torch.cat(losses).mean().detach()
        torch.testing.assert_close(reports.metrics[f"mtp/{ahead}"], expected)


def test_documents_are_predicted_as_if_alone():
    model, tokens = small(layout=lm.PackedDocuments(end_of_text=0)), text(batch=1)
    tokens[0, 5] = 0  # begins the second document
    reports = reported(model, tokens)
    model.layout = lm.one_document
    # The first one predicts where it ends.
    compare_by_hand(model, reports, [tokens[0, :6], tokens[0, 5:]])


def test_rows_that_are_padded_count_their_tokens_alone():
    model, tokens = small(), text()
    present = torch.tensor([[0] * 4 + [1] * 8, [1] * 7 + [0] * 5])
    reports = reported(model, tokens, lm.padded(tokens, present=present))
    rows = [row[there.bool()] for row, there in zip(tokens, present, strict=True)]
    compare_by_hand(model, reports, rows)


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_sequences_that_are_too_short_are_not_predicted(seq):
    reports = reported(small(), text(seq=seq))
    assert list(reports.metrics) == ["mtp/1", "mtp/2"][: max(0, seq - 2)]


def test_evaluation_and_generation_compute_no_prediction():
    model, tokens = small(), text()
    with collecting() as reports:
        features = model.eval().features(tokens)
        cached = replace(lm.one_document(tokens), cache=Cache(capacity=12))
        assert torch.equal(model.train().features(tokens, cached), features)
        assert not reports.losses and not reports.metrics
    with pytest.raises(ValueError, match="num_predictions=0"):
        small(num_predictions=0)


def test_predictions_count_as_operations():
    with torch.device("meta"):
        model, tokens = small(loss=lambda x, score, *_: score(x).sum()), text(seq=512)
    with FlopCounterMode(display=False) as counter, collecting():
        model.train()(tokens.to("meta"))
    found = forward_pass(model, seq_len=512)
    seen = sum(found.times(path) * flops.attention for path, flops in found.places.items())
    counted = counter.get_total_flops() / tokens.numel()
    assert found.total + seen == pytest.approx(counted, rel=1e-2)
