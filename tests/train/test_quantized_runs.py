"""Runs on weights in four bits: resumed bit for bit, where others begin, and planned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fidgpt import cost
from fidgpt.configs import debug
from fidgpt.fiddlers import initialize_from, use_mesh, use_qlora
from fidgpt.graph import ConfigErrors
from fidgpt.model import QLoRALinear, is_adapter
from fidgpt.model.quantized import to_nf4
from fidgpt.parallel import Mesh
from fidgpt.plan import Planner, cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.train import BFloat16, Float32, Trainer
from fidgpt.train.checkpoints import manifest


def begun(train: Callable[..., Any], cfg: fdl.Config[Trainer], tmp_path: Path) -> None:
    """Train the config's weights, which are then where it begins, in four bits."""
    cfg.num_steps = 2
    train(cfg, name="plain")
    initialize_from(cfg, str(tmp_path / "plain"))
    use_qlora(cfg, rank=2)
    cfg.num_steps = 4


@pytest.mark.slow(8)
@pytest.mark.parametrize("precision", [Float32, BFloat16])
def test_a_run_resumes_bit_for_bit_and_is_where_another_begins(
    cfg: fdl.Config[Trainer], train: Callable[..., Any], tmp_path: Path, precision: type
) -> None:
    cfg.precision = fdl.Config(precision)
    begun(train, cfg, tmp_path)
    whole = train(cfg, name="whole")
    train(cfg, name="run", until_step=2)
    resumed = train(cfg, name="run", resume=True)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in whole]
    first, second = (weights(tmp_path / name) for name in ("whole", "run"))
    assert first.keys() == second.keys() and all(map(torch.equal, first.values(), second.values()))
    plain = weights(tmp_path / "plain")
    name = "blocks.0.mlp.up"
    codes, scales = to_nf4(plain[f"{name}.weight"])
    assert torch.equal(first[f"{name}.base.codes"], codes)
    assert torch.equal(first[f"{name}.base.scales"], scales)
    initialize_from(cfg, str(tmp_path / "run"))
    cfg.num_steps, cfg.optimizer.lr = 1, 0.0
    train(cfg, name="next")
    again = weights(tmp_path / "next")
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


def weights(run: Path) -> dict[str, Tensor]:
    """The newest weights of a run."""
    saved = manifest.find(run)
    (file,) = manifest.files_of(saved[max(saved)], "model")
    return load_file(file)


@pytest.mark.slow
def test_plans_count_4_5_bits_for_each_weight() -> None:
    cfg = debug()
    whole = build_trainer(cfg).model
    use_qlora(cfg, rank=2)
    trainer = build_trainer(cfg)
    layers = [one for one in trainer.model.modules() if isinstance(one, QLoRALinear)]
    numbers = sum(layer.in_features * layer.out_features for layer in layers)
    others = dict(trainer.model.named_parameters())
    adapters = sum(p.numel() for name, p in others.items() if is_adapter(name, p))
    counted = cost.count_parameters(trainer.model).total
    assert counted - adapters == cost.count_parameters(whole).total
    assert counted == numbers + sum(p.numel() for p in others.values())
    expected = numbers * 4.5 / 8 + 4 * (counted - numbers) + cost.bytes_of(whole.buffers())
    plans = Planner(trainer, cluster_named("h100"))
    assert plans.plan(plans.setting(Mesh())).memory[0].weights == expected


def test_a_mesh_that_divides_weights_is_refused() -> None:
    cfg = debug()
    use_qlora(cfg)
    use_mesh(cfg, shard=2)
    with pytest.raises(ConfigErrors, match="all weights that are in four bits, and an axis shard"):
        build_trainer(cfg)
