"""The optimizer step as a component: its index, and steps of a user's own in its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import Tensor

from fidgpt import configs, fiddlers, train
from fidgpt.graph import build
from fidgpt.model.reports import Share, report_metric, scaled
from fidgpt.train.loss import NextToken
from fidgpt.train.trackers.trackers import read_rows


class WithPenalty(NextToken):
    """Adds a multiple of the mean square of the table, by the share of each micro-batch."""

    def forward(
        self,
        tokens: Tensor,
        counted: Tensor | None = None,
        share: Share | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        loss = super().forward(tokens, counted, share, real)
        table = self.model.get_parameter("unembedding.weight")
        penalty = 100 * table.square().mean()
        report_metric("penalty", penalty)
        return loss + (penalty if share is None else scaled(penalty, share.of_targets))


class TwoLosses(train.TrainStep):
    """A step that trains on the sum of two losses."""

    def objective(self, model: Any, loss: Any) -> NextToken:
        return WithPenalty(model, loss)


class Indexed(train.TrainStep):
    """Records the index by which rows are loaded and the step is launched."""

    def __init__(self) -> None:
        self.indices: list[tuple[str, int]] = []

    def load(self, run: Any, state: Any, index: int, **options: Any) -> Any:
        self.indices.append(("load", index))
        return super().load(run, state, index, **options)

    def launch(self, run: Any, state: Any, index: int, batch: Any, **options: Any) -> Any:
        self.indices.append(("launch", index))
        launched = super().launch(run, state, index, batch, **options)
        self.indices.append(("done", state.step))
        return launched


@pytest.fixture
def cfg() -> fdl.Config[train.Trainer]:
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.trackers, cfg.samples, cfg.evaluators, cfg.num_steps = cfg.trackers[1:], None, {}, 3
    return cfg


def losses(cfg: fdl.Config[train.Trainer], path: Path) -> list[dict[str, Any]]:
    build(cfg).train(train.RunDirectory(path, texts={}))
    return read_rows(path / "metrics.jsonl")


@pytest.mark.slow
def test_a_step_may_train_on_two_losses(cfg: fdl.Config[train.Trainer], tmp_path: Path) -> None:
    alone = losses(cfg, tmp_path / "alone")
    cfg.step = fdl.Config(TwoLosses)
    both = losses(cfg, tmp_path / "both")
    cfg.micro_batch_size = 2
    in_parts = losses(cfg, tmp_path / "parts")
    assert both[0]["loss"] == alone[0]["loss"]  # that of the tokens, before the first update
    assert both[-1]["loss"] != alone[-1]["loss"]
    assert both[0]["penalty"] > 0
    for name in ("loss", "penalty", "grad_norm"):
        assert [row[name] for row in in_parts] == pytest.approx(
            [row[name] for row in both], rel=1e-5
        )


@pytest.mark.slow
def test_the_index_of_a_step_chooses_its_rows_and_rate(
    cfg: fdl.Config[train.Trainer], tmp_path: Path
) -> None:
    cfg.step = fdl.Config(Indexed)
    trainer = build(cfg)
    outcome = trainer.train(train.RunDirectory(tmp_path / "run", texts={}))
    assert outcome.step == 3
    assert isinstance(trainer.step, Indexed)
    assert trainer.step.indices == [
        event for n in range(3) for event in (("load", n), ("launch", n), ("done", n + 1))
    ]
    rates = [row["learning_rate"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    peak = trainer.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    assert rates == pytest.approx([peak * trainer.schedule(index) for index in range(3)])


class Counted(train.TrainStep):
    """Counts the steps that it took, and keeps the count in checkpoints."""

    def __init__(self) -> None:
        self.taken = 0

    def launch(self, *arguments: Any, **options: Any) -> Any:
        self.taken += 1
        return super().launch(*arguments, **options)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = state_dict["count"]


@pytest.mark.slow
def test_the_state_of_a_step_is_saved(cfg: fdl.Config[train.Trainer], tmp_path: Path) -> None:
    cfg.step = fdl.Config(Counted)
    run = train.RunDirectory(tmp_path / "run", texts={"config.json": "{}"})
    build(cfg).train(run, until_step=2)
    resumed = build(cfg)
    resumed.train(run, resume=True)
    assert isinstance(resumed.step, Counted)
    assert resumed.step.taken == 3


def test_a_replaced_trainer_wraps_its_stream_once(cfg: fdl.Config[train.Trainer]) -> None:
    fiddlers.grow_batch(cfg)
    trainer = build(cfg)
    again = replace(trainer, num_steps=7)
    assert again.data is trainer.data
    assert type(again.stream) is type(trainer.stream) is not type(trainer.data)
    assert again.stream.full_batches(2) == trainer.stream.full_batches(2)
