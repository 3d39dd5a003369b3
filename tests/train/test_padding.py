"""Padding counts in nothing that a step measures or learns, and masked targets in no gradient."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fiddle as fdl
import numpy as np
import pytest
import torch
from small_models import start

from fidgpt import configs, data, fiddlers
from fidgpt.data.streams import WrappedStream
from fidgpt.fiddlers.experts import (
    use_expert_capacity,
    use_loss_free_balancing,
    use_micro_batch_balancing,
    use_moe,
    use_sequence_balancing,
)
from fidgpt.model import materialize
from fidgpt.model.moe import MoE, Routing
from fidgpt.runs.building import build_trainer
from fidgpt.train import Decision, RunDirectory
from fidgpt.train.trackers.trackers import read_rows

END, SEQ = 256, 32
Change = Callable[[fdl.Config], object]


class Steps:
    """A trainer, its state, and the gradients of its last step."""

    def __init__(self, *changes: Change, micro_batch_size: int | None = None) -> None:
        cfg = configs.debug()
        fiddlers.use_float32(cfg)
        cfg.seq_len = SEQ
        for change in changes:
            change(cfg)
        self.trainer = build_trainer(cfg)
        self.trainer.gradient_transform = self._keep
        materialize(self.trainer.model, device=torch.device("cpu"), seed=0)
        self.state = start(self.trainer, micro_batch_size=micro_batch_size)
        self.mixtures = [part for part in self.state.model.modules() if isinstance(part, MoE)]

    def _keep(self, parameters: Any) -> None:
        kept = [p.grad.flatten().clone() for p in parameters if p.grad is not None]
        self.gradients = torch.cat(kept)

    def __call__(self, batch: data.Batch) -> dict[str, Any]:
        return self.trainer.update(self.state, batch)


def packed(lengths: list[int], *, window: int = SEQ + 1) -> data.Batch:
    """A row for each document, as `best_fit` makes it: padded by ends of text."""
    draw = np.random.default_rng(0)
    tokens = np.full((len(lengths), window), END)
    counted = np.zeros_like(tokens, dtype=np.bool_)
    real = np.zeros_like(counted)
    for row, length in enumerate(lengths):
        tokens[row, 1 : length + 1] = draw.integers(0, 256, length)
        counted[row, : length + 2] = True
        real[row, : length + 1] = True
    return data.Batch.of(tokens, counted, real)


def top_1(cfg: fdl.Config) -> None:
    use_moe(cfg, num_experts=4, top_k=1)


BALANCINGS: dict[str, tuple[Change, ...]] = {
    "load": (use_moe,),
    "micro_batches": (use_moe, use_micro_batch_balancing),
    "sequences": (use_moe, functools.partial(use_sequence_balancing, weight=0.1)),
    "capacity": (use_moe, functools.partial(use_expert_capacity, factor=0.8)),
    "looking_ahead": (functools.partial(fiddlers.use_mtp, num_tokens=2),),
    "all": (
        use_moe,
        functools.partial(use_sequence_balancing, weight=0.1),
        fiddlers.use_mtp,
        fiddlers.use_document_mask,
        fiddlers.use_recompute,
    ),
}


def test_the_load_of_packed_documents_is_that_of_their_tokens(tmp_path: Path) -> None:
    """Documents of 21 tokens with their end in rows of 32: 8 x 21 choices, not 8 x 32."""
    draw = np.random.default_rng(0)
    for number in range(40):
        (tmp_path / f"{number}.txt").write_bytes(draw.integers(97, 123, 20).astype("u1").tobytes())

    def packing(cfg: fdl.Config) -> None:
        cfg.data.corpus.source = fdl.Config(data.TextFiles, path=str(tmp_path))
        fiddlers.use_packing(cfg)
        cfg.batch_size = 8

    taken = Steps(packing, fiddlers.use_document_mask, top_1, use_loss_free_balancing)
    taken.trainer.stream.prepare(show_progress=False)
    batch = taken.trainer.stream.batch(0)
    assert batch.real_inputs is not None
    assert batch.real_inputs.sum(1).tolist() == [21] * 8
    routings: list[Routing] = []

    def keep(module: object, args: object, routing: Any) -> None:
        routings.append(routing)

    for part in taken.mixtures:
        part.router.register_forward_hook(keep)
    row = taken(batch)
    for routing, loads, part in zip(routings, row["moe/load/layers"], taken.mixtures, strict=True):
        expected = torch.bincount(routing.experts[:, :21].flatten(), minlength=4)
        assert expected.sum() == 168
        torch.testing.assert_close(torch.tensor(loads), expected / 42)
        assert part.router.selection_bias is not None
        lack = (42 - expected).sign() * 0.001
        torch.testing.assert_close(part.router.selection_bias.bias, lack)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [None, 1])
@pytest.mark.parametrize("name", BALANCINGS)
def test_rows_with_padding_train_as_rows_without(name: str, micro_batch_size: int | None) -> None:
    long, short = packed([20] * 4), data.Batch(packed([20] * 4, window=22).tokens)
    if name in ("looking_ahead", "all"):  # predictions reach no further than what a model reads
        short = packed([20] * 4, window=23)
    one, other = (Steps(*BALANCINGS[name], micro_batch_size=micro_batch_size) for _ in range(2))
    padded, plain = one(long), other(short)
    assert padded.keys() == plain.keys()
    for key in plain:
        torch.testing.assert_close(
            torch.as_tensor(padded[key]), torch.as_tensor(plain[key]), rtol=2e-5, atol=1e-6
        )
    assert (one.gradients - other.gradients).norm() < 2e-6 * other.gradients.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BALANCINGS if name != "capacity"])
def test_micro_batches_with_unequal_padding_are_those_of_the_whole_batch(name: str) -> None:
    batch = packed([3, 30, 12, 20])
    whole, parts = (Steps(*BALANCINGS[name], micro_batch_size=size) for size in (None, 1))
    if name == "micro_batches":  # whose z-loss is of the whole batch all the same
        for moe in [*whole.mixtures, *parts.mixtures]:
            moe.balancing = moe.balancing[1:]
    row, other = whole(batch), parts(batch)
    assert (whole.gradients - parts.gradients).norm() < 1e-6 * whole.gradients.norm()
    for key in row:
        torch.testing.assert_close(
            torch.as_tensor(row[key]), torch.as_tensor(other[key]), rtol=2e-5, atol=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [None, 2])
@pytest.mark.parametrize("name", BALANCINGS)
def test_nothing_is_learned_where_all_is_masked(name: str, micro_batch_size: int | None) -> None:
    batch = packed([3, 30, 12, 20])
    none = torch.zeros_like(batch.tokens, dtype=torch.bool)
    steps = Steps(*BALANCINGS[name], micro_batch_size=micro_batch_size)
    steps(data.Batch(batch.tokens, none, batch.real))
    assert not steps.gradients.any()


def test_predictions_further_ahead_leave_out_masked_targets() -> None:
    """As if the row ended, but for the last token, which predictions do not reach."""
    steps = Steps(functools.partial(fiddlers.use_mtp, num_tokens=2))
    batch = packed([30, 30])
    counted = torch.ones_like(batch.tokens, dtype=torch.bool)
    counted[:, 9:] = False
    row = steps(data.Batch(batch.tokens, counted))
    other = Steps(functools.partial(fiddlers.use_mtp, num_tokens=2))
    shorter = other(data.Batch(batch.tokens[:, :10], counted[:, :10]))
    for key in ("loss", "mtp/1", "mtp/2", "mtp"):
        assert row[key] == pytest.approx(shorter[key], rel=1e-5)
    assert (steps.gradients - other.gradients).norm() < 1e-5 * other.gradients.norm()


class SecondMasked(WrappedStream):
    """A stream of whose second batch nothing counts."""

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> data.Batch:
        batch = self.stream.batch(step, rank=rank, world_size=world_size)
        return data.Batch(batch.tokens, torch.full_like(batch.tokens, step != 1, dtype=torch.bool))


class Watching:
    """A guard that applies every step, and keeps the losses that it judged."""

    losses: ClassVar[list[float]] = []

    def __call__(self, *, loss: float, grad_norm: float) -> Decision:
        self.losses.append(loss)
        return Decision.APPLY

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        assert not state


@pytest.mark.slow
def test_a_step_in_which_nothing_counts_has_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = configs.debug()
    cfg.num_steps, cfg.samples, cfg.evaluators = 3, None, {}
    trainer = build_trainer(cfg)
    trainer.stream, trainer.guard = SecondMasked(trainer.stream), Watching()
    trainer.train(RunDirectory(tmp_path / "run", texts={}))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert ["loss" in row for row in rows] == [True, False, True]
    assert Watching.losses == [rows[0]["loss"], rows[2]["loss"]]
    assert "no token of step 2 counts in the loss" in capsys.readouterr().err


def test_the_masks_of_a_batch_go_with_its_rows() -> None:
    batch = packed([3, 30, 12])
    assert batch.real is not None
    first, second = batch.split(2)
    joined = data.Batch.cat([second, data.Batch(first.tokens), first])
    assert joined.real is not None
    expected = torch.cat([batch.real[2:], torch.ones(2, SEQ + 1, dtype=torch.bool), batch.real[:2]])
    assert torch.equal(joined.real, expected)
    assert batch.nbytes == batch.tokens.nbytes + 2 * batch.real.nbytes
