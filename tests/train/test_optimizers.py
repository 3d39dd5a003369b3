"""Every optimizer that has a fiddler trains, and stops and goes on without changing a bit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest
import safetensors.torch
import torch

from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import (
    use_adafactor,
    use_adamw,
    use_cycles,
    use_lion,
    use_moe,
    use_muon,
    use_mup,
    use_sgd,
)
from fidgpt.optim import LayerDecay, ParameterGroups, Rule, is_matrix
from fidgpt.train import Trainer
from fidgpt.train.footprint import footprint
from fidgpt.train.trackers.trackers import Row

Config = fdl.Config[Trainer]
Train = Callable[..., list[Row]]


def _muon_of_experts(cfg: Config) -> None:
    use_moe(cfg, num_experts=3)
    use_mup(cfg, base_dim=8)
    use_muon(cfg, matrix_scale=2.0)


def _layers(cfg: Config) -> None:
    rule = fdl.Config(Rule, "matrices", match=is_matrix, lr_scale=fdl.Config(LayerDecay, 0.5))
    cfg.groups = fdl.Config(ParameterGroups, [rule])


def _cycles(cfg: Config) -> None:
    use_cycles(cfg, cycles=[3], rewarmup=1)


CHANGES = [
    *(use_adamw, use_muon, _muon_of_experts, use_lion, use_sgd, use_adafactor),
    *(_layers, _cycles),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_resumed_run_equals_the_run_that_never_stopped(
    cfg: Config, train: Train, tmp_path: Path, change: Callable[[Config], None]
) -> None:
    change(cfg)
    cfg.num_steps, cfg.evaluators, cfg.checkpoints.keep_last = 4, {}, 2
    whole = [row["loss"] for row in train(cfg)]
    last = tmp_path / "run" / "checkpoints" / "step_00000004"
    kept = [safetensors.torch.load_file(last / f"{name}.safetensors") for name in FILES]
    shutil.rmtree(last)
    assert [row["loss"] for row in train(cfg, resume=True)] == whole
    assert len({*whole}) == 4
    for name, before in zip(FILES, kept, strict=True):
        now = safetensors.torch.load_file(last / f"{name}.safetensors")
        assert now.keys() == before.keys()
        assert [key for key in before if not torch.equal(now[key], before[key])] == []


FILES = ("model", "optimizer")


@pytest.mark.parametrize(
    ("change", "numbers"),
    [(use_adamw, 2.0), (use_lion, 1.0), (use_sgd, 1.0), (use_muon, None)],
)
def test_its_memory_is_known_before_it_runs(
    cfg: Config, change: Callable[[Config], None], numbers: float | None
) -> None:
    change(cfg)
    trainer = build_trainer(cfg)
    weights = sum(p.nbytes for p in trainer.model.parameters())
    size = footprint(
        trainer.model,
        seq_len=8,
        num_sequences=1,
        micro_batch_size=None,
        optimizer=trainer.optimizer,
        groups=trainer.groups,
        trainable=None,
        loss=trainer.loss,
        precision=trainer.precision,
        average=None,
        device=torch.device("cpu"),
    ).optimizer
    assert size is not None
    if numbers is None:
        assert 0 < size < 2 * weights
    else:
        assert size == pytest.approx(numbers * weights, rel=0.01)
