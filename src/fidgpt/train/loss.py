"""Losses."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidgpt.data import inputs_and_targets
from fidgpt.model.embedding import Unembedding
from fidgpt.model.reports import collecting, report_loss, report_metric
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_not_negative


@runtime_checkable
class LossTerm(Protocol):
    """A number for each row of logits, added to its cross-entropy."""

    def __call__(
        self,
        logits: Float[Tensor, "chunk vocab"],
        targets: Int64[Tensor, " chunk"],
        probabilities: Float[Tensor, "chunk vocab"],
        gradients: Float[Tensor, "chunk vocab"],
        /,
    ) -> Float[Tensor, " chunk"]:
        """What is added to each row's loss, in float32, and its derivatives to `gradients`.

        Args:
          logits: of the rows.
          targets: the token that came, of each row.
          probabilities: softmax of the logits; as the logits, they are only read.
          gradients: of the sum of all losses by the logits, to be added to in place.
        """
        ...


class ZLoss:
    """Keeps the logits' normaliser near one (PaLM, arXiv:2204.02311, section 5).

    Adds `weight * log(Z)^2` of each token, where Z is the sum of its exponentiated logits.

    Args:
      weight: of the square, 1e-4 in PaLM.

    Raises:
      ValueError: the weight is negative, or infinite.
    """

    def __init__(self, *, weight: float = 1e-4) -> None:
        self.check_arguments(weight=weight)
        self.weight = weight

    @staticmethod
    def check_arguments(*, weight: float) -> None:
        """Raises ValueError unless the weight is finite and 0 or more."""
        require_not_negative("weight", weight)

    def __call__(
        self,
        logits: Float[Tensor, "chunk vocab"],
        targets: Int64[Tensor, " chunk"],
        probabilities: Float[Tensor, "chunk vocab"],
        gradients: Float[Tensor, "chunk vocab"],
    ) -> Float[Tensor, " chunk"]:
        """The weighted squares; their derivative is 2 weight log(Z) softmax(logits)."""
        normalizers = logits.float().logsumexp(-1)
        pull = (2 * self.weight * normalizers).to(logits.dtype).unsqueeze(-1)
        gradients.addcmul_(probabilities, pull)
        return self.weight * normalizers.square()


class SmoothedLabels:
    """Aims at the token that came, and by `amount` at all tokens alike.

    The target is `1 - amount` for the token and `amount / vocab` for each of the table, itself
    among them (Szegedy et al., 2016, arXiv:1512.00567, section 7). To the cross-entropy this adds
    `amount * (logit of the token - mean of the logits)`; together they are torch's
    `F.cross_entropy(label_smoothing=amount)`.

    Args:
      amount: from 0, which smooths nothing, to below 1.

    Raises:
      ValueError: the amount is out of that range.
    """

    def __init__(self, *, amount: float = 0.1) -> None:
        self.check_arguments(amount=amount)
        self.amount = amount

    @staticmethod
    def check_arguments(*, amount: float) -> None:
        """Raises ValueError unless the token that came keeps a share of the target."""
        if not 0 <= amount < 1:
            raise ValueError(
                f"{amount=} of label smoothing has to be from 0 to below 1: 0.1 is usual."
            )

    def __call__(
        self,
        logits: Float[Tensor, "chunk vocab"],
        targets: Int64[Tensor, " chunk"],
        probabilities: Float[Tensor, "chunk vocab"],
        gradients: Float[Tensor, "chunk vocab"],
    ) -> Float[Tensor, " chunk"]:
        """The difference to the plain loss, which may be negative."""
        rows = torch.arange(len(targets), device=targets.device)
        gradients -= self.amount / logits.shape[-1]
        gradients[rows, targets] += self.amount
        means = logits.mean(-1, dtype=torch.float32)
        return self.amount * (logits[rows, targets].float() - means)


# Every chunk costs the float32 sum of the table's gradients one way through memory and back. To a
# CPU, whose products are slow, that is nothing; to a GPU as much as one of the three products of
# 1,024 rows with the table, whatever their sizes: 10 bytes for each of its numbers against 2,048
# operations, of which an H100 does 3,350 and 700,000 in a nanosecond.
_ROWS_ON_CPU, _ROWS = 1024, 4096


class CrossEntropy:
    """Mean negative log-probability, in nats, of the targets under an unembedding's logits.

    The logits of a batch are the largest tensor of a small model's training, and a float32 copy
    and two gradients of the same size follow them. Here they are computed, and differentiated
    already in the forward pass, a chunk of rows at a time, after which only the gradients of the
    features and of the unembedding are kept. Any unembedding will do: one with a bias, a softcap
    or a table of its own.

    Args:
      terms: what is added to it in training, by the names under which the metrics show it, such as
        `z_loss`; neither `loss` nor evaluation holds it.
      chunk_size: rows whose logits exist at once; 1,024 on a CPU and 4,096 elsewhere unless said.

    Raises:
      ValueError: chunk_size is below 1.
    """

    def __init__(
        self, *, terms: Mapping[str, LossTerm] | None = None, chunk_size: int | None = None
    ) -> None:
        self.check_arguments(chunk_size=chunk_size)
        self.terms = dict(sorted((terms or {}).items()))  # a config that was saved may sort them
        self.chunk_size = chunk_size

    @staticmethod
    def check_arguments(*, chunk_size: int | None) -> None:
        """Raises ValueError unless there is a row of logits at a time."""
        if chunk_size is not None and not 1 <= chunk_size < 2**63:
            raise ValueError(f"{chunk_size=} must be at least 1 row of logits, and below 2**63.")

    def rows_on(self, device: torch.device) -> int:
        """How many rows of logits exist at once on a device."""
        return self.chunk_size or (_ROWS_ON_CPU if device.type == "cpu" else _ROWS)

    def __call__(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int64[Tensor, " tokens"],
        counted: Bool[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean over all tokens, or over those that are counted, in float32; 0 if none is.

        A token counts 87 nats at most, where its probability leaves the range of float32; its
        gradient is right even then.
        """
        if not torch.is_grad_enabled():
            losses = self.token_losses(features, unembedding, targets)
            return losses.mean() if counted is None else _mean_of(losses, counted)
        return self._with_gradients(features, unembedding, targets, counted)

    def _with_gradients(
        self,
        features: Tensor,
        unembedding: nn.Module,
        targets: Tensor,
        counted: Tensor | None,
    ) -> Float[Tensor, ""]:
        # Given as inputs so that autograd adds their gradients up, tied or shared as they may be.
        parameters = [p for p in unembedding.parameters() if p.requires_grad]
        terms = list(self.terms.values())
        loss, added = _Chunked.apply(
            terms,
            self.rows_on(features.device),
            unembedding,
            targets,
            counted,
            features,
            *parameters,
        )
        for name, value in zip(self.terms, added.unbind(), strict=True):
            # A value only: its gradients come with those of the loss.
            report_loss(name, value)
        return loss

    @torch.no_grad()
    def token_losses(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int64[Tensor, " tokens"],
    ) -> Float[Tensor, " tokens"]:
        """The loss of each token, in float32 and without gradients: what evaluation sums."""
        size = self.rows_on(features.device)
        chunks = zip(features.split(size), targets.split(size), strict=True)
        return torch.cat(
            [F.cross_entropy(unembedding(x).float(), y, reduction="none") for x, y in chunks]
        )


