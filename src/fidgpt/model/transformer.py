"""What training, evaluation and generation ask of a model."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.blocks import BlockFactory
from fidgpt.model.context import AttentionContext, LayoutMaker, one_document
from fidgpt.model.embedding import Embedding
from fidgpt.ranges import require_probability, require_size


class LanguageModel(nn.Module):
    """Tokens in, a score for every next token out, in two halves.

    The halves are apart so that a loss can score a few tokens at a time, and generation only the
    last one: the logits of a whole batch are the largest tensor of a small model's training.

    Attributes:
      unembedding: features [..., hidden] to logits [..., vocab].
      layout: says where the tokens of a batch stand.
    """

    unembedding: nn.Module
    layout: LayoutMaker

    def features(
        self, tokens: Int[Tensor, "batch seq"], layout: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        """What the model knows of each token, ready for the unembedding.

        Args:
          tokens: ids, from 0 to vocab_size - 1.
          layout: where the tokens stand; as the model itself says of a training batch unless given.
        """
        raise NotImplementedError

    def forward(
        self, tokens: Int[Tensor, "batch seq"], layout: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the token that follows each token; the arguments are those of `features`."""
        return self.unembedding(self.features(tokens, layout))

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device


_DEEPEST = 100_000  # each layer is made, on whatever device: a slip of the pen would never end


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
      first_blocks: factories of the first layers, where these are not those of the pattern.
      norm: normalises the stream after the last block.
      unembedding: features to logits.
      layout: says where the tokens of a batch stand.
      dropout: probability of dropping an element of the embedding in training.

    Raises:
      ValueError: there is no block, or too many, or the embedding has another width.
    """

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_layers: int,
        embedding: Embedding,
        blocks: Sequence[BlockFactory],
        norm: nn.Module,
        unembedding: nn.Module,
        first_blocks: Sequence[BlockFactory] = (),
        layout: LayoutMaker = one_document,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        Transformer.check_arguments(hidden_dim=hidden_dim, num_layers=num_layers, dropout=dropout)
        if not blocks:
            raise ValueError(f"{blocks=} holds no kind of block: put one there.")
        if embedding.weight.shape[1] != hidden_dim:
            raise ValueError(
                f"{hidden_dim=}, but the token table is {embedding.weight.shape[1]} wide: "
                "let both hear one value."
            )
        self.dropout = dropout
        self.embedding = embedding
        pattern = (blocks[i % len(blocks)] for i in range(len(first_blocks), num_layers))
        factories = [*first_blocks[:num_layers], *pattern]
        self.blocks = nn.ModuleList(make() for make in factories)
        self.norm = norm
        self.unembedding = unembedding
        self.layout = layout

    @staticmethod
    def check_arguments(*, hidden_dim: int, num_layers: int, dropout: float) -> None:
        """Raises ValueError unless width and depth are 1 or more, and the depth can be built."""
        require_size("hidden_dim", hidden_dim)
        require_size("num_layers", num_layers)
        require_probability("dropout", dropout)
        if num_layers > _DEEPEST:
            raise ValueError(f"{num_layers=} are more than {_DEEPEST}: no machine holds them all.")

    def features(
        self, tokens: Int[Tensor, "batch seq"], layout: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        """What the last layer knows of each token, normalised: the input of the unembedding."""
        layout = self.layout(tokens) if layout is None else layout
        x = self.embedding(tokens, layout)
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        for index, block in enumerate(self.blocks):
            x = block(x, layout.at_layer(index))
        return self.norm(x)
