"""Loss and bits per byte against closed forms."""

import math

import pytest
import torch
from torch import nn

from fidgpt.data import EvaluationStream
from fidgpt.model import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train import CrossEntropy, Validation

VOCAB = 16


class Indifferent(LanguageModel):
    """Believes that all tokens are alike, and notes whether it is in training."""

    def __init__(self):
        super().__init__()
        self.unembedding = nn.Linear(4, VOCAB)
        nn.init.zeros_(self.unembedding.weight)
        nn.init.zeros_(self.unembedding.bias)

    def features(self, tokens, layout=None):
        assert not self.training
        return torch.ones(*tokens.shape, 4)


class TwoBatches(EvaluationStream):
    """Token 0 stands for no bytes, every other for two."""

    @property
    def num_batches(self):
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


def test_every_below_one_is_refused():
    with pytest.raises(ValueError, match="every=0"):
        Validation(TwoBatches(), every=0)
