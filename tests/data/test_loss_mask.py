"""Tokens masked out of the loss: in the batch, in the loss, in its gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.data import inputs_and_targets, mask_loss, token_ids
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.loss import CrossEntropy, NextToken


class Bigram(LanguageModel):
    """A score for each pair of tokens."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(7, 5, generator=generator))
        self.unembedding = torch.nn.Linear(5, 7)
        with torch.no_grad():
            self.unembedding.weight.copy_(torch.randn(7, 5, generator=generator))

    def features(self, tokens: Tensor, ctx: object = None) -> Tensor:
        return self.table[tokens]


BATCH = torch.tensor([[1, 2, 3, 4, 0], [5, 6, 0, 0, 0]])
COUNTED = torch.tensor([[True, False, True, True], [True, True, False, False]])


def masked() -> Tensor:
    batch = BATCH.clone()
    batch[:, 1:] = torch.where(COUNTED, BATCH[:, 1:], mask_loss(BATCH[:, 1:]))
    return batch


def test_masked_tokens_are_still_inputs() -> None:
    assert torch.equal(token_ids(masked()), BATCH)
    assert torch.equal(mask_loss(mask_loss(BATCH)), BATCH)
    inputs, targets, mask = inputs_and_targets(masked())
    assert torch.equal(inputs, BATCH[:, :-1])
    assert torch.equal(targets, BATCH[:, 1:])
    assert mask is not None
    assert torch.equal(mask, COUNTED)


def test_without_masked_tokens_there_is_no_mask() -> None:
    assert inputs_and_targets(BATCH)[2] is None


def test_the_loss_and_its_gradient_are_those_of_the_other_tokens() -> None:
    model, reference = Bigram(), Bigram()
    reference.load_state_dict(model.state_dict())
    loss = NextToken(model, CrossEntropy(chunk_size=3))(masked())
    logits = reference(BATCH[:, :-1])
    targets = BATCH[:, 1:].where(COUNTED, torch.tensor(-100))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_loss_of_a_fully_masked_batch_is_zero() -> None:
    model = Bigram()
    batch = BATCH.clone()
    batch[:, 1:] = mask_loss(BATCH[:, 1:])
    loss = NextToken(model, CrossEntropy())(batch)
    loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.table.grad is not None
    assert model.table.grad.abs().max() == pytest.approx(0)
