"""Whole runs with schedule-free AdamW, which trains other weights than it evaluates."""

from pathlib import Path

import fiddle as fdl
import pytest
import torch
from small_models import start
from torch import Tensor, nn

from fidgpt import configs, fiddlers
from fidgpt.data import Batch
from fidgpt.model import Router, SelectionBias, materialize
from fidgpt.runs.building import build_trainer
from fidgpt.train import RunDirectory
from fidgpt.train.trackers.trackers import reproducible

pytestmark = pytest.mark.slow


def schedule_free(cfg: fdl.Config) -> None:
    """Use schedule-free AdamW with evaluation at every second step."""
    fiddlers.use_schedule_free(cfg, learning_rate=0.01)
    fiddlers.use_constant(cfg)
    cfg.evaluators["validation"].every = 2


def test_a_schedule_free_run_trains_alike_whenever_it_evaluates_and_saves(cfg, train):
    schedule_free(cfg)
    fiddlers.use_async_checkpoints(cfg)
    whole = [reproducible(row) for row in train(cfg, "whole")]
    train(cfg, "parts", until_step=4)
    rows = [reproducible(row) for row in train(cfg, "parts", resume=True)]
    assert rows == whole
    cfg.evaluators = {}  # which swaps no weights between steps
    cfg.checkpoints.every = None
    alone = [row["loss"] for row in train(cfg, "alone")]
    assert alone == [row["loss"] for row in whole]


def test_checkpoints_hold_the_weights_that_a_schedule_free_run_evaluates(cfg, train, tmp_path):
    schedule_free(cfg)
    last = train(cfg)[-1]
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=1)
    trainer.checkpoints.restore(tmp_path / "run", model=trainer.model, optimizer=None)
    measure = trainer.evaluators["validation"]
    measure.prepare(show_progress=False)
    replica = trainer.precision.replica(trainer.model)
    measured = measure(replica, trainer.loss, trainer.parallel)
    assert measured["loss"] == last["validation/loss"]
    # They are not those that were trained.
    state = trainer.init_state()
    trainer.checkpoints.restore(tmp_path / "run", model=state.model, optimizer=state.optimizer)
    evaluated = [p.detach().clone() for p in state.model.parameters()]
    state.restored(10, state.settings)
    assert not any(map(torch.equal, evaluated, state.model.parameters()))
    with state.evaluation_weights():
        assert all(map(torch.equal, evaluated, state.model.parameters()))


def test_a_model_that_was_trained_has_the_weights_to_evaluate(cfg, tmp_path):
    schedule_free(cfg)
    trainer = build_trainer(cfg)
    trainer.train(RunDirectory(tmp_path / "run", texts={}))
    trained = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.checkpoints.restore(tmp_path / "run", model=trainer.model, optimizer=None)
    assert all(map(torch.equal, trained, trainer.model.parameters()))


def chosen_experts(model: nn.Module, tokens: Tensor) -> Tensor:
    """The expert of each token in each layer."""
    found: list[Tensor] = []
    routers = [part for part in model.modules() if isinstance(part, Router)]
    hooks = [
        router.register_forward_hook(lambda _, inputs, routing: found.append(routing.experts))
        for router in routers
    ]
    with torch.no_grad():
        model.eval()(tokens)
    model.train()
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def test_the_bias_that_selects_experts_fits_the_evaluated_weights_better_than_its_average():
    """So it is not swapped: they choose the experts that were trained for a token more often."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    fiddlers.use_moe(cfg, num_experts=8, top_k=1)
    fiddlers.use_loss_free_balancing(cfg)
    fiddlers.use_schedule_free(cfg, learning_rate=3e-3)
    trainer = build_trainer(cfg)
    model = trainer.model
    materialize(model, device=torch.device("cpu"), seed=0)
    state = start(trainer)
    biases = [part.bias for part in model.modules() if isinstance(part, SelectionBias)]
    means = [bias.clone() for bias in biases]
    text = (Path(__file__).parents[2] / "LICENSE").read_bytes()
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([*text]).unfold(0, 33, 33)
    held, rows = rows[:64, :-1], rows[64:]
    group = state.optimizer.param_groups[0]
    for _ in range(100):
        before = group["sum_of_squared_rates"]
        trainer.update(state, Batch(rows[torch.randint(len(rows), (8,), generator=generator)]))
        share = 1 - before / group["sum_of_squared_rates"]
        for mean, bias in zip(means, biases, strict=True):
            mean.lerp_(bias, share)
    trained = chosen_experts(model, held)
    last = [bias.clone() for bias in biases]
    with state.evaluation_weights():
        assert all(map(torch.equal, biases, last))
        differing = (chosen_experts(model, held) != trained).float().mean()
        for mean, bias in zip(means, biases, strict=True):
            bias.copy_(mean)
        averaged = (chosen_experts(model, held) != trained).float().mean()
    assert differing < 0.8 * averaged < 0.8
