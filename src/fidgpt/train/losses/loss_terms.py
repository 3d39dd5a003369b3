"""What is added to the cross-entropy of each token, each a part that knows its own gradient."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

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
