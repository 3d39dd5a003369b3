"""Muon and AdamW as one optimizer, against torch's own side by side."""

from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import untie_embeddings, use_muon, use_mup
from fidgpt.optim import Muon, is_hidden_matrix, split_hidden_matrices

STEPS = 4
SETTINGS: dict[str, Any] = dict(lr=1e-2, weight_decay=0.3)


class Stack(nn.Module):
    """Tables, a square and a flat matrix, a stack of matrices, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 6)
        self.square = nn.Linear(6, 6)
        self.flat = nn.Linear(6, 10, bias=False)
        self.experts = nn.Parameter(torch.randn(3, 10, 4))


def give_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer) -> nn.Module:
    for step in range(STEPS):
        give_gradients(model, step)
        for optimizer in optimizers:
            optimizer.step()
    return model


def test_hidden_matrices_step_as_torch_muon_and_the_rest_as_torch_adamw() -> None:
    model, reference = Stack(), Stack()
    train(model, Muon(split_hidden_matrices(model), **SETTINGS, betas=(0.8, 0.9), eps=1e-6))
    # Torch's own takes no stack of matrices: each becomes a parameter.
    single = [nn.Parameter(one.clone()) for one in reference.experts.detach()]
    hidden = [reference.square.weight, reference.flat.weight]
    muon = torch.optim.Muon(hidden + single, **SETTINGS, adjust_lr_fn="match_rms_adamw")
    vectors = {"params": [reference.square.bias], "weight_decay": 0.0}
    tables = {"params": [reference.embedding.weight]}
    adamw = torch.optim.AdamW([tables, vectors], **SETTINGS, betas=(0.8, 0.9), eps=1e-6, fused=True)
    for step in range(STEPS):
        give_gradients(reference, step)
        assert reference.experts.grad is not None
        for one, gradient in zip(single, reference.experts.grad, strict=True):
            one.grad = gradient
        muon.step()
        adamw.step()
    with torch.no_grad():
        reference.experts.copy_(torch.stack([*single]))
    for (name, own), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.equal(own, theirs), name


def test_the_step_is_orthogonal() -> None:
    """Singular values near 1, times 0.2 sqrt(10) of arXiv:2502.16982 (section 2.2)."""
    model = Stack()
    before = model.flat.weight.detach().clone()
    optimizer = Muon(split_hidden_matrices(model), lr=1.0, weight_decay=0.0, nesterov=False)
    give_gradients(model, 0)
    optimizer.step()
    values = torch.linalg.svdvals(model.flat.weight - before) / (0.2 * 10**0.5)
    assert values.min() > 0.5 and values.max() < 1.5


@pytest.mark.parametrize(
    ("orthogonal", "names"),
    [
        (True, {"square.weight", "flat.weight", "experts"}),
        (False, {"embedding.weight", "square.bias"}),
    ],
)
def test_a_group_steps_at_its_own_rate_that_may_change(orthogonal: bool, names: set[str]) -> None:
    model = Stack()
    optimizer = Muon(split_hidden_matrices(model), lr=1e-2)
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if group["orthogonal"] == orthogonal else 1e-2
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, optimizer)
    assert {name for name, p in model.named_parameters() if torch.equal(p, before[name])} == names


def test_a_parameter_without_gradient_stays() -> None:
    model = Stack()
    optimizer = Muon(split_hidden_matrices(model), lr=1e-2)
    give_gradients(model, 0)
    model.experts.grad = model.embedding.weight.grad = None
    before = model.experts.detach().clone()
    optimizer.step()
    assert torch.equal(model.experts, before)
    assert model.experts not in optimizer.state


def test_groups_are_split_and_keep_their_settings() -> None:
    groups = split_hidden_matrices(Stack(), lr_scale=2.0)
    assert [(group["name"], len(group["params"])) for group in groups] == [
        ("matrices", 1),
        ("hidden matrices", 3),
        ("vectors", 1),
    ]
    assert [group.get("orthogonal", False) for group in groups] == [False, True, False]
    assert [group.get("lr_scale", 1.0) for group in groups] == [1.0, 2.0, 1.0]
    assert groups[2]["weight_decay"] == 0.0


def test_of_a_model_every_matrix_but_the_tables_is_orthogonal() -> None:
    cfg = debug()
    untie_embeddings(cfg)
    use_muon(cfg)
    trainer = build_trainer(cfg)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    optimizer = trainer.optimizer(trainer.groups(trainer.model))
    stepped = {
        names[id(p)]
        for group in optimizer.param_groups
        if group["orthogonal"]
        for p in group["params"]
    }
    wanted = {name for name, p in trainer.model.named_parameters() if is_hidden_matrix(name, p)}
    assert stepped == wanted
    assert not {name for name in stepped if "embedding" in name or "norm" in name}
    assert {"blocks.0.attention.query.weight", "blocks.1.mlp.down.weight"} <= stepped


def test_with_mup_the_hidden_matrices_keep_their_rate() -> None:
    cfg = debug()
    use_muon(cfg, matrix_scale=0.5)
    use_mup(cfg, base_dim=8)
    model = build_trainer(cfg).model
    groups = {group["name"]: group for group in build_trainer(cfg).groups(model)}
    assert groups["hidden matrices"]["lr_scale"] == 0.5 * 8 / 32
    assert groups["hidden matrices"]["orthogonal"]


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"params": [nn.Parameter(torch.zeros(2, 2))]}, "no parameter group is orthogonal"),
        (
            {"params": [nn.Parameter(torch.zeros(2))], "orthogonal": True},
            r"not a parameter of shape \[2\]",
        ),
    ],
)
def test_what_it_cannot_step_is_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Muon([group], lr=1e-3)


def test_every_parameter_may_be_a_matrix() -> None:
    linear = nn.Linear(3, 3, bias=False)
    optimizer = Muon([{"params": [linear.weight], "orthogonal": True}], lr=1e-2)
    assert train(linear, optimizer) is linear


def test_a_closure_is_called() -> None:
    linear = nn.Linear(3, 3, bias=False)
    optimizer = Muon([{"params": [linear.weight], "orthogonal": True}], lr=1e-2)
    assert optimizer.step(lambda: 7.0) == 7.0
