"""A trainer's learner alone, without a run around it, for tests of single steps."""

from fidgpt.parallel import DataParallel
from fidgpt.train import Trainer
from fidgpt.train.state import TrainState


def learner_of(
    trainer: Trainer, *, micro_batch_size: int | None = None, max_grad_norm: float | None = None
) -> TrainState:
    """Takes steps at the peak learning rate, with a model that has memory already."""
    return TrainState(
        trainer.model,
        optimizer=trainer.optimizer,
        groups=trainer.groups,
        schedule=lambda step: 1.0,
        loss=trainer.loss,
        precision=trainer.precision,
        parallel=DataParallel(),
        micro_batch_size=micro_batch_size,
        max_grad_norm=max_grad_norm,
    )
