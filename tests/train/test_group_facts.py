"""Every group of parameters is told with what it holds, in short."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import use_lora, use_muon
from fidgpt.optim import LayerDecay, ParameterGroups, Rule, is_matrix
from fidgpt.train.device import machine_at_hand
from fidgpt.train.facts import in_short
from fidgpt.train.summary_text import summary_text

LAYERS = {f"blocks.*.{name}": {0, 1, 2} for name in ("a.query.w", "a.key.w", "norm.w", "mlp.0.w")}
LAYERS |= {"norm.w": set(), "scale": set()}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["norm.w", "scale"], "norm.w, scale"),
        ([f"blocks.{i}.norm.w" for i in range(3)], "blocks.*.norm.w"),
        (["blocks.0.norm.w", "blocks.1.norm.w"], "blocks.{0..1}.norm.w"),
        (["blocks.0.norm.w", "blocks.2.norm.w"], "blocks.{0,2}.norm.w"),
        (["blocks.2.norm.w"], "blocks.2.norm.w"),
        (
            [f"blocks.{i}.a.{name}.w" for i in range(3) for name in ("query", "key")],
            "blocks.*.a.{query,key}.w",
        ),
        (["blocks.1.mlp.0.w"], "blocks.1.mlp.0.w"),
    ],
)
def test_names_in_short(names: list[str], text: str) -> None:
    assert in_short(names, LAYERS) == text


def test_rates_decays_and_sizes_are_those_of_the_optimizer(cfg: fdl.Config) -> None:
    use_muon(cfg, learning_rate=0.1, matrix_scale=0.5)
    trainer = build_trainer(cfg)
    groups = trainer.parameter_groups()
    assert [(g.name, g.learning_rate, g.weight_decay) for g in groups] == [
        ("matrices", 0.1, 0.1),
        ("hidden matrices", 0.05, 0.1),
        ("vectors", 0.1, 0.0),
    ]
    assert groups[0].holds == "embedding.weight"
    assert groups[1].holds == (
        "blocks.*.attention.{query,key,value,out}.weight, blocks.*.mlp.{gate,up,down}.weight"
    )
    assert sum(g.num_parameters for g in groups) == sum(
        p.numel() for p in trainer.model.parameters()
    )
    assert groups[1].num_tensors == 14


def test_frozen_parameters_are_in_none(cfg: fdl.Config) -> None:
    use_lora(cfg)
    trainer = build_trainer(cfg)
    assert {part for g in trainer.parameter_groups() for part in g.holds.split(".")} & {
        "embedding"
    } == set()
    assert all(p.requires_grad for p in trainer.model.parameters())


def _needs_numbers(groups: object) -> Any:
    raise RuntimeError("no numbers")


def test_of_an_optimizer_that_needs_numbers_the_groups_are_known(cfg: fdl.Config) -> None:
    trainer = build_trainer(cfg)
    trainer.optimizer = _needs_numbers
    assert [(g.name, g.learning_rate, g.weight_decay) for g in trainer.parameter_groups()] == [
        ("matrices", None, None),
        ("vectors", None, 0.0),
    ]


def test_a_summary_names_groups_and_stays_short(cfg: fdl.Config) -> None:
    cfg.model.num_layers = 20
    rule = fdl.Config(Rule, "matrices", match=is_matrix, lr_scale=fdl.Config(LayerDecay, 0.5))
    cfg.groups = fdl.Config(ParameterGroups, [rule])
    trainer = build_trainer(cfg)
    machine = machine_at_hand(trainer.parallel, trainer.precision.dtype)
    lines = summary_text(trainer.summary(machine), color=False).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("optimizer's groups"))
    assert lines[first + 1].split()[:4] == ["matrices,", "embedding", "9.54e-10,", "0.1,"]
    assert any(line.split() == ["...", "10", "groups", "more"] for line in lines[first:])
    assert max(map(len, lines)) <= 80
