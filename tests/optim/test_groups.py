"""Who decays and who does not."""

import torch
from torch import nn

from fidgpt.optim import decay_matrices


def test_matrices_decay_and_vectors_do_not():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Embedding(3, 8))
    matrices, vectors = decay_matrices(model)
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert "weight_decay" not in matrices
    assert vectors["weight_decay"] == 0.0


def test_every_parameter_is_in_one_group_once_also_a_shared_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    grouped = [p for group in decay_matrices(model) for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))
    torch.optim.AdamW(decay_matrices(model), lr=1.0)


def test_frozen_parameters_and_empty_groups_are_left_out():
    model = nn.Linear(4, 4, bias=False)
    assert [group["name"] for group in decay_matrices(model)] == ["matrices"]
    model.weight.requires_grad_(False)
    assert decay_matrices(model) == []
