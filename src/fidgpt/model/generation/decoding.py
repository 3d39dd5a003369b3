"""Sampling of tokens and stop strings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.ranges import require_not_negative, require_positive, require_size

__all__ = ["Sampling", "UntilString"]


Logits = Float[Tensor, "batch vocab"]
Probabilities = Float[Tensor, "batch fewer"]


@dataclass(eq=False, kw_only=True)
class Sampling:
    """Samples the next token of each row from logits that are filtered as in transformers.

    The filters are, in this order: repetition penalty (Keskar et al., 2019, arXiv:1909.05858,
    section 4.1; negative logits as in transformers), vocabulary limit, temperature, top-k, nucleus
    sampling (Holtzman et al., 2020, arXiv:1904.09751, section 3.1) and min-p (Nguyen et al., 2024,
    arXiv:2407.01082, section 3). Each row has its own random generator, with one draw per token, so
    samples do not depend on other rows.

    Args:
      seeds: one seed per row; unused at temperature 0.
      temperature: divides the logits; 0 for greedy decoding.
      top_k: keeps the k most likely tokens, exactly k even if logits are equal; None for all.
      top_p: keeps the smallest set of most likely tokens with this total probability; None for all.
      min_p: keeps tokens with at least this fraction of the highest probability; None for all.
      repetition_penalty: divides positive logits of tokens in the text, and multiplies negative
        ones; None for no penalty.
      vocab_size: token ids from this one on are never sampled; None to sample all.

    Raises:
      ValueError: an argument is out of range.
    """

    seeds: Sequence[int]
    temperature: float = 0.8
    top_k: int | None = 50
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        require_not_negative(temperature=self.temperature)
        require_size(top_k=self.top_k)
        for name, share in {"top_p": self.top_p, "min_p": self.min_p}.items():
            if share is not None and not 0 < share <= 1:
                raise ValueError(f"{name}={share} must be above 0 and at most 1.")
        require_positive(repetition_penalty=self.repetition_penalty)
        self._streams = [torch.Generator().manual_seed(seed) for seed in self.seeds]

    def __call__(self, logits: Logits, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, " batch"]:
        """Return the next token of each row; at temperature 0, the first of the most likely.

        Raises:
          ValueError: a logit is NaN or infinite, or the numbers of rows and seeds differ.
        """
        if self.temperature == 0:
            return self.filtered(logits, tokens).argmax(1)
        return self.draw(self.probabilities(logits, tokens))

    def probabilities(self, logits: Logits, tokens: Int[Tensor, "batch seq"]) -> Probabilities:
        """Return the probability of each token that may be sampled; 0 or 1 at temperature 0.

        Raises:
          ValueError: a logit is NaN or infinite.
        """
        logits = self.filtered(logits, tokens)
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.double).scatter(
                1, logits.argmax(1, keepdim=True), 1.0
            )
        return logits.double().softmax(1)

    def draw(self, weights: Probabilities) -> Int[Tensor, " batch"]:
        """Return a token of each row with a probability in proportion to its weight.

        Raises:
          ValueError: the numbers of rows and seeds differ.
        """
        # Inverting the cumulative distribution never yields a token of probability 0.
        heights = weights.cumsum(1)
        target = self.uniform(weights).unsqueeze(1) * heights[:, -1:]
        return torch.searchsorted(heights, target, right=True).squeeze(1)

    def uniform(self, like: Float[Tensor, "batch vocab"]) -> Float[Tensor, " batch"]:
        """Return a random number from 0 to 1 for each row of a tensor, on its device.

        Raises:
          ValueError: the numbers of rows and seeds differ.
        """
        streams = [rng for rng, _ in zip(self._streams, like, strict=True)]
        numbers = [torch.rand(1, dtype=torch.double, generator=rng) for rng in streams]
        return torch.cat(numbers).to(like.device)

    def filtered(
        self, logits: Logits, tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        """Return the logits of the tokens that may be sampled, -inf for the others.

        Args:
          logits: logits of the next token.
          tokens: tokens of the prompt and the text so far; short rows are padded with their first
            token.

        Raises:
          ValueError: a logit is NaN or infinite.
        """
        if not logits.amax(1).isfinite().all():  # the maximum is NaN if any logit is
            raise ValueError("the model's logits are NaN or inf; its weights are corrupt.")
        if (penalty := self.repetition_penalty) is not None:
            present = logits.gather(1, tokens).double()
            scaled = torch.where(present > 0, present / penalty, present * penalty)
            largest = torch.finfo(logits.dtype).max
            scaled = scaled.clamp(-largest, largest).to(logits.dtype)
            logits = logits.scatter(1, tokens, scaled)
        logits = logits[:, : self.vocab_size]
        if self.temperature:
            # In double precision and at most 0, so that small temperatures do not cause NaN.
            logits = (logits - logits.amax(1, keepdim=True)).double() / self.temperature
        if self.top_k is not None:
            likeliest, where = logits.topk(min(self.top_k, logits.shape[1]))
            logits = torch.full_like(logits, -math.inf).scatter(1, where, likeliest)
        if self.top_p is not None:
            ordered, where = logits.sort(dim=1, descending=True, stable=True)
            probabilities = ordered.softmax(1)
            removed = probabilities.cumsum(1) - probabilities >= self.top_p
            removed[:, 0] = False
            removed = torch.zeros_like(removed).scatter(1, where, removed)
            logits = logits.masked_fill(removed, -math.inf)
        if self.min_p is not None:
            least = logits.amax(1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < least, -math.inf)
        return logits


class UntilString:
    """Streams text up to the first stop string, which is excluded.

    Text that may be the start of a stop string is held back until it is resolved.

    Args:
      strings: stop strings; not empty.

    Raises:
      ValueError: a stop string is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise ValueError("a stop string must not be empty.")
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Add a piece, and return the text that is final; empty after a stop string was found."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        certain = len(text) - max((_begun(text, string) for string in self._strings), default=0)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text that was held back."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, string: str) -> int:
    """Return the length of the longest proper prefix of `string` that is a suffix of the text."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
