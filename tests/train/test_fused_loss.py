"""Torch's own fused cross-entropy, against torch's on the whole batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.model import Unembedding, token_table
from fidgpt.model.reports import collecting
from fidgpt.train import FusedCrossEntropy, ZLoss

ROWS, HIDDEN, VOCAB = 70, 16, 101

pytestmark = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy"
)


@pytest.fixture
def targets() -> Tensor:
    return torch.randint(0, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def features() -> Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0)).requires_grad_()


def unembedding(*, scale: float = 1.0, softcap: float | None = None) -> Unembedding:
    torch.manual_seed(2)
    table = token_table(vocab_size=VOCAB, hidden_dim=HIDDEN)
    nn.init.normal_(table)
    return Unembedding(table, scale=scale, softcap=softcap)


KINDS = {
    "plain": unembedding(),
    "scaled": unembedding(scale=0.3),
    "softcapped": unembedding(softcap=5.0),
}


@pytest.mark.parametrize("chunk_size", [1, 32, 1000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_loss_and_gradients_are_those_of_torch(features, targets, kind, chunk_size, share):
    module = KINDS[kind]
    counted = torch.rand(ROWS, generator=torch.Generator().manual_seed(5)) < share
    inputs = [features, module.weight]
    each = F.cross_entropy(module(features), targets, reduction="none")
    expected = (each * counted).sum() / counted.sum().clamp_min(1)
    loss = FusedCrossEntropy(chunk_size=chunk_size)(
        features, module, targets, None if share == 1.0 else counted
    )
    torch.testing.assert_close(loss, expected, rtol=5e-7, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, inputs),
        torch.autograd.grad(3 * expected, inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=3e-6, atol=1e-7)


def test_a_tied_table_gets_both_of_its_gradients(targets):
    tokens, grads = targets.roll(1), []
    for loss in (FusedCrossEntropy(chunk_size=32), lambda x, u, y: F.cross_entropy(u(x), y)):
        table = unembedding().weight
        for _ in range(2):  # as two micro-batches would
            (loss(F.embedding(tokens, table), Unembedding(table), targets) / 2).backward()
        grads.append(table.grad)
    torch.testing.assert_close(*grads, rtol=3e-6, atol=1e-7)


def test_the_value_has_more_digits_than_bfloat16(features, targets):
    module = unembedding(scale=0.3)
    expected = F.cross_entropy(module(features), targets)
    exact = torch.autograd.grad(expected, [features, module.weight])
    module.bfloat16()
    inputs = [features.detach().bfloat16().requires_grad_(), module.weight]
    loss = FusedCrossEntropy(chunk_size=32)(inputs[0], module, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
    for ours, theirs in zip(torch.autograd.grad(loss, inputs), exact, strict=True):
        assert (ours.float() - theirs).norm() <= 1e-2 * theirs.norm()


def test_what_torch_does_not_know_is_added_all_the_same(features, targets):
    with collecting() as reports:
        FusedCrossEntropy(terms={"z_loss": ZLoss()})(features, unembedding(), targets)
    assert {*reports.losses} == {"z_loss"}


def test_a_torch_without_it_is_told_of(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy")
    with pytest.raises(ValueError, match="update torch, or use CrossEntropy"):
        FusedCrossEntropy()
