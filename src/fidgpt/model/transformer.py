"""The decoder: a block and the stack of blocks that makes a language model."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.embedding import Embedding
from fidgpt.model.language_model import LanguageModel


class Block(nn.Module):
    """One layer: attention, then an MLP, each normalised before and added to the stream.

    Args:
      attention_norm: normalises what attention reads.
      attention: mixes tokens.
      mlp_norm: normalises what the MLP reads.
      mlp: works on each token alone.
      dropout: probability of dropping an element of either branch in training.
    """

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: nn.Module,
        mlp_norm: nn.Module,
        mlp: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        x = x + self._drop(self.attention(self.attention_norm(x)))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout) if self.training and self.dropout else branch


class Transformer(LanguageModel):
    """A decoder-only language model: tokens in, a score for every next token out.

    `blocks` is a pattern that repeats over the depth: layer i is built by
    `blocks[i % len(blocks)]`, so one entry makes all layers alike and `[dense, moe]` makes every
    second layer a mixture.

    Args:
      hidden_dim: width of the residual stream.
      num_layers: depth.
      embedding: tokens to vectors.
      blocks: factories of blocks, called once a layer.
      norm: normalises the stream after the last block.
      unembedding: features to logits.
      dropout: probability of dropping an element of the embedding in training.

    Raises:
      ValueError: there is no block, or the embedding has another width.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_layers: int,
        embedding: Embedding,
        blocks: Sequence[Callable[[], nn.Module]],
        norm: nn.Module,
        unembedding: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_layers < 1 or not blocks:
            raise ValueError(f"{num_layers=} with {len(blocks)} kinds of block: both are needed.")
        if embedding.weight.shape[1] != hidden_dim:
            raise ValueError(
                f"{hidden_dim=}, but the token table is {embedding.weight.shape[1]} wide: "
                "let both hear one value."
            )
        self.dropout = dropout
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks[i % len(blocks)]() for i in range(num_layers))
        self.norm = norm
        self.unembedding = unembedding

    def features(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq hidden"]:
        """What the last layer knows of each token, normalised: the input of the unembedding."""
        x = self.embedding(tokens)
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
