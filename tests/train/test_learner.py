"""One optimizer step: every learned token weighs alike."""

import fiddle as fdl
import pytest
import torch
from learning import start
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.data import mask_loss
from fidgpt.model import materialize
from fidgpt.model.reports import collecting, report_tally
from fidgpt.parallel import DataParallel
from fidgpt.train import BFloat16, Float32, Precision, Trainer
from fidgpt.train.meters import StepReports


class Steps:
    """A trainer and its state."""

    def __init__(self, trainer: Trainer, *, micro_batch_size: int | None) -> None:
        self.trainer = trainer
        self.state = start(trainer, micro_batch_size=micro_batch_size)

    def update(self, tokens: torch.Tensor) -> dict:
        return self.trainer.update(self.state, tokens)

    def gradients(self, tokens: torch.Tensor) -> torch.Tensor:
        """Those that an optimizer would see of some tokens."""
        found: list[torch.Tensor] = []

        def keep(parameters) -> None:
            found.extend(p.grad.flatten().clone() for p in parameters if p.grad is not None)

        self.trainer.gradient_transform = keep
        self.update(tokens)
        return torch.cat(found)


def steps(*, micro_batch_size: int | None, precision: type[Precision] = Float32) -> Steps:
    cfg = debug()
    cfg.precision = fdl.Config(precision)
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return Steps(trainer, micro_batch_size=micro_batch_size)


def batch() -> torch.Tensor:
    """Four rows; of the first nearly nothing is learned, of the last all."""
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    for row, learned in enumerate((3, 16, 25, 33)):
        tokens[row, learned:] = mask_loss(tokens[row, learned:])
    return tokens


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_tokens_weigh_alike_in_rows_that_are_learned_in_part(micro_batch_size):
    whole, parts = steps(micro_batch_size=None), steps(micro_batch_size=micro_batch_size)
    for _ in range(3):
        one, other = (each.update(batch()) for each in (whole, parts))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_what_is_not_learned_is_read_and_leaves_no_gradient():
    first, second = steps(micro_batch_size=None), steps(micro_batch_size=None)
    tokens = batch()
    changed = tokens.clone()
    changed[0, -1] = mask_loss((mask_loss(tokens[0, -1:]) + 1) % 257)[0]  # only a target
    assert first.update(tokens) == second.update(changed)
    read = tokens.clone()
    read[1, 17] = mask_loss((mask_loss(tokens[1, 17:18]) + 1) % 257)[0]
    read[1, 20] = 5  # learned, and comes after what changed
    assert first.update(tokens) != second.update(read)


def test_a_batch_of_which_nothing_is_learned_moves_nothing_by_its_loss():
    whole = steps(micro_batch_size=2)
    row = whole.update(mask_loss(torch.full((4, 33), 7)))
    assert row["loss"] == 0 and row["grad_norm"] == 0


class Called(TorchDispatchMode):
    """Keeps the names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", [Float32, BFloat16])
def test_no_number_is_asked_for_between_the_micro_batches(precision):
    """An accelerator would have to finish first, and then wait for Python."""
    each = steps(micro_batch_size=1, precision=precision)

    def leave(parameters) -> None:  # the first that happens after the last micro-batch
        called.__exit__(None, None, None)

    each.trainer.gradient_transform = leave
    called = Called()
    called.__enter__()
    each.update(batch())
    forwards = [place for place, name in enumerate(called.names) if name == "embedding"]
    assert len(forwards) == 4
    asked = {"_local_scalar_dense", "is_nonzero", "item"}
    between = set(called.names[forwards[0] :])
    assert not between & asked


def test_many_narrow_micro_batches_add_up_as_well_as_few():
    def gradients(size: int, precision: type[Precision]) -> torch.Tensor:
        return steps(micro_batch_size=size, precision=precision).gradients(tokens)

    tokens = torch.randint(0, 257, (16, 33), generator=torch.Generator().manual_seed(0))
    exact = gradients(16, Float32)
    few, many = ((gradients(size, BFloat16) - exact).norm() for size in (8, 1))
    assert many < 1.3 * few


class Counter:
    """Measures its tally."""

    def settle(self, tally: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"count": tally.double()}


def test_tallies_add_up_though_a_cuda_graph_writes_them_to_one_place():
    part, place, step = Counter(), torch.zeros(2, dtype=torch.int64), StepReports()
    for counts in ([1, 2], [10, 20]):
        place.copy_(torch.tensor(counts))
        with collecting() as reports:
            report_tally(part, place)
        step.add(reports, share=0.5)
    assert step.settle(DataParallel()) == {"count/layers": [[11.0, 22.0]]}
