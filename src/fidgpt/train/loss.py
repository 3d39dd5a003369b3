"""Losses of next-token prediction, and the terms added to them."""

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidgpt.data import Batch
from fidgpt.model.context import AttentionContext
from fidgpt.model.cpu.backward import note_gradient
from fidgpt.model.embedding import Unembedding
from fidgpt.model.reports import Share, collecting, report_loss, report_metric, scaled
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel.tensor import SplitVocabulary
from fidgpt.ranges import require_not_negative, require_probability, require_size

__all__ = ["CrossEntropy", "FusedCrossEntropy", "LogitRows", "LossTerm", "SmoothedLabels", "ZLoss"]


class LogitRows:
    """The logits of a chunk of tokens, over all of the vocabulary or a part of it.

    Args:
      logits: of the rows; left unchanged.
      targets: the target of each row.
      vocabulary: the part of the vocabulary that this process has; None for all of it.

    Attributes:
      vocab_size: of the whole vocabulary.
    """

    def __init__(
        self,
        logits: Float[Tensor, "chunk vocab"],
        targets: Int64[Tensor, " chunk"],
        vocabulary: SplitVocabulary | None = None,
    ) -> None:
        self.logits = logits
        self.vocab_size = logits.shape[-1] if vocabulary is None else vocabulary.size
        self._vocabulary = vocabulary
        self._rows = torch.arange(len(targets), device=targets.device)
        self._columns, self._is_here = targets, None
        if vocabulary is not None:
            columns, last = targets - vocabulary.begin, logits.shape[-1] - 1
            self._columns = columns.clamp(0, last)
            self._is_here = self._columns == columns

    def sum(self, x: Float[Tensor, "chunk vocab"]) -> Float[Tensor, " chunk"]:
        """Return the sum of each row over the whole vocabulary, in float32."""
        total = x.sum(-1, dtype=torch.float32)
        return total if self._vocabulary is None else self._vocabulary.sum(total)

    def probabilities(self, *, in_place: bool = False) -> Float[Tensor, "chunk vocab"]:
        """Return the softmax of the logits, which is computed in their place if it may be."""
        if self._vocabulary is None and in_place:
            rows = _whole_rows(self.logits)
            return torch.softmax(rows, -1, out=rows)[:, : self.vocab_size]
        if self._vocabulary is None:
            return self.logits.softmax(dim=-1)
        powers, _ = self._powers(self._vocabulary)
        return (powers / self.sum(powers).unsqueeze(-1)).to(self.logits.dtype)

    def normalizers(self) -> Float[Tensor, " chunk"]:
        """Return the logarithm of each row's sum of exponentiated logits, in float32."""
        if self._vocabulary is None:
            return self.logits.float().logsumexp(-1)
        powers, largest = self._powers(self._vocabulary)
        return self.sum(powers).log() + largest

    def _powers(self, vocabulary: SplitVocabulary) -> tuple[Tensor, Tensor]:
        """Return the exponentials of the logits minus the largest of each row, and that."""
        wide = self.logits.float()
        largest = vocabulary.max(wide.amax(-1))
        return (wide - largest.unsqueeze(-1)).exp(), largest

    def at_targets(self, x: Float[Tensor, "chunk vocab"]) -> Float[Tensor, " chunk"]:
        """Return the element of each row that belongs to its target."""
        chosen = x[self._rows, self._columns]
        if self._vocabulary is None or self._is_here is None:
            return chosen
        return self._vocabulary.sum(chosen * self._is_here)

    def add_at_targets(self, x: Float[Tensor, "chunk vocab"], amount: float) -> None:
        """Add a number to the element of each row that belongs to its target, in place."""
        x[self._rows, self._columns] += (
            amount if self._is_here is None else amount * self._is_here.to(x.dtype)
        )


def _whole_rows(logits: Float[Tensor, "chunk vocab"]) -> Float[Tensor, "chunk width"]:
    """Return logits with the memory between their rows, where it is set to minus infinity."""
    count, vocab = logits.shape
    rows = logits.as_strided((count, logits.stride(0)), (logits.stride(0), 1))
    rows[:, vocab:] = float("-inf")
    return rows


@runtime_checkable
class LossTerm(Protocol):
    """A term for each row of logits, added to its cross-entropy."""

    def __call__(
        self,
        rows: LogitRows,
        probabilities: Float[Tensor, "chunk vocab"],
        gradients: Float[Tensor, "chunk vocab"],
        /,
    ) -> Float[Tensor, " chunk"]:
        """Return each row's term in float32, and add its derivatives to `gradients`.

        Args:
          rows: logits and targets.
          probabilities: softmax of the logits; left unchanged.
          gradients: of the sum of all losses by the logits, updated in place.
        """
        ...


