"""Evaluators and validation."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from fidgpt.data import DataError, EvaluationStream, inputs_and_targets
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train.loss import CrossEntropy


@runtime_checkable
class Evaluator(Protocol):
    """Something that is measured from time to time during a run."""

    def prepare(self, *, show_progress: bool = True) -> None:
        """Makes ready what is measured on, and finds mistakes before training begins."""
        ...

    def due(self, step: int, *, num_steps: int) -> bool:
        """Whether it is measured after a step."""
        ...

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """What was measured, by name, the same on every process; called on all of them."""
        ...


class Periodic:
    """An evaluator's times: every so many steps, and after the last.

    Args:
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(self, *, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"{every=} must be 1 or more steps, or None for the last step only.")
        self.every = every

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps or (self.every is not None and step % self.every == 0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as for somebody who uses it, without dropout for one."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


_MOST_NATS = 700.0  # e to more than 709 is no number of Python's


class Validation(Periodic):
    """Loss per token, and bits per byte, which does not depend on the tokenizer.

    Bits per byte are the summed loss in bits over the UTF-8 bytes that the predicted tokens stand
    for; a token without bytes, as the end of a text, counts in the loss and adds no bytes.

    Args:
      data: batches of [rows, seq_len + 1] ids, dealt over the processes.
      every: steps between two evaluations; the last step is always evaluated.
    """

    def __init__(self, data: EvaluationStream, *, every: int | None = None) -> None:
        super().__init__(every=every)
        self.data = data

    def prepare(self, *, show_progress: bool = True) -> None:
        self.data.prepare(show_progress=show_progress)

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Returns `loss` in nats per token, `perplexity` and `bits_per_byte`."""
        sums = _sums(model, loss, self.data, parallel)
        return _means(parallel.sum(sums.to(parallel.device)))


class DomainValidation(Periodic):
    """The same of several texts, each by its name, and of all of them together.

    Together means over all tokens that were measured, so that a text counts by how much of it is
    held out, or by the batches that its stream has at most. In the means that are called `macro`
    every text counts alike, but for one of which no token was measured.

    Args:
      domains: streams by name, as those of `Validation`.
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: there is no domain, or `every` is below 1.
    """

    def __init__(
        self, domains: Mapping[str, EvaluationStream], *, every: int | None = None
    ) -> None:
        super().__init__(every=every)
        if not domains:
            raise ValueError("a validation by domain needs a domain: give one stream at least.")
        self.domains = dict(sorted(domains.items()))  # a config that was saved may sort them

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepares every stream; DataError names the domain whose text is too short."""
        for name, stream in self.domains.items():
            try:
                stream.prepare(show_progress=show_progress)
            except DataError as error:
                raise DataError(f"The domain {name!r} cannot be measured. {error}") from error

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Returns `DOMAIN/loss`, `DOMAIN/perplexity`, `DOMAIN/bits_per_byte`, and the same of all.

        What is of all has no domain before its name, as have `macro_loss` and
        `macro_bits_per_byte`, the means of the domains' own.
        """
        sums = [_sums(model, loss, stream, parallel) for stream in self.domains.values()]
        each = parallel.sum(torch.stack(sums).to(parallel.device))
        row = {
            f"{name}/{key}": value
            for name, totals in zip(self.domains, each, strict=True)
            for key, value in _means(totals).items()
        }
        return row | _means(each.sum(0)) | _macro_means(each)


@torch.no_grad()
def _sums(
    model: LanguageModel, loss: CrossEntropy, data: EvaluationStream, parallel: DataParallel
) -> Float64[Tensor, "3"]:
    """Nats, tokens and bytes of this process's rows."""
    token_bytes = data.token_bytes
    totals = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for index in range(data.num_batches):
            batch = data.batch(index, rank=parallel.rank, world_size=parallel.world_size)
            is_absent = not len(batch)  # a split smaller than one batch leaves some without rows,
            if is_absent:  # whose part of the model others may need all the same
                batch = batch.new_zeros(1, batch.shape[1])
            inputs, targets, counted = inputs_and_targets(batch)
            features = model.features(inputs.to(parallel.device)).flatten(0, 1)
            targets = targets.flatten()
            losses = loss.token_losses(features, model.unembedding, targets.to(parallel.device))
            if is_absent:
                continue
            losses = losses.cpu().double()
            if counted is not None:
                losses, targets = losses[counted.flatten()], targets[counted.flatten()]
            totals += torch.stack(
                [losses.sum(), torch.tensor(len(targets)), token_bytes[targets].sum()]
            )
    return totals


def _macro_means(each: Float64[Tensor, "domains 3"]) -> dict[str, float]:
    """Means over domains, each of which counts once; a text without tokens or bytes has no say."""
    measured = [(_means(totals), totals) for totals in each]
    losses = [means["loss"] for means, (_, tokens, _) in measured if tokens]
    bits = [means["bits_per_byte"] for means, (*_, num_bytes) in measured if num_bytes]
    return {
        f"macro_{name}": sum(values) / max(1, len(values))
        for name, values in (("loss", losses), ("bits_per_byte", bits))
    }


def _means(totals: Float64[Tensor, "3"]) -> dict[str, float]:
    nats, tokens, num_bytes = totals.tolist()
    loss = nats / max(1, tokens)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, _MOST_NATS)),
        "bits_per_byte": nats / math.log(2) / max(1, num_bytes),
    }
