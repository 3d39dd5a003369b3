"""Measuring a model on text that it was not trained on."""

import math
from typing import Protocol, runtime_checkable

import torch

from fidgpt.data import EvaluationStream
from fidgpt.model.language_model import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train.loss import CrossEntropy


@runtime_checkable
class Evaluator(Protocol):
    """Something that is measured from time to time during a run."""

    def prepare(self, *, show_progress: bool = True) -> None: ...
    def due(self, step: int, *, num_steps: int) -> bool: ...
    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]: ...


class Validation:
    """Loss per token, and bits per byte, which does not depend on the tokenizer.

    Bits per byte are the summed loss in bits over the UTF-8 bytes that the predicted tokens stand
    for; a token without bytes, as the end of a text, counts in the loss and adds no bytes.

    Args:
      data: batches of [rows, seq_len + 1] ids, dealt over the processes.
      every: steps between two evaluations; the last step is always evaluated.
    """

    def __init__(self, data: EvaluationStream, *, every: int | None = None) -> None:
        self.check_arguments(every=every)
        self.data = data
        self.every = every

    @staticmethod
    def check_arguments(*, every: int | None) -> None:
        """Raises ValueError unless `every` is at least 1."""
        if every is not None and every < 1:
            raise ValueError(f"{every=} must be 1 or more steps, or None for the last step only.")

    def prepare(self, *, show_progress: bool = True) -> None:
        self.data.prepare(show_progress=show_progress)

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps or (self.every is not None and step % self.every == 0)

    @torch.no_grad()
    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Returns `loss` in nats per token and `bits_per_byte`."""
        was_training = model.training
        model.eval()
        token_bytes = self.data.token_bytes
        totals = torch.zeros(3, dtype=torch.float64)
        for index in range(self.data.num_batches):
            batch = self.data.batch(index, rank=parallel.rank, world_size=parallel.world_size)
            if not len(batch):
                continue  # a split smaller than one batch leaves some processes without rows
            targets = batch[:, 1:].flatten()
            inputs = batch[:, :-1].to(parallel.device)
            features = model.features(inputs).flatten(0, 1)
            losses = loss.token_losses(
                features,
                model.unembedding,
                targets.to(parallel.device),
            )
            counted = torch.tensor([targets.numel(), token_bytes[targets].sum()])
            totals += torch.cat([losses.double().sum().cpu()[None], counted.double()])
        model.train(was_training)
        nats, tokens, num_bytes = parallel.sum(totals.to(parallel.device)).tolist()
        return {"loss": nats / tokens, "bits_per_byte": nats / math.log(2) / max(1, num_bytes)}
