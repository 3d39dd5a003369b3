"""Mixtures in whole runs: the load evens out, and nothing depends on how the work is dealt."""

import json
import shutil
from pathlib import Path

import fiddle as fdl
import pytest
import safetensors.torch
import torch
from forked import run_ranks

from fidgpt.fiddlers import use_float32
from fidgpt.fiddlers.experts import use_loss_free_balancing, use_moe
from fidgpt.graph import find
from fidgpt.model.moe import MoE
from fidgpt.train import BFloat16
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.trackers.trackers import reproducible

BIAS = "blocks.0.mlp.router.selection_bias.bias"


@pytest.fixture
def mixture(cfg: fdl.Config) -> fdl.Config:
    """`debug` with a mixture in each layer, balanced without a loss."""
    use_moe(cfg, num_experts=4, ffn_dim=32)
    use_loss_free_balancing(cfg)
    cfg.batch_size = 4
    return cfg


def busiest(rows: list[dict]) -> float:
    """Load of the busiest expert over the mean load, in the last ten steps."""
    return sum(row["moe/load_max"] for row in rows[-10:]) / 10


def test_the_load_evens_out(cfg, train):
    use_moe(cfg, num_experts=4, ffn_dim=32)
    cfg.num_steps, cfg.batch_size, cfg.checkpoints.every = 40, 8, None
    by_loss = train(cfg, "by loss")
    use_loss_free_balancing(cfg)
    by_bias = train(cfg, "by bias")
    for moe in find(cfg.model, MoE):
        moe.balancing, moe.router.selection_bias = [], None
    alone = train(cfg, "alone")
    assert "moe/load_max" in alone[0] and "moe/balance" not in alone[0]
    for balanced in (by_loss, by_bias):
        assert busiest(balanced) - 1 < 0.6 * (busiest(alone) - 1)


def test_losses_and_loads_are_in_the_metrics_and_not_in_the_loss(cfg, train):
    use_moe(cfg, num_experts=4, every=2)
    row = train(cfg)[0]
    (balancing, small) = cfg.model.blocks[1].mlp.balancing
    assert row["moe/balance"] == pytest.approx(0.01, rel=0.1) and row["moe/z"] > 0
    assert len(row["moe/load/layers"]) == 1 and sum(row["moe/load/layers"][0]) == pytest.approx(4)
    assert row["moe/load_max/layers"] == [max(row["moe/load/layers"][0])]
    assert row["moe/load_max"] == row["moe/load_max/layers"][0]
    balancing.weight, small.weight = 5.0, 7.0
    heavier = train(cfg, "heavier")[0]
    assert heavier["loss"] == row["loss"]
    assert heavier["moe/balance"] == pytest.approx(500 * row["moe/balance"], rel=1e-5)
    assert heavier["grad_norm"] > row["grad_norm"]


@pytest.mark.parametrize("precision", [None, BFloat16], ids=["native", "bfloat16"])
def test_a_resumed_run_equals_the_run_that_never_stopped(mixture, train, tmp_path, precision):
    if precision is not None:
        mixture.precision = fdl.Config(precision)
    mixture.micro_batch_size = 2
    mixture.checkpoints.keep_last = 5
    whole = train(mixture)
    last = checkpoint(tmp_path / "run", 10)
    for step in (8, 10):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{step:08}")
    assert newest_good(tmp_path / "run") == 6
    before = checkpoint(tmp_path / "run", 6)
    assert before[BIAS].dtype == torch.float32 and before[BIAS].abs().max() > 0
    resumed = train(mixture, resume=True)
    assert [reproducible(row) for row in resumed] == [reproducible(row) for row in whole]
    again = checkpoint(tmp_path / "run", 10)
    assert all(torch.equal(again[name], last[name]) for name in last)


@pytest.mark.xdist_group("processes")
def test_two_processes_balance_as_one(mixture, train, tmp_path):
    use_float32(mixture)
    mixture.num_steps = 3
    one = train(mixture, "one")
    script = Path(__file__).with_name("two_processes_moe.py")
    run_ranks(2, script, tmp_path, folder=tmp_path)
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    for row, other in zip(one, map(json.loads, lines), strict=True):
        assert other["moe/load/layers"] == row["moe/load/layers"]
        for name in ("loss", "moe/z", "moe/load_max", "grad_norm"):
            assert other[name] == pytest.approx(row[name], rel=1e-5)
    saved = checkpoint(tmp_path / "two", 3)[BIAS]
    assert torch.equal(saved, checkpoint(tmp_path / "one", 3)[BIAS])
    for rank in (0, 1):
        assert torch.equal(torch.load(tmp_path / f"bias{rank}.pt"), saved)


def checkpoint(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The model's tensors as saved."""
    return safetensors.torch.load_file(
        run / "checkpoints" / f"step_{step:08}" / "model.safetensors"
    )
