"""Distillation: training on the predictions of a teacher."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fidgpt.data import Batch, DataError, TokenizerSpec
from fidgpt.model.context import AttentionContext
from fidgpt.model.reports import not_collecting, report_metric
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_positive, require_size
from fidgpt.train.frozen import Weights, blueprint_of, frozen
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.train_step import StepSettings, TrainStep

__all__ = ["DistillationStep", "teacher_loss"]


def teacher_loss(
    student: Float[Tensor, "tokens vocab"],
    teacher: Float[Tensor, "tokens vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Float[Tensor, " tokens"]:
    """Return the cross-entropy of the student under the teacher's probabilities, in nats.

    It is the forward Kullback-Leibler divergence plus the teacher's entropy, and has the same
    gradients (Hinton et al., 2015, arXiv:1503.02531).

    Args:
      student: logits.
      teacher: logits of the same tokens.
      temperature: by which both logits are divided; the loss is multiplied by its square.
      top_k: only the teacher's likeliest tokens count, with probabilities that add up to one.
    """
    student, teacher = student.float() / temperature, teacher.float() / temperature
    logarithms = student.log_softmax(-1)
    if top_k is not None:
        teacher, places = teacher.topk(min(top_k, teacher.shape[-1]), -1)
        logarithms = logarithms.gather(-1, places)
    return -(teacher.softmax(-1) * logarithms).sum(-1) * temperature**2


class DistillationStep(TrainStep):
    """Trains on `(1 - ratio)` of the loss and `ratio` of the loss under a teacher's probabilities.

    Args:
      teacher: another model of the same tokens; every process has a copy of it.
      weights: initializes the teacher; None leaves the random values of the seed.
      ratio: weight of the teacher, from 0 to 1.
      temperature: as in `teacher_loss`.
      top_k: as in `teacher_loss`.
      tokenizer: the teacher's, which has to have the tokens of the run's; None if it is not known.

    Raises:
      ValueError: an option is out of range.
    """

    def __init__(
        self,
        *,
        teacher: LanguageModel,
        weights: Weights | None,
        ratio: float = 0.5,
        temperature: float = 1.0,
        top_k: int | None = None,
        tokenizer: TokenizerSpec | None = None,
    ) -> None:
        require_positive(temperature=temperature)
        require_size(top_k=top_k)
        if not 0 <= ratio <= 1:
            raise ValueError(f"{ratio=} must be from 0 to 1.")
        self._blueprint, self._weights = blueprint_of(teacher), weights
        self._teacher: list[LanguageModel] = []
        self._tokenizer = tokenizer
        self.ratio = ratio
        self.options: dict[str, Any] = {"temperature": temperature, "top_k": top_k}

    def others(self) -> Sequence[LanguageModel]:
        return [self._blueprint]

    def rehearse(self, others: Sequence[LanguageModel]) -> None:
        self._teacher = [*others]

    def begin(self, run: StepSettings) -> None:
        theirs = None if self._tokenizer is None else self._tokenizer.build([]).token_values()
        if theirs is not None and theirs != run.stream.tokenizer.token_values():
            raise DataError(
                "The teacher has other tokens than the model: distillation needs a teacher with "
                "the tokenizer of the run."
            )
        self._teacher = [frozen(self._blueprint, self._weights, run)]

    def objective(self, model: LanguageModel, loss: CrossEntropy) -> NextToken:
        """Return the module whose forward pass is the mixed loss."""
        return Distilled(model, loss, self._teacher, self.ratio, self.options)


class Distilled(NextToken):
    """Model and mixed loss as one module; the teacher is no part of it."""

    def __init__(
        self,
        model: LanguageModel,
        loss: CrossEntropy,
        teacher: Sequence[LanguageModel],
        ratio: float,
        options: dict[str, Any],
    ) -> None:
        super().__init__(model, loss)
        self.ratio = ratio
        self._teacher = teacher  # not a module, whose weights would be the run's
        self._options = options

    def loss_of(
        self, features: Float[Tensor, "rows seq hidden"], ctx: AttentionContext, batch: Batch
    ) -> Float[Tensor, ""]:
        """Return the mean of both losses, and report them."""
        loss, (teacher,) = super().loss_of(features, ctx, batch), self._teacher
        with torch.no_grad(), not_collecting():
            theirs = teacher.features(batch.inputs, teacher.layout(batch.inputs))
        counts = ctx.own(batch.mask[:, 1:])
        taught = self._taught(features[counts], ctx.own(theirs)[counts], teacher.unembedding)
        report_metric("teacher", taught)
        return (1 - self.ratio) * loss + self.ratio * taught

    def _taught(self, features: Tensor, theirs: Tensor, teacher: nn.Module) -> Float[Tensor, ""]:
        """Return the mean loss under the teacher's probabilities; logits exist in chunks."""

        def of_chunk(x: Tensor, y: Tensor) -> Tensor:
            student, taught = self.model.unembedding(x), teacher(y)
            if student.shape != taught.shape:
                raise DataError(
                    f"The teacher has {taught.shape[-1]} tokens, and the model has "
                    f"{student.shape[-1]}: a teacher needs the tokenizer of the model."
                )
            return teacher_loss(student, taught, **self._options).sum()

        size = self.loss.rows_on(features.device)
        chunks = zip(features.split(size), theirs.split(size), strict=True)
        sums = [checkpoint(of_chunk, x, y, use_reentrant=False) for x, y in chunks]
        return torch.stack(sums).sum() / max(1, len(features))
