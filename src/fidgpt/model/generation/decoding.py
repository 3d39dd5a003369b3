"""Sampling of tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "Chance",
    "Draw",
    "LogitFilter",
    "MinP",
    "RepetitionPenalty",
    "Sampling",
    "Temperature",
    "TopK",
    "TopP",
    "UntilString",
    "Vocabulary",
    "likeliest",
    "sampling",
]


@runtime_checkable
class LogitFilter(Protocol):
    """Changes the logits of the next token; tokens with -inf are never sampled."""

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"], /
    ) -> Float[Tensor, "batch fewer"]:
        """Return the new logits, of the same tokens or of the first of them.

        Args:
          logits: of the next token.
          tokens: of the prompt and the text so far; short rows are padded with their first token.
        """
        ...


@dataclass(frozen=True)
class Vocabulary:
    """Excludes tokens from `size` on, which have no meaning."""

    size: int

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        return logits[:, : self.size]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides positive logits of tokens in the text by the penalty, and multiplies negative ones.

    (Keskar et al., 2019, arXiv:1909.05858, section 4.1; negative logits as in transformers.)
    """

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(
                f"repetition_penalty={self.penalty} must be above 0, and finite; 1 is none."
            )

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        present = logits.gather(1, tokens).double()
        scaled = torch.where(present > 0, present / self.penalty, present * self.penalty)
        largest = torch.finfo(logits.dtype).max
        return logits.scatter(1, tokens, scaled.clamp(-largest, largest).to(logits.dtype))


@dataclass(frozen=True)
class Temperature:
    """Divides logits by `temperature`.

    In double precision, after subtracting the maximum, so that small temperatures give no NaN.
    """

    temperature: float

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature} must be above 0; use `likeliest` for 0."
            )

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        return (logits - logits.amax(1, keepdim=True)).double() / self.temperature


@dataclass(frozen=True)
class TopK:
    """Keeps the `k` most likely tokens, and no more if logits are equal."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"top_k={self.k} must be 1 or more.")

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        likeliest, where = logits.topk(min(self.k, logits.shape[1]))
        return torch.full_like(logits, -math.inf).scatter(1, where, likeliest)


@dataclass(frozen=True)
class TopP:
    """Nucleus sampling: keeps the fewest tokens with a total probability of at least `p`.

    (Holtzman et al., 2020, arXiv:1904.09751, section 3.1.)
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(
                f"top_p={self.p} must be above 0 and at most 1, which keeps all tokens."
            )

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        ordered, where = logits.sort(dim=1, descending=True, stable=True)
        probabilities = ordered.softmax(1)
        before = probabilities.cumsum(1) - probabilities
        removed = before >= self.p
        removed[:, 0] = False
        return logits.masked_fill(torch.zeros_like(removed).scatter(1, where, removed), -math.inf)


@dataclass(frozen=True)
class MinP:
    """Keeps tokens at least `p` times as likely as the most likely one.

    (Nguyen et al., 2024, arXiv:2407.01082, section 3.)
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"min_p={self.p} must be above 0 and at most 1.")

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch fewer"]:
        least = logits.amax(1, keepdim=True) + math.log(self.p)
        return logits.masked_fill(logits < least, -math.inf)


@runtime_checkable
class Draw(Protocol):
    """Draws one token for each row."""

    def __call__(self, logits: Float[Tensor, "batch vocab"], /) -> Int[Tensor, " batch"]: ...


def likeliest(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
    """Return the token with the largest logit, the first of equals."""
    return logits.argmax(1)


class Chance:
    """Samples tokens by their probability.

    Each row has its own random generator, and uses one number of it per token, so samples do not
    depend on the other rows.

    Args:
      seeds: of the rows.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
        """Sample by the cumulative distribution, which never returns tokens of probability 0.

        Raises:
          ValueError: the number of rows is not that of the seeds.
        """
        if len(logits) != len(self._streams):
            raise ValueError(
                f"{len(self._streams)} seeds for {len(logits)} rows: give one for each row."
            )
        numbers = [torch.rand(1, dtype=torch.double, generator=rng) for rng in self._streams]
        heights = logits.double().softmax(1).cumsum(1)
        target = torch.stack(numbers).to(logits.device) * heights[:, -1:]
        return torch.searchsorted(heights, target, right=True).squeeze(1)


class Sampling:
    """Filters, then a draw.

    Args:
      filters: applied in order.
      draw: draws tokens from the filtered logits.
    """

    def __init__(self, *, filters: Sequence[LogitFilter], draw: Draw) -> None:
        self.filters = filters
        self.draw = draw

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Int[Tensor, " batch"]:
        """Return the next token of each row.

        Raises:
          ValueError: a logit is NaN or infinite.
        """
        if not logits.amax(1).isfinite().all():  # the maximum is NaN if any logit is
            raise ValueError("the model's logits are NaN or inf: its weights are corrupt.")
        for change in self.filters:
            logits = change(logits, tokens)
        return self.draw(logits)


def sampling(
    *,
    seeds: Sequence[int],
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    vocab_size: int | None = None,
) -> Sampling:
    """Return the usual filters, in the order of transformers.

    Args:
      seeds: of the rows; unused at temperature 0.
      temperature: divides the logits; 0 for greedy decoding.
      top_k: keeps the k most likely tokens; None for all.
      top_p: keeps the fewest tokens with this total probability; None for all.
      min_p: keeps tokens with at least this fraction of the highest probability; None for all.
      repetition_penalty: above 1 makes tokens of the text less likely.
      vocab_size: tokens from this one on are never sampled.

    Raises:
      ValueError: an argument is out of range.
    """
    if not temperature >= 0:
        raise ValueError(f"{temperature=} must be 0 or more.")
    parts: list[LogitFilter | None] = [
        None if repetition_penalty is None else RepetitionPenalty(repetition_penalty),
        None if vocab_size is None else Vocabulary(vocab_size),
        None if temperature == 0 else Temperature(temperature),
        None if top_k is None else TopK(top_k),
        None if top_p is None else TopP(top_p),
        None if min_p is None else MinP(min_p),
    ]
    return Sampling(
        filters=[part for part in parts if part is not None],
        draw=likeliest if temperature == 0 else Chance(seeds),
    )


class UntilString:
    """Streams text up to the first occurrence of a stop string, without it.

    Text that may be the start of a stop string is held back until that is known.

    Args:
      strings: stop strings; not empty.

    Raises:
      ValueError: a stop string is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise ValueError("a stop string must have one character or more.")
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Add a piece, and return text that can be passed on; nothing once a string was found."""
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
    """Return the length of the longest proper prefix of the string that ends the text."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
