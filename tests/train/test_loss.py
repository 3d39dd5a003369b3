"""The chunked and the fused cross-entropy, against torch's on the whole batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.model import Unembedding, token_table
from fidgpt.model.reports import collecting
from fidgpt.train import CrossEntropy, FusedCrossEntropy, SmoothedLabels, ZLoss

ROWS, HIDDEN, VOCAB = 70, 16, 101


needs_fused = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy"
)


class Softcapped(nn.Module):
    """An unembedding with a bias and a nonlinearity, and a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, VOCAB)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return 5 * torch.tanh(self.linear(x) / 5)


def plain(features: Tensor, unembedding: nn.Module, targets: Tensor) -> Tensor:
    """What torch computes from all logits at once."""
    return F.cross_entropy(unembedding(features), targets)


@pytest.fixture
def features() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(ROWS, HIDDEN, requires_grad=True)


@pytest.fixture
def targets() -> Tensor:
    return torch.randint(0, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["tied table", "softcapped"])
def unembedding(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(2)
    if request.param == "softcapped":
        return Softcapped()
    module = Unembedding(token_table(vocab_size=VOCAB, hidden_dim=HIDDEN))
    nn.init.normal_(module.weight)
    return module


def _gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, materialize_grads=True))


@pytest.mark.parametrize("chunk_size", [1, 32, ROWS, 1000])
def test_loss_and_gradients_are_those_of_torch(features, unembedding, targets, chunk_size):
    inputs = [features, *unembedding.parameters()]
    expected = plain(features, unembedding, targets)
    loss = CrossEntropy(chunk_size=chunk_size)(features, unembedding, targets)
    torch.testing.assert_close(loss, expected, rtol=5e-7, atol=0)
    for ours, theirs in zip(
        _gradients(3 * loss, *inputs), _gradients(3 * expected, *inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=6e-8)


TERMS = {"z_loss": ZLoss(weight=0.1), "label_smoothing": SmoothedLabels(amount=0.2)}


@pytest.mark.parametrize("chunk_size", [32, 1000])
@pytest.mark.parametrize("names", [["z_loss"], ["label_smoothing"], ["z_loss", "label_smoothing"]])
def test_terms_have_gradients_of_their_formulas(features, unembedding, targets, names, chunk_size):
    inputs, logits = [features, *unembedding.parameters()], unembedding(features)
    expected = plain(features, unembedding, targets)
    whole = F.cross_entropy(
        logits, targets, label_smoothing=0.2 if "label_smoothing" in names else 0.0
    )
    extra = {
        "z_loss": 0.1 * logits.logsumexp(-1).square().mean(),
        "label_smoothing": whole - expected,
    }
    if "z_loss" in names:
        whole = whole + extra["z_loss"]
    with collecting() as reports:
        terms = {name: TERMS[name] for name in names}
        loss = CrossEntropy(terms=terms, chunk_size=chunk_size)(features, unembedding, targets)
    torch.testing.assert_close(loss, expected, rtol=5e-7, atol=0)
    assert {*reports.losses} == {*names}
    for name in names:
        torch.testing.assert_close(reports.losses[name], extra[name], rtol=2e-6, atol=1e-6)
    for ours, theirs in zip(
        _gradients(3 * loss, *inputs), _gradients(3 * whole, *inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=5e-6, atol=2e-7)


@pytest.mark.parametrize("terms", [{}, TERMS])
def test_what_is_not_counted_is_as_if_it_were_not_there(features, unembedding, targets, terms):
    counted = torch.rand(ROWS, generator=torch.Generator().manual_seed(5)) < 0.6
    inputs = [features, *unembedding.parameters()]
    loss = CrossEntropy(terms=terms, chunk_size=32)
    some = loss(features, unembedding, targets, counted)
    only = loss(features[counted], unembedding, targets[counted])
    torch.testing.assert_close(some, only)
    gradients = (_gradients(one, *inputs) for one in (some, only))
    torch.testing.assert_close(*gradients, rtol=2e-6, atol=6e-8)
    with torch.no_grad():
        torch.testing.assert_close(loss(features, unembedding, targets, counted), some)
    nothing = loss(features, unembedding, targets, torch.zeros(ROWS, dtype=torch.bool))
    assert nothing.item() == 0 and not _gradients(nothing, *inputs)[0].any()


def test_token_losses_are_those_of_torch(features, unembedding, targets):
    loss = CrossEntropy(chunk_size=32)
    losses = loss.token_losses(features, unembedding, targets)
    expected = F.cross_entropy(unembedding(features), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    assert not losses.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(loss(features, unembedding, targets), expected.mean())


@pytest.mark.parametrize("kind", [CrossEntropy, pytest.param(FusedCrossEntropy, marks=needs_fused)])
def test_bfloat16_errs_no_more_than_its_logits_do(features, unembedding, targets, kind):
    if kind is FusedCrossEntropy:
        unembedding = table_of(scale=0.3)
    expected = plain(features, unembedding, targets)
    exact = _gradients(expected, features, *unembedding.parameters())
    unembedding.bfloat16()
    inputs = [features.detach().bfloat16().requires_grad_(), *unembedding.parameters()]
    loss = kind(chunk_size=32)(inputs[0], unembedding, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
    for ours, theirs in zip(_gradients(loss, *inputs), exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.float() - theirs).norm() <= 1e-2 * theirs.norm()


def test_an_impossible_token_has_a_finite_loss_and_its_gradient():
    features = torch.tensor([[1000.0]], requires_grad=True)
    table = Unembedding(nn.Parameter(torch.tensor([[1.0], [-1.0]])))
    loss = CrossEntropy()(features, table, torch.tensor([1]))
    assert 87 < loss.item() < 88
    loss.backward()
    assert features.grad is not None and features.grad.item() == 2.0


def test_only_a_chunk_of_logits_exists_at_once(features, targets):
    heights = []

    class Watched(Unembedding):
        def forward(self, x: Tensor) -> Tensor:
            heights.append(len(x))
            return super().forward(x)

    unembedding = Watched(token_table(vocab_size=VOCAB, hidden_dim=HIDDEN))
    CrossEntropy(chunk_size=32)(features, unembedding, targets).backward()
    assert heights == [32, 32, 6]


def table_of(*, scale: float = 1.0, softcap: float | None = None) -> Unembedding:
    torch.manual_seed(2)
    table = token_table(vocab_size=VOCAB, hidden_dim=HIDDEN)
    nn.init.normal_(table)
    return Unembedding(table, scale=scale, softcap=softcap)


KINDS = {
    "plain": table_of(),
    "scaled": table_of(scale=0.3),
    "softcapped": table_of(softcap=5.0),
}


@needs_fused
@pytest.mark.parametrize(
    ("kind", "chunk_size", "share"),
    [("plain", 1, 1.0), ("plain", 32, 0.0), ("scaled", 32, 0.6), ("softcapped", 1000, 0.6)],
)
def test_the_fused_loss_is_that_of_torch(features, targets, kind, chunk_size, share):
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
