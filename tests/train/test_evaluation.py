"""Loss and bits per byte against closed forms."""

import math

import pytest
import torch
from torch import nn

from fidgpt.data import DataError, EvaluationStream, mask_loss
from fidgpt.model import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train import CrossEntropy, DomainValidation, Validation

VOCAB = 16


class Indifferent(LanguageModel):
    """Believes that all tokens are alike, and notes whether it is in training."""

    def __init__(self):
        super().__init__()
        self.unembedding = nn.Linear(4, VOCAB)
        nn.init.zeros_(self.unembedding.weight)
        nn.init.zeros_(self.unembedding.bias)

    def features(self, tokens, ctx=None):
        assert not self.training
        return torch.ones(*tokens.shape, 4)


class TwoBatches(EvaluationStream):
    """Token 0 stands for no bytes, every other for two."""

    @property
    def num_batches(self) -> int:
        return 2

    @property
    def token_bytes(self):
        return torch.tensor([0] + [2] * (VOCAB - 1))

    def prepare(self, *, show_progress=True):
        pass

    def batch(self, number, *, rank=0, world_size=1):
        return torch.tensor([[1, 2, 3, 0]]) if number else torch.tensor([[5, 6, 7, 8]])


def test_an_indifferent_model_has_the_loss_of_a_fair_die():
    model = Indifferent()
    measured = Validation(TwoBatches())(model, CrossEntropy(), DataParallel())
    assert measured["loss"] == pytest.approx(math.log(VOCAB))
    # Six targets of log2(16) = 4 bits each; five of them stand for two bytes.
    assert measured["bits_per_byte"] == pytest.approx(6 * 4 / 10)
    assert model.training


def test_the_last_step_is_always_measured():
    validation = Validation(TwoBatches(), every=4)
    assert [step for step in range(1, 11) if validation.due(step, num_steps=10)] == [4, 8, 10]
    only_last = Validation(TwoBatches(), every=None)
    assert [step for step in range(1, 11) if only_last.due(step, num_steps=10)] == [10]


class Other(TwoBatches):
    """One batch of three targets, two of which are not learned; each token stands for one byte."""

    @property
    def num_batches(self):
        return 1

    @property
    def token_bytes(self):
        return torch.ones(VOCAB, dtype=torch.long)

    def batch(self, number, *, rank=0, world_size=1):
        tokens = torch.tensor([[1, 2, 3, 0]])
        tokens[:, 1:3] = mask_loss(tokens[:, 1:3])
        return tokens


class Silent(Other):
    """Nothing of it is learned, so that it has no loss that could count in a mean."""

    def batch(self, number, *, rank=0, world_size=1):
        tokens = super().batch(number)
        tokens[:, 1:] = mask_loss(tokens[:, 1:].abs())
        return tokens


def test_each_domain_is_measured_and_all_together():
    domains = {"two": TwoBatches(), "other": Other()}
    measured = DomainValidation(domains)(Indifferent(), CrossEntropy(), DataParallel())
    assert measured.pop("macro_loss") == pytest.approx(math.log(VOCAB))
    assert measured.pop("macro_bits_per_byte") == pytest.approx((6 * 4 / 10 + 4) / 2)
    with_silent = DomainValidation({**domains, "silent": Silent()})
    again = with_silent(Indifferent(), CrossEntropy(), DataParallel())
    assert again["macro_loss"] == pytest.approx(math.log(VOCAB))
    assert again["macro_bits_per_byte"] == pytest.approx((6 * 4 / 10 + 4) / 2)
    assert measured["two/bits_per_byte"] == pytest.approx(6 * 4 / 10)
    assert measured["other/bits_per_byte"] == pytest.approx(4)  # one target of one byte
    assert measured["bits_per_byte"] == pytest.approx(7 * 4 / 11)
    assert measured["loss"] == measured["two/loss"] == pytest.approx(math.log(VOCAB))
    assert {*measured} == {
        f"{domain}{key}"
        for domain in ("", "two/", "other/")
        for key in ("loss", "perplexity", "bits_per_byte")
    }


def test_a_domain_without_text_is_named():
    class Short(TwoBatches):
        def prepare(self, *, show_progress=True):
            raise DataError("The held-out text is shorter than one sequence.")

    with pytest.raises(DataError, match="domain 'poems' .* shorter than one sequence"):
        DomainValidation({"poems": Short()}).prepare()
    with pytest.raises(ValueError, match="at least one stream"):
        DomainValidation({})
