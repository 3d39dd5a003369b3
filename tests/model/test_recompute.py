"""Blocks that compute again: the same numbers, bit for bit, in a fraction of the memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import fiddle as fdl
import pytest
import torch
from torch import Tensor

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import share_blocks, use_moe, use_recompute, use_selective_recompute
from fidgpt.model import Block, materialize
from fidgpt.model.reports import collecting
from fidgpt.model.wrappers import Recomputed
from fidgpt.train.loss import NextToken

Fiddler = Callable[[fdl.Config], None]
LAYERS = 4


class Pass(NamedTuple):
    """What a forward and a backward pass leave, and how much was kept between them."""

    loss: Tensor
    gradients: list[Tensor]
    reports: Any
    saved: int
    foretold: int


def model_of(*fiddlers: Fiddler) -> Any:
    """A trainer with dropout whose model has values."""
    cfg = debug()
    cfg.model.num_layers = LAYERS
    cfg.model.dropout = 0.1
    for fiddler in fiddlers:
        fiddler(cfg)
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return trainer


def passed(*fiddlers: Fiddler) -> Pass:
    trainer = model_of(*fiddlers)
    torch.manual_seed(1)
    batch = torch.randint(0, 257, (2, 33))
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), collecting() as reports:
        loss = NextToken(trainer.model, trainer.loss).train()(batch)
    loss.backward()
    told = [x.tolist() for x in (*reports.metrics.values(), *reports.tallies.values())]
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    activations = trainer.facts().memory.activations
    assert activations is not None
    return Pass(loss, gradients, told, sum(saved.values()), activations.kept)


def every_other(cfg: fdl.Config) -> None:
    """Half of the blocks."""
    use_recompute(cfg, every=2)


@pytest.mark.parametrize("mixture", [(), (use_moe,)], ids=["dense", "mixture"])
@pytest.mark.parametrize("again", [use_recompute, every_other, use_selective_recompute])
def test_what_is_computed_again_is_the_same_and_reported_once(mixture, again: Fiddler) -> None:
    once, twice = passed(*mixture), passed(*mixture, again)
    assert torch.equal(twice.loss, once.loss)
    for one, other in zip(once.gradients, twice.gradients, strict=True):
        assert torch.equal(one, other)
    assert twice.reports == once.reports


def test_less_is_kept_the_more_is_computed_again() -> None:
    nothing, half, full = passed(), passed(every_other), passed(use_recompute)
    selective = passed(use_selective_recompute)
    assert full.saved < 0.4 * nothing.saved
    assert full.saved < half.saved < nothing.saved
    assert full.foretold < 0.15 * nothing.foretold
    # What operations keep by themselves is not saved through autograd, and foretold all the same.
    assert full.foretold < selective.foretold < 0.6 * nothing.foretold


def test_a_block_stays_of_its_class_and_keeps_its_names() -> None:
    plain, model = model_of().model, model_of(use_recompute).model
    assert [*dict(model.named_parameters())] == [*dict(plain.named_parameters())]
    assert all(isinstance(block, Block | Recomputed) for block in model.blocks)
    assert len({type(block) for block in model.blocks}) == 1
    shared = model_of(share_blocks, use_recompute).model.blocks
    assert len({id(block) for block in shared}) == 1 and isinstance(shared[0], Recomputed)


def test_nothing_is_computed_twice_where_nothing_is_learned() -> None:
    model = model_of(use_recompute).model.eval()
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(model(tokens), model_of().model.eval()(tokens))
