"""Mixtures in whole runs: the load evens out, and nothing depends on the number of processes."""

import fiddle as fdl
import pytest
import safetensors.torch
import torch

from fidgpt.fiddlers import use_float32
from fidgpt.fiddlers.experts import use_loss_free_balancing, use_moe
from fidgpt.graph import find
from fidgpt.model.moe import MoE
from fidgpt.train.trackers.trackers import read_rows


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


@pytest.mark.xdist_group("processes")
def test_two_processes_balance_as_one(mixture, train, on_two_processes, tmp_path):
    use_float32(mixture)
    mixture.num_steps = 3
    one = train(mixture, "one")
    biases = on_two_processes("mixture", tmp_path)
    for row, other in zip(one, read_rows(tmp_path / "two" / "metrics.jsonl"), strict=True):
        assert other["moe/load/layers"] == row["moe/load/layers"]
        for name in ("loss", "moe/z", "moe/load_max", "grad_norm"):
            assert other[name] == pytest.approx(row[name], rel=1e-5)
    saved = [
        safetensors.torch.load_file(
            tmp_path / name / "checkpoints" / "step_00000003" / "model.safetensors"
        )["blocks.0.mlp.router.selection_bias.bias"]
        for name in ("one", "two")
    ]
    assert saved[0].dtype == torch.float32 and saved[0].abs().max() > 0
    assert all(torch.equal(bias, saved[0]) for bias in [saved[1], *biases])
