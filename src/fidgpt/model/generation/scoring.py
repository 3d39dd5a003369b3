"""Scoring of text: log-probabilities, perplexity, bits per byte."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fidgpt.model.context import AttentionContext, Tokens
from fidgpt.model.transformer import LanguageModel

__all__ = ["Score", "log_probabilities", "score"]


_CHUNK = 1024  # tokens whose logits are computed at once


@dataclass(frozen=True, eq=False)
class Score:
    """Log-probabilities of the tokens of a text, each given the preceding ones.

    Attributes:
      log_probabilities: log-probability of each token but the first, in nats.
    """

    log_probabilities: Float[Tensor, " tokens"]

    @property
    def nats(self) -> float:
        """The negative log-probability of the text."""
        return -self.log_probabilities.double().sum().item()

    @property
    def perplexity(self) -> float:
        """The perplexity, exp(nats / number of scored tokens)."""
        return math.exp(self.nats / len(self.log_probabilities))

    def bits_per_byte(self, num_bytes: int) -> float:
        """Return bits per byte of a text, which are comparable across tokenizers."""
        return self.nats / math.log(2) / num_bytes


def score(model: LanguageModel, tokens: Sequence[int], *, context: int) -> Score:
    """Score all tokens of a text except the first.

    Texts longer than the context are scored in windows that overlap by half, so that each token is
    preceded by at least `context` / 2 tokens of context.

    Args:
      model: in eval mode.
      tokens: two or more token ids; the first is often the end of text.
      context: maximum number of tokens per forward pass.

    Raises:
      ValueError: there are fewer than two tokens, or the context is below 1.
    """
    if len(tokens) < 2 or context < 1:
        raise ValueError(
            f"cannot score {len(tokens)} tokens in a context of {context}; at least two tokens, of "
            "which the first is not scored, and a context of at least 1 are needed."
        )
    row = torch.tensor([list(tokens)], device=model.device)
    parts, scored = [], 0
    while scored < len(tokens) - 1:
        begin = 0 if scored == 0 else scored - context // 2
        window = row[:, begin : begin + context + 1]
        parts.append(log_probabilities(model, window)[0, scored - begin :].cpu())
        scored += len(parts[-1])
    return Score(torch.cat(parts))


@torch.inference_mode()
def log_probabilities(
    model: LanguageModel, tokens: Tokens, ctx: AttentionContext | None = None
) -> Float[Tensor, "batch seq-1"]:
    """Return the log-probability of each token but the first, in nats and float32.

    Args:
      model: in eval mode.
      tokens: token ids, [batch, seq].
      ctx: context of all tokens but the last; defaults to the model's `layout` of them.
    """
    features, targets = model.features(tokens[:, :-1], ctx), tokens[:, 1:]
    parts = []
    for x, y in zip(features.split(_CHUNK, dim=1), targets.split(_CHUNK, dim=1), strict=True):
        logits = model.unembedding(x).float().transpose(1, 2)
        parts.append(-F.cross_entropy(logits, y, reduction="none"))
    return torch.cat(parts, dim=1)
