"""What a run consists of, as its estimates and checks read it."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from fidgpt import cost
from fidgpt.data import StreamWrapper, TrainingStream
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.parallel import DataParallel
from fidgpt.schedule import Schedule
from fidgpt.train.averaging import Average
from fidgpt.train.checkpoints import Checkpoints
from fidgpt.train.divergence import Divergence
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.precision import Precision
from fidgpt.train.train_step import TrainStep

# Raised by components that read values of tensors on the meta device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)
Trainable = Callable[[str, nn.Parameter], bool]
T = TypeVar("T")


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    twin = cost.without_memory(model)
    train_only(twin, trainable)
    return twin


@runtime_checkable
class Recipe(Protocol):
    """What a run consists of; see the attributes of `Trainer`.

    The model may be on the meta device, and is left unchanged by what measures or tries it.
    """

    model: LanguageModel
    stream: TrainingStream
    vocab_size: int
    seq_len: int
    batch_size: int
    num_steps: int
    step: TrainStep
    micro_batch_size: int | None
    batch_growth: StreamWrapper | None
    seq_len_growth: StreamWrapper | None
    optimizer: Callable[..., Optimizer]
    schedule: Schedule
    schedules: Mapping[str, Schedule] | None
    groups: Grouping
    trainable: Trainable | None
    loss: CrossEntropy
    precision: Precision
    parallel: DataParallel
    checkpoints: Checkpoints
    evaluators: Mapping[str, Evaluator]
    weights: Callable[[LanguageModel], None] | None
    divergence: Divergence | None
    average: Average | None


def measured_or_none(measure: Callable[[], T]) -> T | None:
    """Return what a function measures; None if it needs the values of tensors."""
    try:
        return measure()
    except NEEDS_NUMBERS:
        return None
