"""How likely a text is, against probabilities written out."""

import math

import pytest
import torch
from torch import nn

from fidgpt.model import padded
from fidgpt.model.generation import log_probabilities, score


@pytest.fixture
def model(make_model):
    model = make_model(tied=False)
    nn.init.normal_(model.unembedding.weight, std=1.0)
    return model


def one_by_one(model, tokens: list[int], *, begins: list[int]) -> torch.Tensor:
    """Of each token but the first, after what stands from `begins` on."""
    found = []
    with torch.no_grad():
        for index, begin in enumerate(begins, start=1):
            logits = model(torch.tensor([tokens[begin:index]]))[0, -1]
            found.append(logits.log_softmax(0)[tokens[index]])
    return torch.stack(found)


def test_each_token_is_scored_after_those_before_it(model):
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    scored = score(model, tokens, context=99)
    expected = one_by_one(model, tokens, begins=[0] * 7)
    torch.testing.assert_close(scored.log_probabilities, expected, atol=1e-5, rtol=1e-5)
    nats = -expected.double().sum().item()
    assert scored.nats == pytest.approx(nats)
    assert scored.perplexity == pytest.approx(math.exp(nats / 7))
    assert scored.bits_per_byte(20) == pytest.approx(nats / math.log(2) / 20)


def test_a_long_text_is_read_in_windows_that_overlap_by_half(model):
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    scored = score(model, tokens, context=4)
    expected = one_by_one(model, tokens, begins=[0, 0, 0, 0, 2, 2, 4, 4, 6, 6])
    torch.testing.assert_close(scored.log_probabilities, expected, atol=1e-5, rtol=1e-5)
    single = score(model, tokens, context=1)
    expected = one_by_one(model, tokens, begins=list(range(10)))
    torch.testing.assert_close(single.log_probabilities, expected, atol=1e-5, rtol=1e-5)


def test_rows_of_different_length_are_scored_at_once(model):
    tokens = torch.tensor([[0, 0, 7, 8, 9], [1, 2, 3, 4, 5]])
    present = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    scored = log_probabilities(model, tokens, padded(tokens[:, :-1], present=present))
    for row, absent in enumerate((2, 0)):
        alone = score(model, tokens[row, absent:].tolist(), context=99).log_probabilities
        torch.testing.assert_close(scored[row, absent:], alone, atol=1e-5, rtol=1e-5)


def test_equal_logits_have_the_perplexity_of_the_vocabulary(model):
    nn.init.zeros_(model.unembedding.weight)
    scored = score(model, [1, 2, 3], context=9)
    assert scored.perplexity == pytest.approx(50, rel=1e-6)


@pytest.mark.parametrize(("tokens", "context"), [([1], 9), ([1, 2], 0)])
def test_nothing_to_score_is_refused(model, tokens, context):
    with pytest.raises(ValueError, match=f"{len(tokens)} tokens in a context of {context}"):
        score(model, tokens, context=context)
