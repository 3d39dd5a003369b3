"""The state of a trainer without a run around it, for tests of single steps."""

from fidgpt.parallel import DataParallel
from fidgpt.train import Trainer
from fidgpt.train.state import TrainState


def start(
    trainer: Trainer, *, micro_batch_size: int | None = None, max_grad_norm: float | None = None
) -> TrainState:
    """Prepare steps at the peak learning rate, with a model that has memory already."""
    trainer.schedule = lambda step: 1.0
    trainer.parallel = DataParallel()
    trainer.micro_batch_size = micro_batch_size
    trainer.max_grad_norm = max_grad_norm
    return trainer.init_state()
