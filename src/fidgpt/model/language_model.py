"""What training, evaluation and generation ask of a model."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class LanguageModel(nn.Module):
    """Tokens in, a score for every next token out, in two halves.

    The halves are apart so that a loss can score a few tokens at a time, and generation only the
    last one: the logits of a whole batch are the largest tensor of a small model's training.

    Attributes:
      unembedding: features [..., hidden] to logits [..., vocab].
    """

    unembedding: nn.Module

    def features(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq hidden"]:
        """What the model knows of each token, ready for the unembedding."""
        raise NotImplementedError

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the token that follows each token."""
        return self.unembedding(self.features(tokens))

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device
