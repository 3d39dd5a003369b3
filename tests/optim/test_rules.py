"""Groups by rules: who is asked, what is said of whom, and that nobody is left out."""

from typing import Any

import pytest
import torch
from torch import nn

from fidgpt import configs, fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import unroll, use_moe
from fidgpt.optim import (
    ByName,
    LayerDecay,
    ParameterGroups,
    Rule,
    decay_matrices,
    is_hidden_matrix,
    is_matrix,
    is_table,
    is_vector,
)

DECAY = [Rule("matrices", match=is_matrix), Rule("vectors", match=is_vector, weight_decay=0.0)]
Groups = list[dict[str, Any]]


def model_of(name: str, *changes: Any) -> nn.Module:
    cfg = getattr(configs, name)()
    for change in changes:
        change(cfg)
    return build_trainer(cfg).model


def named(model: nn.Module, groups: Groups) -> dict[str, list[str]]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {group["name"]: [names[id(p)] for p in group["params"]] for group in groups}


def rate_of(model: nn.Module, groups: Groups) -> dict[str, float]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: g.get("lr_scale", 1.0) for g in groups for p in g["params"]}


@pytest.mark.parametrize("name", ["debug", "gpt2_124m", "gpt_oss_20b"])
def test_rules_say_what_decay_matrices_does(name: str) -> None:
    model = model_of(name)
    own, theirs = ParameterGroups(DECAY)(model), decay_matrices(model)
    assert named(model, own) == named(model, theirs)
    assert [{**group, "params": 0} for group in own] == [{**group, "params": 0} for group in theirs]


def test_rules_add_up() -> None:
    model = model_of("gpt2_124m")
    rules = [
        *DECAY,
        Rule("tables", match=is_table, lr_scale=0.1),
        Rule("queries", match=ByName(r"attention\.query\."), lr_scale=0.5, weight_decay=0.2),
        Rule("first queries", match=ByName(r"\.0\.attention\.query\."), lr_scale=0.5),
    ]
    groups = {group["name"]: group for group in ParameterGroups(rules)(model)}
    members = named(model, list(groups.values()))
    assert members["matrices, tables"] == ["embedding.weight", "embedding.positions.weight"]
    assert members["vectors, queries, first queries"] == ["blocks.0.attention.query.bias"]
    assert len(members["matrices, queries"]) == 11
    assert groups["matrices, tables"]["lr_scale"] == 0.1
    assert groups["vectors, queries, first queries"]["lr_scale"] == 0.25
    assert groups["vectors, queries"]["weight_decay"] == 0.2
    assert "weight_decay" not in groups["matrices"] and "lr_scale" not in groups["matrices"]
    all_of_them = [name for names in members.values() for name in names]
    assert sorted(all_of_them) == sorted(name for name, _ in model.named_parameters())


def test_who_matches_nothing_is_with_the_others_as_the_optimizer_says() -> None:
    model = model_of("debug")
    *_, others = ParameterGroups([Rule("norms", match=ByName("norm"), settings={"eps": 1.0})])(
        model
    )
    assert others.keys() == {"name", "params"} and others["name"] == "others"
    optimizer = torch.optim.AdamW(ParameterGroups(DECAY[1:])(model), lr=0.1, weight_decay=0.3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.3]


def test_layers_learn_slower_from_the_top_down() -> None:
    model = model_of("debug", unroll, fiddlers.untie_embeddings)
    depth = len([1 for name, _ in model.named_parameters() if name.endswith("query.weight")])
    rate = rate_of(
        model, ParameterGroups([Rule("all", match=ByName(""), lr_scale=LayerDecay(0.5))])(model)
    )
    assert rate["unembedding.weight"] == rate["norm.weight"] == 1.0
    for layer in range(depth):
        assert rate[f"blocks.{layer}.mlp.up.weight"] == 0.5 ** (depth - 1 - layer)
    assert rate["embedding.weight"] == 0.5**depth


def test_what_a_parameter_is() -> None:
    model = model_of("gpt_oss_20b", lambda cfg: setattr(cfg.model, "num_layers", 2))
    kinds = {
        name.rpartition("blocks.0.")[2]: [
            kind.__name__
            for kind in (is_matrix, is_vector, is_table, is_hidden_matrix)
            if kind(name, p)
        ]
        for name, p in model.named_parameters()
    }
    assert kinds["embedding.weight"] == kinds["unembedding.weight"] == ["is_matrix", "is_table"]
    assert (
        kinds["mlp.experts.up"] == kinds["mlp.router.weight"] == ["is_matrix", "is_hidden_matrix"]
    )
    assert kinds["mlp.experts.up_bias"] == kinds["attention.sinks"] == ["is_vector"]


def test_frozen_parameters_are_left_out_and_still_known() -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    assert named(model, ParameterGroups(DECAY)(model)) == {"matrices": ["weight"]}


def test_a_rule_about_nothing_is_a_mistake() -> None:
    rules = [*DECAY, Rule("heads", match=ByName("haed"))]
    with pytest.raises(ValueError, match="no parameter matches the rule 'heads'"):
        ParameterGroups(rules)(nn.Linear(4, 4))


def test_mistakes_in_numbers_are_named() -> None:
    with pytest.raises(ValueError, match=r"pattern='\('"):
        ByName("(")
    with pytest.raises(ValueError, match=r"factor=1\.5"):
        LayerDecay(1.5)


def test_experts_are_matrices() -> None:
    model = model_of("debug", use_moe)
    assert any(p.dim() == 3 and is_hidden_matrix(name, p) for name, p in model.named_parameters())
