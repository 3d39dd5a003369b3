"""Cross-entropy of the next token that never holds the logits of a whole batch."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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
    ) -> Float[Tensor, ""]:
        """The mean over all tokens, in float32.

        A token counts 87 nats at most, where its probability leaves the range of float32; its
        gradient is right even then.
        """
        if not torch.is_grad_enabled():
            return self.token_losses(features, unembedding, targets).mean()
        # Given as inputs so that autograd adds their gradients up, tied or shared as they may be.
        parameters = [p for p in unembedding.parameters() if p.requires_grad]
        return _Chunked.apply(self.chunk_size, unembedding, targets, features, *parameters)

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


class _Chunked(torch.autograd.Function):
    """The mean loss; its forward pass makes the gradients, its backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        chunk_size: int,
        unembedding: nn.Module,
        targets: Tensor,
        features: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        total = features.new_zeros((), dtype=torch.float32)
        feature_gradients, sums = [], []
        for x, y in zip(features.split(chunk_size), targets.split(chunk_size), strict=True):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                logits = unembedding(x)
            loss, logit_gradients = _loss_and_gradients(logits.detach(), y)
            total += loss
            gradient, *rest = torch.autograd.grad(
                logits, [x, *parameters], logit_gradients, materialize_grads=True
            )
            feature_gradients.append(gradient)
            # Summed in float32 from the second chunk on: bfloat16 would lose the small ones.
            sums = [s.float().add_(r) for s, r in zip(sums, rest, strict=True)] if sums else rest
        ctx.save_for_backward(torch.cat(feature_gradients), *sums)
        ctx.dtypes = [tensor.dtype for tensor in (features, *parameters)]
        return total / len(targets)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        scale = outer[0] / len(gradients[0])  # of the mean: the forward pass made a sum's
        scaled = [(g * scale).to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return None, None, None, *scaled


def _loss_and_gradients(
    logits: Float[Tensor, "chunk vocab"], targets: Int64[Tensor, " chunk"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "chunk vocab"]]:
    """The summed loss and its gradient, softmax(logits) - one_hot(targets), in two passes.

    In bfloat16 the loss is read off a rounded probability, which errs by a few thousandths of a
    nat per token in both directions; a rounded log-probability would err ten times as much.
    """
    probabilities = logits.softmax(dim=-1)
    rows = torch.arange(len(targets), device=targets.device)
    chosen = probabilities[rows, targets]
    loss = -chosen.float().clamp_min(torch.finfo(torch.float32).tiny).log().sum()
    probabilities[rows, targets] = chosen - 1
    return loss, probabilities
