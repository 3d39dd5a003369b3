"""Steps with other objectives, which compute with a second model: preferences and distillation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fidgpt.attributes import changed
from fidgpt.cost import without_memory
from fidgpt.data import Batch, DataError, TokenizerSpec
from fidgpt.model import LoRALinear, StackedLoRA
from fidgpt.model.context import AttentionContext
from fidgpt.model.materialization import materialize
from fidgpt.model.reports import Share, collecting, not_collecting, report_loss, report_metric
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_not_negative, require_positive, require_size
from fidgpt.train.evaluation import evaluating
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.train_step import StepSettings, TrainStep

__all__ = [
    "DPO",
    "IPO",
    "ORPO",
    "Answers",
    "DistillationStep",
    "PreferenceLoss",
    "PreferenceStep",
    "teacher_loss",
]

Scores = Float[Tensor, " pairs"]
Weights = Callable[[LanguageModel], None]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model says of the answers of pairs.

    Attributes:
      chosen: log-probability of each chosen answer, in nats.
      rejected: log-probability of each rejected answer.
      chosen_lengths: tokens of each chosen answer.
      rejected_lengths: tokens of each rejected answer.
    """

    chosen: Scores
    rejected: Scores
    chosen_lengths: Int64[Tensor, " pairs"]
    rejected_lengths: Int64[Tensor, " pairs"]

    @property
    def means(self) -> "Answers":
        """The same with log-probabilities per token."""
        return replace(
            self,
            chosen=self.chosen / self.chosen_lengths.clamp_min(1),
            rejected=self.rejected / self.rejected_lengths.clamp_min(1),
        )


@runtime_checkable
class PreferenceLoss(Protocol):
    """A loss of pairs of answers.

    Attributes:
      beta: by which rewards are scaled.
      needs_reference: whether it compares with a frozen model.
    """

    beta: float
    needs_reference: bool

    def __call__(self, policy: Answers, reference: Answers, /) -> Scores:
        """Return the loss of each pair; without a reference, `reference` is the policy itself."""
        ...


