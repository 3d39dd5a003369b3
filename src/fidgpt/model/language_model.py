"""What training, evaluation and generation ask of a model."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.layout import Layout, LayoutMaker


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
        self, tokens: Int[Tensor, "batch seq"], layout: Layout | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        """What the model knows of each token, ready for the unembedding.

        Args:
          tokens: ids, from 0 to vocab_size - 1.
          layout: where the tokens stand; as the model itself says of a training batch unless given.
        """
        raise NotImplementedError

    def forward(
        self, tokens: Int[Tensor, "batch seq"], layout: Layout | None = None
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the token that follows each token; the arguments are those of `features`."""
        return self.unembedding(self.features(tokens, layout))

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device