class ZLoss:
    """Keeps the normalizer of the logits near one (PaLM, arXiv:2204.02311, section 5).

    Adds `weight * log(Z)^2` of each token, where Z is the sum of its exponentiated logits.

    Args:
      weight: of the square, 1e-4 in PaLM.

    Raises:
      ValueError: the weight is negative, or infinite.
    """

    def __init__(self, *, weight: float = 1e-4) -> None:
        require_not_negative(weight=weight)
        self.weight = weight

    def __call__(
        self, rows: LogitRows, probabilities: Tensor, gradients: Tensor
    ) -> Float[Tensor, " chunk"]:
        """Return the weighted squares; their derivative is 2 weight log(Z) softmax(logits)."""
        normalizers = rows.normalizers()
        pull = (2 * self.weight * normalizers).to(gradients.dtype).unsqueeze(-1)
        gradients.addcmul_(probabilities, pull)
        return self.weight * normalizers.square()


class SmoothedLabels:
    """Label smoothing (Szegedy et al., 2016, arXiv:1512.00567, section 7).

    The target distribution is `1 - amount` for the target plus `amount / vocab` for every token.
    The term is `amount * (logit of the target - mean of the logits)`; with the cross-entropy it
    equals torch's `F.cross_entropy(label_smoothing=amount)`.

    Args:
      amount: from 0, no smoothing, to less than 1.

    Raises:
      ValueError: the amount is out of that range.
    """

    def __init__(self, *, amount: float = 0.1) -> None:
        require_probability(amount=amount)
        self.amount = amount

    def __call__(
        self, rows: LogitRows, probabilities: Tensor, gradients: Tensor
    ) -> Float[Tensor, " chunk"]:
        """Return the difference to the plain loss, which may be negative."""
        gradients -= self.amount / rows.vocab_size
        rows.add_at_targets(gradients, self.amount)
        means = rows.sum(rows.logits) / rows.vocab_size
        return self.amount * (rows.at_targets(rows.logits).float() - means)


# Every chunk reads and writes the float32 sum of the table's gradients. That costs a CPU nothing
# next to its products, but a GPU as much as one of the three products of 1,024 rows with the table.
_ROWS_ON_CPU, _ROWS = 1024, 4096