class _Chunked(torch.autograd.Function):
    """The mean loss; its forward pass makes the gradients, its backward only scales them.

    What is added to the loss comes out beside it as values: their gradients are in the loss's.
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
        chunks = [part.split(chunk_size) for part in (features, targets, feature_gradients)]
        weights = [None] * len(chunks[0]) if counted is None else counted.split(chunk_size)
        # Without memory there is nothing to compute, and all chunks after the first take the same.
        last = 2 if features.is_meta else None
        for x, y, x_gradient, weight in [*zip(*chunks, weights, strict=True)][:last]:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                logits = unembedding(x)
            losses, logit_gradients = _scored(logits.detach(), y, terms)
            if weight is not None:  # of rows that are not counted, nothing
                losses *= weight
                logit_gradients *= weight.unsqueeze(-1)
            totals = totals + losses.sum(-1)
            with torch.enable_grad():
                seeded = _WithGradients.apply(logits, logit_gradients)
            gradient, *rest = torch.autograd.grad(seeded, [x, *parameters], materialize_grads=True)
            x_gradient.copy_(gradient)
            # Summed in float32 from the second chunk on: bfloat16 would lose the small ones.
            sums = [s.float().add_(r) for s, r in zip(sums, rest, strict=True)] if sums else rest
        ctx.save_for_backward(feature_gradients, *sums)
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
        scaled = [(g * scale).to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return None, None, None, None, None, *scaled


class _WithGradients(torch.autograd.Function):
    """A number, 0, whose gradients by the logits are those that are given.

    It says what `torch.autograd.grad(logits, ..., grad_outputs=gradients)` does, which would load
    sympy: half a second of a run's start.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return logits.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *_: Tensor
    ) -> tuple[Tensor, None]:
        (gradients,) = ctx.saved_tensors
        return gradients, None


