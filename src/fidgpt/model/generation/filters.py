"""What may be done to the logits of the next token before it is drawn, each a part of a list."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class LogitFilter(Protocol):
    """Changes the logits of the next token, row by row; -inf is never drawn."""

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"], /
    ) -> Float[Tensor, "batch fewer"]:
        """The new logits, of the same tokens or of the first of them.

        Args:
          logits: of the next token.
          tokens: of the text so far, prompt and all; short rows begin with their first token again.
        """
        ...


@dataclass(frozen=True)
class Vocabulary:
    """Tokens from `size` on have no meaning, and are never drawn."""

    size: int

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        return logits[:, : self.size]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides the logit of what the text holds already where it is positive, else multiplies it.

    (Keskar et al., 2019, arXiv:1909.05858, section 4.1; for negative logits as transformers.)
    """

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(
                f"repetition_penalty={self.penalty} has to be above 0, and finite; 1 is none."
            )

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        present = logits.gather(1, tokens).double()
        scaled = torch.where(present > 0, present / self.penalty, present * self.penalty)
        largest = torch.finfo(logits.dtype).max  # beyond it there is no difference to the others
        return logits.scatter(1, tokens, scaled.clamp(-largest, largest).to(logits.dtype))


@dataclass(frozen=True)
class Temperature:
    """Divides logits by `temperature`: below 1 the likely become likelier.

    In double and below the largest, so that no temperature is so small that this is no number.
    """

    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature} has to be above 0; draw with `likeliest` for 0."
            )

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        return (logits - logits.amax(1, keepdim=True)).double() / self.temperature


@dataclass(frozen=True)
class TopK:
    """Leaves the `k` likeliest tokens, and no more where logits are equal."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"top_k={self.k} leaves nothing to draw: use 1 or more.")

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        likeliest, where = logits.topk(min(self.k, logits.shape[1]))
        return torch.full_like(logits, -math.inf).scatter(1, where, likeliest)


@dataclass(frozen=True)
class TopP:
    """Leaves the fewest tokens that have a probability of `p` together (Holtzman et al., 2020).

    Nucleus sampling, arXiv:1904.09751, section 3.1; the likeliest token always stays.
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"top_p={self.p} is no probability above 0; 1 leaves all tokens.")

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        ordered, where = logits.sort(dim=1, descending=True, stable=True)
        probabilities = ordered.softmax(1)
        before = probabilities.cumsum(1) - probabilities
        spare = before >= self.p
        spare[:, 0] = False
        return logits.masked_fill(torch.zeros_like(spare).scatter(1, where, spare), -math.inf)


@dataclass(frozen=True)
class MinP:
    """Leaves tokens at least `p` times as likely as the likeliest one (Nguyen et al., 2024).

    (arXiv:2407.01082, section 3.)
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"min_p={self.p} is no share of the likeliest: use more than 0, to 1.")

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        least = logits.amax(1, keepdim=True) + math.log(self.p)
        return logits.masked_fill(logits < least, -math.inf)
