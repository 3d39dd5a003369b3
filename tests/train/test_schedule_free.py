"""Whole runs with schedule-free AdamW, which trains other weights than it evaluates."""

import fiddle as fdl
import pytest
import torch
from run_facts import reproducible

from fidgpt import fiddlers
from fidgpt.model import materialize
from fidgpt.runs.building import build_trainer

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
