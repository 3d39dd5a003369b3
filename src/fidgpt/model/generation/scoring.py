"""How likely a model finds a text: log-probabilities, perplexity, bits per byte."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.model.context import AttentionContext
from fidgpt.model.transformer import LanguageModel

__all__ = ["Score", "log_probabilities", "score"]


_CHUNK = 1024  # logits of so many tokens at once


@dataclass(frozen=True, eq=False)
class Score:
    """How likely each token of a text is after those before it.

    Attributes:
      log_probabilities: in nats, of all tokens but the first.
    """

    log_probabilities: Float[Tensor, " tokens"]

    @property
    def nats(self) -> float:
        """The text's negative log-probability."""
        return -self.log_probabilities.double().sum().item()

    @property
    def perplexity(self) -> float:
        """Guessing among so many equal tokens would be as hard: e to the mean of `nats`."""
        return math.exp(self.nats / len(self.log_probabilities))

    def bits_per_byte(self, num_bytes: int) -> float:
        """Bits for each of the bytes that the text has; they do not depend on the tokenizer."""
        return self.nats / math.log(2) / num_bytes


def score(model: LanguageModel, tokens: Sequence[int], *, context: int) -> Score:
    """Scores every token of a text but the first, each after `context` / 2 others at least.

    A text that is longer than the context is read in windows that overlap by half.

    Args:
      model: what reads, in eval mode.
      tokens: two at least; the first is often the end of text, of the text before.
      context: the model sees at most this many tokens.

    Raises:
      ValueError: there is nothing to score, or the context is below 1.
    """
    if len(tokens) < 2 or context < 1:
        raise ValueError(
            f"{len(tokens)} tokens in a context of {context}: the first is not scored, so that two "
            "are needed, and a context of 1 at least."
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
    model: LanguageModel, tokens: Int[Tensor, "batch seq"], ctx: AttentionContext | None = None
) -> Float[Tensor, "batch seq-1"]:
    """Of each token but the first after those before it, in nats and float32.

    Args:
      model: what reads, in eval mode.
      tokens: rows of text.
      ctx: of all but the last of them; defaults to that of the model's `layout`.
    """
    features = model.features(tokens[:, :-1], ctx)
    targets = tokens[:, 1:]
    chunks = zip(features.split(_CHUNK, dim=1), targets.split(_CHUNK, dim=1), strict=True)
    return torch.cat([_scored(model, x, y) for x, y in chunks], dim=1)


def _scored(
    model: LanguageModel,
    features: Float[Tensor, "batch chunk hidden"],
    targets: Int[Tensor, "batch chunk"],
) -> Float[Tensor, "batch chunk"]:
    logits = model.unembedding(features).float().transpose(1, 2)
    return -F.cross_entropy(logits, targets, reduction="none")
