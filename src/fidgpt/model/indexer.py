"""Which keys a query attends to, chosen by small heads of their own."""

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, Stream
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear
from fidgpt.model.moe.dispatch import RealTokens
from fidgpt.model.positions import Rotation
from fidgpt.model.reports import RealCount, report_loss
from fidgpt.ranges import require_not_negative, require_size

__all__ = ["DenseIndexerLoss", "Indexer", "IndexerFactory", "IndexerLoss"]

Visible = Bool[Tensor, "rows one queries keys"]
OfKeys = Float[Tensor, "batch one queries keys"]


class Selection(NamedTuple):
    """The keys that each query attends to.

    Attributes:
      keys: which of all keys they are.
      scores: by which they were selected; very small for keys that may not be seen.
    """

    keys: Bool[Tensor, "batch one queries keys"]
    scores: OfKeys


@runtime_checkable
class IndexerFactory(Protocol):
    """Creates what selects the keys of latent attention, as `Indexer` does."""

    def __call__(self, *, hidden_dim: int, query_dim: int, rotary_dim: int) -> "Indexer": ...


class IndexerLoss:
    """`weight * mean over queries of KL(p || softmax(scores))`, over the keys that are selected.

    p is the attention of a query, summed over heads and normalized (DeepSeek-V3.2, 2025,
    arXiv:2512.02556, section 2.1, equation 4, where queries are summed). Nothing but the indexer
    gets a gradient. Each layer has its loss; `indexer` is their sum.

    Args:
      weight: weight of the loss of each layer. The scale of a loss changes little under Adam.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    selects: ClassVar[bool] = True  # whether attention in training is to the selected keys alone

    def __init__(self, *, weight: float = 1.0) -> None:
        require_not_negative(weight=weight)
        self.weight = weight

    def __call__(
        self, weights: OfKeys, scores: OfKeys, ctx: AttentionContext, *, parts: int = 1
    ) -> None:
        """Report the loss.

        Args:
          weights: of the main attention, summed over heads.
          scores: of the indexer; very small where the weights are 0.
          ctx: of the queries.
          parts: number of processes whose gradients are summed, each of this loss.
        """
        target = weights / weights.sum(-1, keepdim=True)
        divergence = F.kl_div(scores.log_softmax(-1), target, reduction="none").sum(-1)
        real = RealTokens(RealCount(ctx.num_columns), ctx.real)
        loss = self.weight * real.mean(divergence.flatten())
        whole = loss.detach()
        report_loss("indexer", whole + (loss - whole) / parts, count=real.count)


class DenseIndexerLoss(IndexerLoss):
    """`IndexerLoss` over all visible keys, to which attention in training is: the warm-up.

    DeepSeek-V3.2 begins with it, and trains nothing but the indexers (equation 3). Evaluation and
    generation select keys.
    """

    selects: ClassVar[bool] = False


class Indexer(nn.Module):
    """Selects the keys of sparse attention (DeepSeek-V3.2, 2025, arXiv:2512.02556, section 2.1).

    Key s of query t has the score `sum over heads h of w(t, h) * relu(q(t, h) . k(s))`, and a query
    attends to the `top_k` visible keys of the highest scores. A choice has no derivative: the
    indexer learns by a loss of its own. Without one its parameters stay as they are, as in
    transformers, and come from a checkpoint.

    Args:
      hidden_dim: width of the residual stream.
      query_dim: width of what queries are projected from.
      rotary_dim: dimensions of each head that rotate, before the others.
      head_dim: dimensions of each head, and of the key that all share.
      num_heads: number of heads.
      top_k: keys of a query.
      objective: reports the loss by which it learns; None if it does not.
      init: of the projections.

    Raises:
      ValueError: a size is below 1.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        query_dim: int,
        rotary_dim: int,
        head_dim: int = 128,
        num_heads: int = 64,
        top_k: int = 2048,
        objective: IndexerLoss | None = None,
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        require_size(head_dim=head_dim, num_heads=num_heads, top_k=top_k)
        if rotary_dim > head_dim:
            raise ValueError(f"{rotary_dim=} dimensions cannot rotate of {head_dim=}.")
        self.head_dim, self.num_heads, self.top_k = head_dim, num_heads, top_k
        self.rotary_dim, self.objective = rotary_dim, objective
        self.query = Linear(query_dim, num_heads * head_dim, init=init)
        self.key = Linear(hidden_dim, head_dim, init=init)
        self.key_norm = nn.LayerNorm(head_dim, eps=1e-6)
        self.weight = Linear(hidden_dim, num_heads, init=init)
        if objective is None:
            self.requires_grad_(False)

    @property
    def learns_apart(self) -> bool:
        """Whether it learns, which it does by a loss of its own."""
        return self.objective is not None

    @property
    def selects(self) -> bool:
        """Whether attention is to the selected keys alone."""
        return not self.training or self.objective is None or self.objective.selects

    def forward(
        self,
        x: Stream,
        narrow: Float[Tensor, "batch seq query_dim"],
        rope: Rotation | None,
        ctx: AttentionContext,
        visible: Visible,
    ) -> Selection:
        """Return which keys each query attends to.

        Args:
          x: the stream.
          narrow: what queries are projected from.
          rope: rotates the first dimensions.
          ctx: its context.
          visible: which keys a query may attend to.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.objective is not None):
            scores = self._scores(x.detach(), narrow.detach(), rope, ctx)
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        chosen = scores.detach().topk(min(self.top_k, scores.shape[-1]), dim=-1).indices
        keys = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)
        return Selection(visible & keys, scores)

    def _scores(
        self, x: Stream, narrow: Tensor, rope: Rotation | None, ctx: AttentionContext
    ) -> OfKeys:
        query = self.query(narrow).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        key = self.key_norm(self.key(x)).unsqueeze(1)
        if rope is not None:
            turned = rope(query[..., : self.rotary_dim], key[..., : self.rotary_dim], ctx)
            query, key = (
                torch.cat([rotated, whole[..., self.rotary_dim :]], dim=-1)
                for rotated, whole in zip(turned, (query, key), strict=True)
            )
        (key,) = ctx.update_cache(self, [key.squeeze(1)])
        scores = (query.float() @ key.float().unsqueeze(1).mT * self.head_dim**-0.5).relu()
        weights = self.weight(x).float() * self.num_heads**-0.5
        return (weights.unsqueeze(-2) @ scores.transpose(1, 2)).transpose(1, 2)
