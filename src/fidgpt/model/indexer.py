"""Which keys a query attends to, chosen by small heads of their own."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, Stream
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear
from fidgpt.model.positions import Rotation
from fidgpt.ranges import require_size

__all__ = ["Indexer", "IndexerFactory"]

Visible = Bool[Tensor, "rows one queries keys"]


@runtime_checkable
class IndexerFactory(Protocol):
    """Creates what selects the keys of latent attention, as `Indexer` does."""

    def __call__(self, *, hidden_dim: int, query_dim: int, rotary_dim: int) -> "Indexer": ...


class Indexer(nn.Module):
    """Selects the keys of sparse attention (DeepSeek-V3.2, 2025, arXiv:2512.02556, section 2.1).

    Key s of query t has the score `sum over heads h of w(t, h) * relu(q(t, h) . k(s))`, and a query
    attends to the `top_k` visible keys of the highest scores. A choice has no derivative: the
    parameters stay as they are, as in transformers, and come from a checkpoint.

    Args:
      hidden_dim: width of the residual stream.
      query_dim: width of what queries are projected from.
      rotary_dim: dimensions of each head that rotate, before the others.
      head_dim: dimensions of each head, and of the key that all share.
      num_heads: number of heads.
      top_k: keys of a query.
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
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        require_size(head_dim=head_dim, num_heads=num_heads, top_k=top_k)
        if rotary_dim > head_dim:
            raise ValueError(f"{rotary_dim=} dimensions cannot rotate of {head_dim=}.")
        self.head_dim, self.num_heads, self.top_k = head_dim, num_heads, top_k
        self.rotary_dim = rotary_dim
        self.query = Linear(query_dim, num_heads * head_dim, init=init)
        self.key = Linear(hidden_dim, head_dim, init=init)
        self.key_norm = nn.LayerNorm(head_dim, eps=1e-6)
        self.weight = Linear(hidden_dim, num_heads, init=init)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(
        self,
        x: Stream,
        narrow: Float[Tensor, "batch seq query_dim"],
        rope: Rotation | None,
        ctx: AttentionContext,
        visible: Visible,
    ) -> Bool[Tensor, "batch one queries keys"]:
        """Return which keys each query attends to.

        Args:
          x: the stream.
          narrow: what queries are projected from.
          rope: rotates the first dimensions.
          ctx: its context.
          visible: which keys a query may attend to.
        """
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
        scores = (weights.unsqueeze(-2) @ scores.transpose(1, 2)).transpose(1, 2)
        scores = scores.masked_fill(~visible, -torch.inf)
        chosen = scores.topk(min(self.top_k, scores.shape[-1]), dim=-1).indices
        return visible & torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)