@dataclass(eq=False, kw_only=True)
class CrossEntropy:
    """Mean negative log-probability, in nats, of the targets under an unembedding's logits.

    Logits are the largest tensor in the training of a small model, followed by a float32 copy and
    two gradients of the same size. Here the forward pass computes and differentiates them a chunk
    of rows at a time, and keeps only the gradients of the features and of the unembedding, which
    may have a bias, a softcap or a table of its own.

    Args:
      terms: added in training, by their names in the metrics, such as `z_loss`; neither the metric
        `loss` nor evaluation includes them.
      chunk_size: rows whose logits exist at once; None for 1,024 on a CPU and 4,096 elsewhere.

    Raises:
      ValueError: chunk_size is below 1.
    """

    terms: Mapping[str, LossTerm] | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        require_size(chunk_size=self.chunk_size)
        self._terms = dict(sorted((self.terms or {}).items()))  # saved configs may sort them

    def rows_on(self, device: torch.device) -> int:
        """Return how many rows of logits exist at once on a device."""
        return self.chunk_size or (_ROWS_ON_CPU if device.type == "cpu" else _ROWS)

    def __call__(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int64[Tensor, " tokens"],
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean over all tokens, or over those counted, in float32; 0 if there are none.

        A token counts 87 nats at most, where its probability underflows in float32; its gradient
        is right even then.
        """
        if not torch.is_grad_enabled():
            losses = self.token_losses(features, unembedding, targets)
            if counted is None:
                return losses.mean()
            return (losses * counted).sum() / counted.sum().clamp_min(1)
        return self._with_gradients(features, unembedding, targets, counted)

    def _with_gradients(
        self, features: Tensor, unembedding: nn.Module, targets: Tensor, counted: Tensor | None
    ) -> Float[Tensor, ""]:
        # Inputs, so that autograd accumulates their gradients, even if they are tied.
        parameters = [p for p in unembedding.parameters() if p.requires_grad]
        rows = self.rows_on(features.device)
        terms = list(self._terms.values())
        loss, added = _Chunked.apply(
            terms, rows, unembedding, targets, counted, features, *parameters
        )
        for name, value in zip(self._terms, added.unbind(), strict=True):
            # Only the value: its gradients come with the gradients of the loss.
            report_loss(name, value)
        return loss

    @torch.no_grad()
    def token_losses(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int64[Tensor, " tokens"],
    ) -> Float[Tensor, " tokens"]:
        """Return the loss of each token, in float32 and without gradients, for evaluation."""
        size = self.rows_on(features.device)
        chunks = zip(features.split(size), targets.split(size), strict=True)
        return torch.cat(
            [F.cross_entropy(unembedding(x).float(), y, reduction="none") for x, y in chunks]
        )


class _Chunked(torch.autograd.Function):
    """The mean loss; its forward pass computes the gradients, its backward only scales them.

    The added terms are returned as values: their gradients are part of the loss's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        terms: Sequence[LossTerm],
        chunk_size: int,
        unembedding: nn.Module,
        targets: Tensor,
        counted: Tensor | None,
        features: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        totals = features.new_zeros(1 + len(terms), dtype=torch.float32)
        feature_gradients, sums = torch.empty_like(features), []
        # On the meta device all chunks after the first take the same memory.
        most = 2 * chunk_size if features.is_meta else len(targets)
        parts = (features, targets, feature_gradients)
        chunks = [part[:most].split(chunk_size) for part in parts]
        weights = [None] * len(chunks[0])
        if counted is not None:
            weights = counted[:most].split(chunk_size)
        for x, y, x_gradient, weight in zip(*chunks, weights, strict=True):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                logits, vocabulary = _own_logits(unembedding, x)
            # What autograd keeps of a custom unembedding may be its logits.
            in_place = isinstance(unembedding, Unembedding)
            rows = LogitRows(logits.detach(), y, vocabulary)
            losses, logit_gradients = _scored(rows, terms, in_place=in_place)
            if weight is not None:  # 0 for rows that are not counted
                losses *= weight
                logit_gradients *= weight.unsqueeze(-1)
            totals = totals + losses.sum(-1)
            with torch.enable_grad():
                seeded = with_gradients(logits, logit_gradients)
            gradient, *rest = torch.autograd.grad(seeded, [x, *parameters], materialize_grads=True)
            x_gradient.copy_(gradient)
            # Summed in float32 from the second chunk on: bfloat16 would lose the small ones.
            sums = [s.float().add_(r) for s, r in zip(sums, rest, strict=True)] if sums else rest
        ctx.save_for_backward(feature_gradients, *sums)
        ctx.tables = [weakref.ref(parameter) for parameter in parameters[:1]]
        ctx.dtypes = [tensor.dtype for tensor in (features, *parameters)]
        ctx.count = len(targets) if counted is None else counted.sum().clamp_min(1)
        means = totals / ctx.count
        loss, added = means[0].clone(), means[1:].clone()
        ctx.mark_non_differentiable(added)
        return loss, added

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        scale = outer[0] / ctx.count  # of the mean: the forward pass made a sum's
        # In place: that of the table is one of the largest tensors of a step.
        scaled = [g.mul_(scale).to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)]
        for table, gradient in zip(ctx.tables, scaled[1:], strict=False):
            note_gradient(table, gradient)
        return None, None, None, None, None, *scaled


def with_gradients(x: Tensor, gradients: Tensor) -> Float[Tensor, ""]:
    """Return zero, with the given gradients by x.

    Replaces `grad_outputs` of `torch.autograd.grad`, which loads sympy: half a second of the start
    of a run, and 29 MiB.
    """
    return _WithGradients.apply(x, gradients)


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return x.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *_: Tensor
    ) -> tuple[Tensor, None]:
        (gradients,) = ctx.saved_tensors
        return gradients, None


def _own_logits(unembedding: nn.Module, x: Tensor) -> tuple[Tensor, SplitVocabulary | None]:
    """Return the logits that this process computes, and the part of the vocabulary they are of."""
    vocabulary: SplitVocabulary | None = getattr(unembedding, "vocabulary", None)
    with contextlib.nullcontext() if vocabulary is None else vocabulary.local():
        return unembedding(x), vocabulary


def _scored(
    rows: LogitRows, terms: Sequence[LossTerm], *, in_place: bool
) -> tuple[Float[Tensor, "losses chunk"], Float[Tensor, "chunk vocab"]]:
    """Return the losses of each row, then its terms, and the gradient of the sum of all.

    That of the cross-entropy is softmax(logits) - one_hot(targets). In bfloat16 the value comes
    from a rounded probability, with an unbiased error of a few thousandths of a nat per token; a
    rounded log-probability would err ten times as much.
    """
    probabilities = rows.probabilities(in_place=in_place and not terms)
    chosen = rows.at_targets(probabilities)
    losses = -chosen.float().clamp_min(torch.finfo(torch.float32).tiny).log()
    gradients = probabilities.clone() if terms else probabilities
    rows.add_at_targets(gradients, -1.0)
    added = [term(rows, probabilities, gradients) for term in terms]
    return torch.stack([losses, *added]), gradients


