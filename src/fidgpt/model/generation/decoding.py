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


@runtime_checkable
class Draw(Protocol):
    """Takes one token for each row."""

    def __call__(self, logits: Float[Tensor, "batch vocab"], /) -> Int[Tensor, " batch"]: ...


def likeliest(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
    """The token with the largest logit, the first of equals."""
    return logits.argmax(1)


class Chance:
    """Draws each token as often as it is likely.

    Each row has a stream of random numbers of its own, from which a token takes one number: what
    a row draws does not depend on who else is in the batch.

    Args:
      seeds: of the rows.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
        """Draws by the cumulative distribution, so that what has no probability never comes.

        Raises:
          ValueError: there are more rows than seeds, or fewer.
        """
        if len(logits) != len(self._streams):
            raise ValueError(
                f"{len(self._streams)} seeds for {len(logits)} rows: give each row one of its own."
            )
        numbers = [torch.rand(1, dtype=torch.double, generator=rng) for rng in self._streams]
        heights = logits.double().softmax(1).cumsum(1)
        target = torch.stack(numbers).to(logits.device) * heights[:, -1:]
        return torch.searchsorted(heights, target, right=True).squeeze(1)


class Sampling:
    """Filters in turn, then a draw.

    Args:
      filters: change logits.
      draw: takes a token by what they leave.
    """

    def __init__(self, *, filters: Sequence[LogitFilter], draw: Draw) -> None:
        self.filters = filters
        self.draw = draw

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"]
    ) -> Int[Tensor, " batch"]:
        """The next token of each row.

        Raises:
          ValueError: a logit is no number, or without bound.
        """
        # The largest of some numbers is no number where one of them is none.
        if not logits.amax(1).isfinite().all():
            raise ValueError("the model's logits are no numbers: its weights are spoilt.")
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
    """The usual filters, in the order of transformers: penalty, temperature, top-k, top-p, min-p.

    Args:
      seeds: of the rows; unread at temperature 0.
      temperature: logits are divided by it; 0 takes the likeliest token always.
      top_k: draws among so many of the likeliest tokens; None among all.
      top_p: among the fewest that have this probability together; None among all.
      min_p: among those at least this share as likely as the likeliest; None among all.
      repetition_penalty: above 1, what the text holds already becomes less likely.
      vocab_size: tokens from this one on have no meaning and are never drawn.

    Raises:
      ValueError: a number is out of its range.
    """
    if not temperature >= 0:
        raise ValueError(f"{temperature=} may not be below 0.")
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
    """Passes text on up to the first of some strings, which is not passed on.

    What may be the beginning of such a string is held back until it is clear.

    Args:
      strings: end the text; none of them is empty.

    Raises:
      ValueError: one is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise ValueError("an empty string ends every text: give one character at least.")
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """What is certain of the text after this piece; nothing once a string was found."""
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
        """What was still held back: no string came."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, string: str) -> int:
    """How many characters of the string, not all, the text ends with."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
