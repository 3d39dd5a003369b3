"""Who decays and who does not."""

import fiddle as fdl
import torch
from torch import nn

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import untie_embeddings
from fidgpt.optim import decay_matrices, mup_groups, split_hidden_matrices


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


def untied(cfg: fdl.Config) -> fdl.Config:
    untie_embeddings(cfg)
    return cfg


def test_hidden_matrices_alone_learn_by_their_width():
    model = build_trainer(untied(debug())).model
    groups = {group["name"]: group for group in mup_groups(model, base_dim=8)}
    assert groups["hidden matrices"]["lr_scale"] == 8 / 32
    assert all("lr_scale" not in groups[name] for name in ("matrices", "vectors"))
    tables = {id(model.get_parameter(f"{name}.weight")) for name in ("embedding", "unembedding")}
    assert {id(p) for p in groups["matrices"]["params"]} == tables
    assert groups["vectors"]["weight_decay"] == 0.0
    grouped = [p for group in groups.values() for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in model.parameters()}
    assert len(grouped) == len({id(p) for p in grouped})


def test_groups_without_names_can_be_split_and_rates_multiply():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
    dealt = [{"params": [*model.parameters()], "lr_scale": 2.0}]
    others, hidden = split_hidden_matrices(model, groups=lambda _: dealt, lr_scale=0.5)
    assert "name" not in others and others["lr_scale"] == 2.0
    assert hidden["name"] == "hidden" and hidden["lr_scale"] == 1.0
    assert [p.dim() for p in hidden["params"]] == [2]
