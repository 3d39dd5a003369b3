"""One optimizer step: every learned token weighs alike."""

import pytest
import torch
from learning import learner_of

from fidgpt.cli.running.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.data import unlearned
from fidgpt.fiddlers import use_float32
from fidgpt.model import materialize
from fidgpt.train.learner import Learner


def learner(*, micro_batch_size: int | None) -> Learner:
    cfg = debug()
    use_float32(cfg)
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return learner_of(trainer, micro_batch_size=micro_batch_size)


def batch() -> torch.Tensor:
    """Four rows; of the first nearly nothing is learned, of the last all."""
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    for row, learned in enumerate((3, 16, 25, 33)):
        tokens[row, learned:] = unlearned(tokens[row, learned:])
    return tokens


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_tokens_weigh_alike_in_rows_that_are_learned_in_part(micro_batch_size):
    whole, parts = learner(micro_batch_size=None), learner(micro_batch_size=micro_batch_size)
    for step in range(3):
        one, other = (each.update(batch(), step=step) for each in (whole, parts))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_what_is_not_learned_is_read_and_leaves_no_gradient():
    first, second = learner(micro_batch_size=None), learner(micro_batch_size=None)
    tokens = batch()
    changed = tokens.clone()
    changed[0, -1] = unlearned((unlearned(tokens[0, -1:]) + 1) % 257)[0]  # only a target
    assert first.update(tokens, step=0) == second.update(changed, step=0)
    read = tokens.clone()
    read[1, 17] = unlearned((unlearned(tokens[1, 17:18]) + 1) % 257)[0]
    read[1, 20] = 5  # learned, and comes after what changed
    assert first.update(tokens, step=1) != second.update(read, step=1)


def test_a_batch_of_which_nothing_is_learned_moves_nothing_by_its_loss():
    whole = learner(micro_batch_size=2)
    row = whole.update(unlearned(torch.full((4, 33), 7)), step=0)
    assert row["loss"] == 0 and row["grad_norm"] == 0
