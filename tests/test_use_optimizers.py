"""Fiddlers of optimizers: quantities stay where tags find them, groups fit the optimizer."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.graph import fingerprint, set_tag
from fidgpt.optim import Lion, Muon, decay_matrices
from fidgpt.tags import LearningRate, WeightDecay

MADE = {
    "use_adamw": torch.optim.AdamW,
    "use_muon": Muon,
    "use_lion": Lion,
    "use_sgd": torch.optim.SGD,
    "use_adafactor": torch.optim.Adafactor,
}
OTHER = [name for name in MADE if name != "use_adamw"]
Fiddler = Callable[..., None]


def use(name: str) -> Fiddler:
    return getattr(fiddlers, name)


def groups_of(cfg: fdl.Config) -> list[dict[str, Any]]:
    trainer = build_trainer(cfg)
    return trainer.optimizer(trainer.groups(trainer.model)).param_groups


@pytest.mark.parametrize("name", MADE)
def test_it_is_the_optimizer_and_tags_still_reach_it(name: str) -> None:
    cfg = debug()
    use(name)(cfg)
    before = {group["lr"] for group in groups_of(cfg)}
    assert before == {group["lr"] for group in groups_of(debug())}
    set_tag(cfg, LearningRate, 0.125)
    set_tag(cfg, WeightDecay, 0.25)
    trainer = build_trainer(cfg)
    optimizer = trainer.optimizer(trainer.groups(trainer.model))
    assert isinstance(optimizer, MADE[name])
    assert {group["lr"] for group in optimizer.param_groups} == {0.125}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.25, 0.0}
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in trainer.model.parameters())


@pytest.mark.parametrize("name", OTHER)
def test_a_learning_rate_may_be_given(name: str) -> None:
    cfg = debug()
    use(name)(cfg, learning_rate=0.5)
    assert {group["lr"] for group in groups_of(cfg)} == {0.5}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("mup", [False, True])
def test_adamw_comes_back_as_it_was(name: str, mup: bool) -> None:
    cfg, same = debug(), debug()
    if mup:
        fiddlers.use_mup(cfg)
        fiddlers.use_mup(same)
    use(name)(cfg)
    if name == "use_muon" and not mup:
        assert cfg.groups is not decay_matrices
    fiddlers.use_adamw(cfg)
    if name == "use_muon":
        assert fingerprint(cfg) == fingerprint(same)
    assert cfg.groups == same.groups


def test_numbers_of_one_optimizer_are_none_of_another() -> None:
    cfg = debug()
    cfg.optimizer.betas = (0.5, 0.6)
    fiddlers.use_muon(cfg)
    assert cfg.optimizer.betas == (0.5, 0.6)
    fiddlers.use_lion(cfg, weight_decay=1.0)
    assert {group["betas"] for group in groups_of(cfg)} == {(0.9, 0.99)}
    assert cfg.optimizer.weight_decay == 1.0
    fiddlers.use_sgd(cfg, momentum=0.5)
    assert {group["momentum"] for group in groups_of(cfg)} == {0.5}


def test_matrices_may_learn_faster_than_the_rest() -> None:
    cfg = debug()
    fiddlers.use_muon(cfg, learning_rate=3e-4, matrix_scale=66.0)
    scales = {group["name"]: group.get("lr_scale", 1.0) for group in groups_of(cfg)}
    assert scales == {"matrices": 1.0, "hidden matrices": 66.0, "vectors": 1.0}


@pytest.mark.parametrize("muon", [False, True])
def test_layers_learn_slower_the_deeper_they_are(muon: bool) -> None:
    cfg = debug()
    fiddlers.use_layer_decay(cfg, factor=0.5)
    if muon:
        fiddlers.use_muon(cfg)
    trainer = build_trainer(cfg)
    groups = trainer.groups(trainer.model)
    scales = {id(p): group.get("lr_scale", 1.0) for group in groups for p in group["params"]}
    decays = {id(p): "weight_decay" not in group for group in groups for p in group["params"]}
    last = cfg.model.num_layers - 1
    for name, parameter in trainer.model.named_parameters():
        layer = int(name.split(".")[1]) if name.startswith("blocks.") else last
        expected = 0.5 ** (last + 1) if name.startswith("embedding") else 0.5 ** (last - layer)
        assert scales[id(parameter)] == expected, name
        assert decays[id(parameter)] == (parameter.dim() == 2), name
    hidden = "hidden matrices" if muon else "matrices"
    assert [group["name"] for group in groups] == [
        *("matrices, embedding", f"{hidden}, layer 0", f"{hidden}, layer 1"),
        *("vectors, layer 0", "vectors, layer 1, norm"),
    ]