class NextToken(nn.Module):
    """Model and loss as one module, so that wrappers of modules see one forward pass."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(
        self,
        tokens: Int64[Tensor, "rows window"],
        counted: Bool[Tensor, "rows window"] | None = None,
        share: Share | None = None,
        real: Bool[Tensor, "rows window"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean loss in nats of predicting tokens 1.. of each row from those before.

        Losses that the model's modules report are added, unless nothing counts, but are not part of
        the metric `loss`.

        Args:
          tokens: as in `Batch`.
          counted: as in `Batch`.
          share: of this pass in an optimizer step, by which all losses are scaled; None if it is
            the only one.
          real: as in `Batch`.
        """
        batch = Batch(tokens, counted, real)
        with collecting() as reports:
            ctx = self._context_of(batch)
            features = self.model.features(ctx.own(batch.inputs), ctx)
            loss = self.loss_of(features, ctx, batch)
        if share is not None:
            is_counted = share.is_counted
        else:
            is_counted = batch.counted_targets is None or batch.counted_targets.any()
        loss = loss if share is None else scaled(loss, share.of_targets)
        added = reports.losses_of(share).values()
        return sum(added if is_counted is True else (x * is_counted for x in added), loss)

    def loss_of(
        self, features: Float[Tensor, "rows seq hidden"], ctx: AttentionContext, batch: Batch
    ) -> Float[Tensor, ""]:
        """Return the mean loss of this process's tokens, and report it."""
        counted = batch.counted_targets
        loss = self.loss(
            features.flatten(0, 1),
            self.model.unembedding,
            ctx.own(batch.targets).flatten(),
            None if counted is None else ctx.own(counted).flatten(),
        )
        report_metric("loss", loss)
        return loss

    def count(
        self,
        tokens: Int64[Tensor, "rows window"],
        counted: Bool[Tensor, "rows window"] | None = None,
        real: Bool[Tensor, "rows window"] | None = None,
    ) -> None:
        """Report what losses must know of all micro-batches before the first backward pass."""
        batch = Batch(tokens, counted, real)
        ctx = self._context_of(batch)
        self.model.count_batch(ctx.own(batch.inputs), ctx)

    def _context_of(self, batch: Batch) -> AttentionContext:
        return self.model.context_of(
            batch.inputs, counted=batch.counted_targets, real=batch.real_inputs
        )


_IGNORED = -100  # a target that torch's losses ignore


class FusedCrossEntropy(CrossEntropy):
    """The same loss by `torch.nn.functional.linear_cross_entropy`, since torch 2.13.

    Logits that are not just a scaled product with a table, such as those with a softcap, and losses
    with `terms` fall back to `CrossEntropy`.

    In bfloat16 torch sums the table's gradients of the chunks in bfloat16 too, so the error grows
    with their number: for 2,048 tokens 0.3% in 8 chunks and 2.4% in 512, against 0.3% for
    `CrossEntropy`.

    Args:
      terms: as in `CrossEntropy`.
      chunk_size: as in `CrossEntropy`.

    Raises:
      ValueError: chunk_size is below 1.
    """

    def _with_gradients(
        self, features: Tensor, unembedding: nn.Module, targets: Tensor, counted: Tensor | None
    ) -> Float[Tensor, ""]:
        is_split = hasattr(unembedding, "vocabulary")
        if type(unembedding) is not Unembedding or self.terms or is_split or unembedding.softcap:
            return super()._with_gradients(features, unembedding, targets, counted)
        if unembedding.scale != 1.0:
            features = features * unembedding.scale
        if counted is not None:
            targets = targets.masked_fill(~counted, _IGNORED)
        # A sum would have the format of the features, and bfloat16 has three digits.
        is_exact = features.dtype == torch.float32
        fused: Any = getattr(F, "linear_cross_entropy")  # noqa: B009
        losses = fused(
            features,
            unembedding.weight,
            targets,
            reduction="sum" if is_exact else "none",
            ignore_index=_IGNORED,
            options=nn.LinearCrossEntropyOptions(
                batch_chunk_size=self.rows_on(features.device),
                allow_retain_graph=torch.compiler.is_compiling(),  # or it warns, and breaks graphs
            ),
        )
        count = len(targets) if counted is None else counted.sum().clamp_min(1)
        return losses.float().sum() / count
