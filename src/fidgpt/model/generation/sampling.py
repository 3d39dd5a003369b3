"""Which token comes next, from logits: filters in turn, then a draw."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.model.generation.filters import (
    LogitFilter,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    Vocabulary,
)


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
