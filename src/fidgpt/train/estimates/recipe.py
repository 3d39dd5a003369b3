"""What a run consists of, as its estimates and checks read it."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from fidgpt import cost, plan
from fidgpt.data import StreamWrapper, TrainingStream
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.schedule import Schedule
from fidgpt.train.checkpoints import Checkpoints
from fidgpt.train.divergence import Divergence
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.precision import Precision
from fidgpt.train.train_step import TrainStep

Trainable = Callable[[str, nn.Parameter], bool]


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    twin = cost.without_memory(model)
    train_only(twin, trainable)
    return twin


@runtime_checkable
class Recipe(plan.Recipe, Protocol):
    """What a run consists of; see the attributes of `Trainer`.

    The model may be on the meta device, and is left unchanged by what measures or tries it.
    """

    stream: TrainingStream
    vocab_size: int
    step: TrainStep
    batch_growth: StreamWrapper | None
    seq_len_growth: StreamWrapper | None
    schedule: Schedule
    schedules: Mapping[str, Schedule] | None
    groups: Grouping
    loss: CrossEntropy
    precision: Precision
    checkpoints: Checkpoints
    evaluators: Mapping[str, Evaluator]
    weights: Callable[[LanguageModel], None] | None
    divergence: Divergence | None
