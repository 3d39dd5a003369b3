"""Cross-entropy of the next token that never holds the logits of a whole batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidgpt.model.reports import report_loss

# The loss of each row of logits, what is added to it, and the gradient of the sum of both.
Scored = tuple[Tensor, Tensor, Tensor]
Score = Callable[[Tensor, Tensor], Scored]


class CrossEntropy:
    """Mean negative log-probability, in nats, of the targets under an unembedding's logits.

    The logits of a batch are the largest tensor of a small model's training, and a float32 copy
    and two gradients of the same size follow them. Here they are computed, and differentiated
    already in the forward pass, a chunk of rows at a time, after which only the gradients of the
    features and of the unembedding are kept. Any unembedding will do: one with a bias, a softcap
    or a table of its own.

    Args:
      chunk_size: rows whose logits exist at once.

    Raises:
      ValueError: chunk_size is below 1.
    """

    def __init__(self, *, chunk_size: int = 1024) -> None:
        self.check_arguments(chunk_size=chunk_size)
        self.chunk_size = chunk_size

    @staticmethod
    def check_arguments(*, chunk_size: int) -> None:
        """Raises ValueError unless there is a row of logits at a time."""
        if chunk_size < 1:
            raise ValueError(f"{chunk_size=} must be at least 1 row of logits.")

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
        # Given as inputs so that autograd adds their gradients up, tied or shared as they may be.
        parameters = [p for p in unembedding.parameters() if p.requires_grad]
        return self._apply(features, unembedding, (targets, counted), parameters)

    def _apply(
        self,
        features: Tensor,
        unembedding: nn.Module,
        targets: tuple[Tensor, Tensor | None],
        parameters: Sequence[nn.Parameter],
    ) -> Float[Tensor, ""]:
        """The mean, with gradients."""
        loss, _ = _Chunked.apply(
            _cross_entropy, self.chunk_size, unembedding, *targets, features, *parameters
        )
        return loss

    @torch.no_grad()
    def token_losses(
        self,
        features: Float[Tensor, "tokens hidden"],
        unembedding: nn.Module,
        targets: Int64[Tensor, " tokens"],
    ) -> Float[Tensor, " tokens"]:
        """The loss of each token, in float32 and without gradients: what evaluation sums."""
        chunks = zip(features.split(self.chunk_size), targets.split(self.chunk_size), strict=True)
        return torch.cat(
            [F.cross_entropy(unembedding(x).float(), y, reduction="none") for x, y in chunks]
        )


class ZLoss(CrossEntropy):
    """Cross-entropy that keeps the logits' normaliser near one (PaLM, arXiv:2204.02311, section 5).

    Adds `weight * log(Z)^2` of each token, where Z is the sum of its exponentiated logits: it is
    reported as `z_loss`, and neither `loss` nor evaluation holds it.

    Args:
      weight: of the square, 1e-4 in PaLM.
      chunk_size: rows whose logits exist at once.

    Raises:
      ValueError: chunk_size is below 1.
    """

    def __init__(self, *, weight: float = 1e-4, chunk_size: int = 1024) -> None:
        super().__init__(chunk_size=chunk_size)
        self.weight = weight

    def _apply(
        self,
        features: Tensor,
        unembedding: nn.Module,
        targets: tuple[Tensor, Tensor | None],
        parameters: Sequence[nn.Parameter],
    ) -> Float[Tensor, ""]:
        score = partial(_with_z_loss, self.weight)
        loss, extra = _Chunked.apply(
            score, self.chunk_size, unembedding, *targets, features, *parameters
        )
        # A value only: its gradients come with those of the loss.
        report_loss("z_loss", extra)
        return loss


class _Chunked(torch.autograd.Function):
    """The mean loss; its forward pass makes the gradients, its backward only scales them.

    What is added to the loss comes out beside it as a value: its gradients are in the loss's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        score: Score,
        chunk_size: int,
        unembedding: nn.Module,
        targets: Tensor,
        counted: Tensor | None,
        features: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        total, extra = features.new_zeros(2, dtype=torch.float32).unbind()
        feature_gradients, sums = [], []
        chunks = [part.split(chunk_size) for part in (features, targets)]
        weights = [None] * len(chunks[0]) if counted is None else counted.split(chunk_size)
        for x, y, weight in zip(*chunks, weights, strict=True):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                logits = unembedding(x)
            loss, more, logit_gradients = _summed(score(logits.detach(), y), weight)
            total, extra = total + loss, extra + more
            gradient, *rest = torch.autograd.grad(
                logits, [x, *parameters], logit_gradients, materialize_grads=True
            )
            feature_gradients.append(gradient)
            # Summed in float32 from the second chunk on: bfloat16 would lose the small ones.
            sums = [s.float().add_(r) for s, r in zip(sums, rest, strict=True)] if sums else rest
        ctx.save_for_backward(torch.cat(feature_gradients), *sums)
        ctx.dtypes = [tensor.dtype for tensor in (features, *parameters)]
        ctx.count = len(targets) if counted is None else counted.sum().clamp_min(1)
        extra = extra / ctx.count
        ctx.mark_non_differentiable(extra)
        return total / ctx.count, extra

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        scale = outer[0] / ctx.count  # of the mean: the forward pass made a sum's
        scaled = [(g * scale).to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return None, None, None, None, None, *scaled


def _summed(scored: Scored, counted: Tensor | None) -> Scored:
    """Sums over rows; of the rows that are not counted, nothing."""
    loss, extra, gradients = scored
    if counted is None:
        return loss.sum(), extra.sum(), gradients
    gradients *= counted.unsqueeze(-1)
    return (loss * counted).sum(), (extra * counted).sum(), gradients


def _mean_of(losses: Float[Tensor, " tokens"], counted: Bool[Tensor, " tokens"]) -> Tensor:
    return (losses * counted).sum() / counted.sum().clamp_min(1)


def _cross_entropy(
    logits: Float[Tensor, "chunk vocab"], targets: Int64[Tensor, " chunk"]
) -> Scored:
    """The losses and their gradient, softmax(logits) - one_hot(targets), in two passes.

    In bfloat16 the loss is read off a rounded probability, which errs by a few thousandths of a
    nat per token in both directions; a rounded log-probability would err ten times as much.
    """
    probabilities = logits.softmax(dim=-1)
    rows = torch.arange(len(targets), device=targets.device)
    chosen = probabilities[rows, targets]
    losses = -chosen.float().clamp_min(torch.finfo(torch.float32).tiny).log()
    probabilities[rows, targets] = chosen - 1
    return losses, losses.new_zeros(1), probabilities


def _with_z_loss(
    weight: float, logits: Float[Tensor, "chunk vocab"], targets: Int64[Tensor, " chunk"]
) -> Scored:
    """The same and the squares, whose gradient is 2 weight log(Z) softmax(logits)."""
    normalizers = logits.float().logsumexp(-1)
    pull = (2 * weight * normalizers).to(logits.dtype).unsqueeze(-1)
    losses, _, gradients = _cross_entropy(logits, targets)
    rows = torch.arange(len(targets), device=targets.device)
    probabilities = gradients.clone()
    probabilities[rows, targets] += 1
    return losses, weight * normalizers.square(), gradients.addcmul_(probabilities, pull)
