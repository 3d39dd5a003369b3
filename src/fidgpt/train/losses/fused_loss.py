"""Cross-entropy by torch's own product and loss in one, where it has them."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.embedding import Unembedding
from fidgpt.train.losses.loss import CrossEntropy

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