def _mean_of(losses: Float[Tensor, " tokens"], counted: Bool[Tensor, " tokens"]) -> Tensor:
    return (losses * counted).sum() / counted.sum().clamp_min(1)


def _scored(
    logits: Float[Tensor, "chunk vocab"],
    targets: Int64[Tensor, " chunk"],
    terms: Sequence[LossTerm],
) -> tuple[Float[Tensor, "losses chunk"], Float[Tensor, "chunk vocab"]]:
    """The losses of each row, those of terms below, and the gradient of the sum of all.

    That of the cross-entropy is softmax(logits) - one_hot(targets). In bfloat16 its value is read
    off a rounded probability, which errs by a few thousandths of a nat per token in both
    directions; a rounded log-probability would err ten times as much.
    """
    probabilities = logits.softmax(dim=-1)
    rows = torch.arange(len(targets), device=targets.device)
    chosen = probabilities[rows, targets]
    losses = -chosen.float().clamp_min(torch.finfo(torch.float32).tiny).log()
    gradients = probabilities.clone() if terms else probabilities
    gradients[rows, targets] = chosen - 1
    added = [term(logits, targets, probabilities, gradients) for term in terms]
    return torch.stack([losses, *added]), gradients


class NextToken(nn.Module):
    """Model and loss as one module, so that wrappers of modules see one forward pass."""

    def __init__(self, model: LanguageModel, loss: CrossEntropy) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(
        self, batch: Int64[Tensor, "rows window"], all_in_loss: bool | None = None
    ) -> Float[Tensor, ""]:
        """Mean loss in nats of predicting tokens 1.. of each row from those before.

        Masked tokens are read and not predicted. What the model's modules report as losses is
        added; the metric `loss` is without it.

        Args:
          batch: tokens, masked or not.
          all_in_loss: whether all of them count in the loss, if that is known without reading them.
        """
        with collecting() as reports:
            inputs, targets, counted = inputs_and_targets(batch, all_counted=all_in_loss)
            features = self.model.features(inputs).flatten(0, 1)
            counted = None if counted is None else counted.flatten()
            loss = self.loss(features, self.model.unembedding, targets.flatten(), counted)
        report_metric("loss", loss)
        return sum(reports.losses.values(), loss)


_IGNORED = -100  # a target that torch's losses do not count


class FusedCrossEntropy(CrossEntropy):
    """The same number by `torch.nn.functional.linear_cross_entropy`, which came with torch 2.13.

    Torch knows a product with a table, whose scale may be any. Logits that are more than that, as
    those with a softcap, and losses with `terms` are computed as `CrossEntropy` does.

    In bfloat16 torch adds up the table's gradients of the chunks in bfloat16 too, and errs the more
    the more there are: of 2,048 tokens by 0.3% in 8 chunks and 2.4% in 512, where `CrossEntropy`
    errs by 0.3% in all.

    Args:
      terms: as in `CrossEntropy`.
      chunk_size: as in `CrossEntropy`.

    Raises:
      ValueError: this torch has no such function; or chunk_size is below 1.
    """

    @staticmethod
    def check_arguments(*, chunk_size: int | None) -> None:
        """Raises ValueError where torch has no fused loss, or there is no row at a time."""
        CrossEntropy.check_arguments(chunk_size=chunk_size)
        if _fused() is None:
            raise ValueError(
                f"torch {torch.__version__} has no torch.nn.functional.linear_cross_entropy, "
                "which 2.13 brought: update torch, or use CrossEntropy, which needs no more memory."
            )

    def _with_gradients(
        self,
        features: Tensor,
        unembedding: nn.Module,
        targets: Tensor,
        counted: Tensor | None,
    ) -> Float[Tensor, ""]:
        if self.terms or type(unembedding) is not Unembedding or unembedding.softcap is not None:
            return super()._with_gradients(features, unembedding, targets, counted)
        if unembedding.scale != 1.0:
            features = features * unembedding.scale
        if counted is not None:
            targets = targets.masked_fill(~counted, _IGNORED)
        # A sum would be made in the features' format, of which bfloat16 has three digits.
        is_exact = features.dtype == torch.float32
        losses = _fused()(
            features,
            unembedding.weight,
            targets,
            reduction="sum" if is_exact else "none",
            ignore_index=_IGNORED,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=self.rows_on(features.device)),
        )
        count = len(targets) if counted is None else counted.sum().clamp_min(1)
        return losses.float().sum() / count


def _fused() -> Any:
    """Torch's function, which is None where it has none."""
    return getattr(F, "linear_cross_entropy", None)