class DPO:
    """Direct preference optimization (Rafailov et al., 2023, arXiv:2305.18290, equation 7).

    The loss is `-log sigmoid(beta d)`, where d is by how much the logarithm of the ratio to the
    reference is larger for the chosen answer.

    Args:
      beta: strength of the tie to the reference.
      label_smoothing: probability that a pair is the wrong way round (conservative DPO).

    Raises:
      ValueError: beta is not positive, or label_smoothing is negative.
    """

    needs_reference = True

    def __init__(self, *, beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        require_positive(beta=beta)
        require_not_negative(label_smoothing=label_smoothing)
        self.beta = beta
        self.label_smoothing = label_smoothing

    def __call__(self, policy: Answers, reference: Answers) -> Scores:
        logits = self.beta * _margin(policy, reference)
        wrong = self.label_smoothing
        return -(1 - wrong) * F.logsigmoid(logits) - wrong * F.logsigmoid(-logits)


class IPO:
    """Identity preference optimization (Azar et al., 2023, arXiv:2310.12036, equation 17).

    The loss is `(d - 1 / (2 beta))^2`, of the difference of DPO with log-probabilities per token,
    as its authors compute it.

    Args:
      beta: strength of the tie to the reference.

    Raises:
      ValueError: it is not positive.
    """

    needs_reference = True

    def __init__(self, *, beta: float = 0.1) -> None:
        require_positive(beta=beta)
        self.beta = beta

    def __call__(self, policy: Answers, reference: Answers) -> Scores:
        return (_margin(policy.means, reference.means) - 1 / (2 * self.beta)).square()


class ORPO:
    """Odds ratio preference optimization (Hong et al., 2024, arXiv:2403.07691, equation 7).

    The loss is `-beta log sigmoid(log odds ratio)` of log-probabilities per token. With the
    likelihood of the chosen conversation, `PreferenceStep(likelihood=1)`, it needs no reference.

    Args:
      beta: weight beside the likelihood.

    Raises:
      ValueError: it is not positive.
    """

    needs_reference = False

    def __init__(self, *, beta: float = 0.1) -> None:
        require_positive(beta=beta)
        self.beta = beta

    def __call__(self, policy: Answers, reference: Answers) -> Scores:
        means = policy.means
        return -self.beta * F.logsigmoid(_log_odds(means.chosen) - _log_odds(means.rejected))


def _margin(policy: Answers, reference: Answers) -> Scores:
    return (policy.chosen - reference.chosen) - (policy.rejected - reference.rejected)


def _log_odds(logarithms: Scores) -> Scores:
    """Return the logarithm of p / (1 - p)."""
    return logarithms - torch.log(-torch.expm1(logarithms))


class _SecondModelStep(TrainStep):
    """A step that computes with a model that is not trained; every process has all of it.

    Args:
      other: the model, which is copied without memory; None if there is none.

    Attributes:
      second: the model with its weights, once the run has begun.
    """

    def __init__(self, other: LanguageModel | None) -> None:
        self._blueprint = None if other is None else without_memory(other)
        self.second: list[LanguageModel] = []

    def others(self) -> Sequence[LanguageModel]:
        return [] if self._blueprint is None else [self._blueprint]

    def rehearse(self, others: Sequence[LanguageModel]) -> None:
        self.second = [*others]

    def _fill(self, weights: Weights | None, run: StepSettings) -> None:
        """Make the model; without weights, it has the random values of the run's seed."""
        for blueprint in self.others():
            model = without_memory(blueprint)
            materialize(model, device=run.parallel.device, seed=run.seed)
            if weights is not None:
                weights(model)
            self.second = [run.precision.replica(model).eval().requires_grad_(False)]


class PreferenceStep(_SecondModelStep):
    """Trains on rows of `data.pairs`; every pair has the same weight.

    The reference is the model without its low-rank adapters where it has adapters, else a copy of
    it with the weights that the run began with; every process has all of this copy.

    Args:
      preference: loss of the pairs.
      model: the run's model, which is copied.
      likelihood: weight of the mean loss of the tokens of chosen conversations, up to the end of
        the answer.

    Raises:
      ValueError: the likelihood is negative.
    """

    sequences_per_row = 2

    def __init__(
        self,
        *,
        preference: PreferenceLoss,
        model: LanguageModel,
        likelihood: float = 0.0,
    ) -> None:
        require_not_negative(likelihood=likelihood)
        self.preference = preference
        self.likelihood = likelihood
        needs_copy = preference.needs_reference and not any(_adapters(model))
        super().__init__(model if needs_copy else None)

    def begin(self, run: StepSettings) -> None:
        self._fill(run.weights, run)

    def objective(self, model: LanguageModel, loss: CrossEntropy) -> NextToken:
        """Return the module whose forward pass is the loss of pairs."""
        return PairLoss(model, loss, self)


def _adapters(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the low-rank adapters of a model."""
    return (module for module in model.modules() if isinstance(module, LoRALinear | StackedLoRA))


class PairLoss(NextToken):
    """Model and loss of pairs as one module; the reference is no part of it."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy, step: PreferenceStep) -> None:
        super().__init__(model, loss)
        self.preference = step.preference
        self.likelihood = step.likelihood
        self._step = step  # no module, so that the reference's weights are not the run's

    def forward(
        self,
        tokens: Int64[Tensor, "pairs windows"],
        counted: Bool[Tensor, "pairs windows"] | None = None,
        share: Share | None = None,
        real: Bool[Tensor, "pairs windows"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean loss of pairs; see `NextToken` for the arguments."""
        batch, num_pairs = sides_of(tokens, counted, real), len(tokens)
        if self.model.division is not None:
            raise ValueError("Preferences need whole sequences: use a mesh with context=1.")
        with collecting() as reports:
            # Before the pass with gradients, after which sharded weights have to stay gathered.
            needs_reference = self.preference.needs_reference
            given = self._of_reference(batch) if needs_reference else None
            features, policy = self._answers(self.model, batch)
            reference = policy if given is None else given
            report_loss("loss", self.preference(policy, reference).mean(), count=num_pairs)
            self._report_rewards(policy, reference, num_pairs)
            if self.likelihood:
                chosen = features[::2].flatten(0, 1)
                spoken = until_last(batch)[::2, 1:].flatten()
                targets = batch.targets[::2].flatten()
                nats = self.loss(chosen, self.model.unembedding, targets, spoken)
                report_loss("loss", self.likelihood * nats, count=spoken.sum())
        losses = reports.losses_of(share)
        return sum(losses.values(), losses["loss"].new_zeros(()))

    def count(
        self,
        tokens: Int64[Tensor, "pairs windows"],
        counted: Bool[Tensor, "pairs windows"] | None = None,
        real: Bool[Tensor, "pairs windows"] | None = None,
    ) -> None:
        batch = sides_of(tokens, counted, real)
        super().count(batch.tokens, of_chosen(batch.mask), batch.real)
        if self.likelihood:
            spoken = until_last(batch)[::2, 1:]
            report_loss("loss", spoken.new_zeros((), dtype=torch.float32), count=spoken.sum())

    @torch.no_grad()
    def _of_reference(self, batch: Batch) -> Answers:
        with not_collecting(), ExitStack() as without_adapters:
            if self._step.second:
                return self._answers(self._step.second[0], batch)[1]
            for adapter in _adapters(self.model):
                without_adapters.enter_context(changed(adapter, scale=0.0))
            with evaluating(self.model):
                return self._answers(self.model, batch)[1]

    def _report_rewards(self, policy: Answers, reference: Answers, count: int) -> None:
        base = reference if self.preference.needs_reference else None
        sides = {"chosen": policy.chosen, "rejected": policy.rejected}
        rewards = {
            side: self.preference.beta * (score - (getattr(base, side) if base else 0.0))
            for side, score in sides.items()
        }
        margins = rewards["chosen"] - rewards["rejected"]
        for name, value in {
            **rewards,
            "margin": margins,
            "accuracy": (margins > 0).float(),
        }.items():
            report_metric(f"rewards/{name}", value.mean(), count=count)

    def _answers(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Answers]:
        """Return the features of both sides, and what the model says of their answers."""
        counts = batch.mask[:, 1:]
        ctx = model.context_of(batch.inputs, counted=of_chosen(counts), real=batch.real_inputs)
        features = model.features(batch.inputs, ctx)
        rows = counts.nonzero()[:, 0]
        each = log_probabilities(
            features[counts], model.unembedding, batch.targets[counts], self.loss
        )
        sums = each.new_zeros(len(counts)).index_add(0, rows, each)
        lengths = counts.sum(1)
        return features, Answers(
            chosen=sums[::2],
            rejected=sums[1::2],
            chosen_lengths=lengths[::2],
            rejected_lengths=lengths[1::2],
        )


def sides_of(tokens: Tensor, counted: Tensor | None, real: Tensor | None) -> Batch:
    """Return rows of pairs as twice as many rows: chosen, rejected, chosen, and so on."""
    counted = torch.ones_like(tokens, dtype=torch.bool) if counted is None else counted
    return Batch(tokens, counted, real).sequences(2)


def of_chosen(mask: Bool[Tensor, "rows window"]) -> Bool[Tensor, "rows window"]:
    """Return a mask without the rejected answers, which no loss of modules may make likelier."""
    return mask & (torch.arange(len(mask), device=mask.device) % 2 == 0).unsqueeze(1)


def until_last(batch: Batch) -> Bool[Tensor, "rows window"]:
    """Return whether tokens come before the last that counts, or are it."""
    return batch.mask.flip(1).cumsum(1).flip(1) > 0


def log_probabilities(
    features: Float[Tensor, "tokens hidden"],
    unembedding: torch.nn.Module,
    targets: Int64[Tensor, " tokens"],
    loss: CrossEntropy,
) -> Float[Tensor, " tokens"]:
    """Return the log-probability of each target, in float32; logits exist for a chunk at a time."""

    def of_chunk(x: Tensor, y: Tensor) -> Tensor:
        return -F.cross_entropy(unembedding(x).float(), y, reduction="none")

    return torch.cat(_in_chunks(of_chunk, loss, features, targets))


def _in_chunks(function: Any, loss: CrossEntropy, features: Tensor, others: Tensor) -> list[Tensor]:
    """Call a function with chunks of rows, and again in the backward pass."""
    size = loss.rows_on(features.device)
    chunks = zip(features.split(size), others.split(size), strict=True)
    return [checkpoint(function, x, y, use_reentrant=False) for x, y in chunks]


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


class DistillationStep(_SecondModelStep):
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
        super().__init__(teacher)
        self._weights = weights
        self._tokenizer = tokenizer
        self.ratio = ratio
        self.options: dict[str, Any] = {"temperature": temperature, "top_k": top_k}

    def begin(self, run: StepSettings) -> None:
        theirs = None if self._tokenizer is None else self._tokenizer.build([]).token_values()
        if theirs is not None and theirs != run.stream.tokenizer.token_values():
            raise DataError(
                "The teacher has other tokens than the model: distillation needs a teacher with "
                "the tokenizer of the run."
            )
        self._fill(self._weights, run)

    def objective(self, model: LanguageModel, loss: CrossEntropy) -> NextToken:
        """Return the module whose forward pass is the mixed loss."""
        return Distilled(model, loss, self)


class Distilled(NextToken):
    """Model and mixed loss as one module; the teacher is no part of it."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy, step: DistillationStep) -> None:
        super().__init__(model, loss)
        self._step = step  # no module, so that the teacher's weights are not the run's

    def loss_of(
        self, features: Float[Tensor, "rows seq hidden"], ctx: AttentionContext, batch: Batch
    ) -> Float[Tensor, ""]:
        """Return the mean of both losses, and report them."""
        loss, (teacher,) = super().loss_of(features, ctx, batch), self._step.second
        with torch.no_grad(), not_collecting():
            theirs = teacher.features(batch.inputs, teacher.layout(batch.inputs))
        counts = ctx.own(batch.mask[:, 1:])
        taught = self._taught(features[counts], ctx.own(theirs)[counts], teacher.unembedding)
        report_metric("teacher", taught)
        return (1 - self._step.ratio) * loss + self._step.ratio * taught

    def _taught(self, features: Tensor, theirs: Tensor, teacher: nn.Module) -> Float[Tensor, ""]:
        """Return the mean loss under the teacher's probabilities; logits exist in chunks."""

        def of_chunk(x: Tensor, y: Tensor) -> Tensor:
            student, taught = self.model.unembedding(x), teacher(y)
            if student.shape != taught.shape:
                raise DataError(
                    f"The teacher has {taught.shape[-1]} tokens, and the model has "
                    f"{student.shape[-1]}: a teacher needs the tokenizer of the model."
                )
            return teacher_loss(student, taught, **self._step.options).sum()

        sums = _in_chunks(of_chunk, self.loss, features, theirs)
        return torch.stack(sums).sum() / max(1, len(features))
