"""Texts side by side in one batch, that begin at different columns and grow together."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from fidgpt.model.cache import Cache
from fidgpt.model.layout import Layout, LayoutMaker, Places


class Rows:
    """Prompts that end in one column, and what is written after them.

    A short prompt begins further right; on its left stands its first token again, at negative
    positions, where nothing looks at it.

    Args:
      prompts: at least one token each.
      num_tokens: how many may be written after each.
      device: where the model computes.

    Raises:
      ValueError: there is no prompt, or one is empty.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], *, num_tokens: int, device: torch.device
    ) -> None:
        self.check_arguments(prompts=prompts)
        self.width = max(len(prompt) for prompt in prompts)
        filled = [[prompt[0]] * (self.width - len(prompt)) + [*prompt] for prompt in prompts]
        self._tokens = torch.zeros(len(prompts), self.width + num_tokens, dtype=torch.long)
        self._tokens[:, : self.width] = torch.tensor(filled)
        self._tokens = self._tokens.to(device)
        absent = [self.width - len(prompt) for prompt in prompts]
        self._absent = torch.tensor(absent, device=device).unsqueeze(1) if any(absent) else None

    @staticmethod
    def check_arguments(*, prompts: Sequence[Sequence[int]]) -> None:
        """Raises ValueError unless every prompt has a token."""
        if not prompts or not all(len(prompt) for prompt in prompts):
            raise ValueError(
                "the prompt is empty: give one token at least, such as the end of text."
            )

    @property
    def capacity(self) -> int:
        """Columns that there will be."""
        return self._tokens.shape[1]

    def text(self, begin: int = 0) -> Int[Tensor, "batch seq"]:
        """The tokens so far, from column `begin` on."""
        return self._tokens[:, begin : self.width]

    def append(self, tokens: Int[Tensor, " batch"]) -> None:
        """One more token for each row."""
        self._tokens[:, self.width] = tokens
        self.width += 1

    def layout(self, make: LayoutMaker, *, begin: int, seen: int, cache: Cache | None) -> Layout:
        """Where the columns from `seen` on stand in a text that begins at column `begin`.

        Args:
          make: the model's own, for whole rows.
          begin: the model sees nothing before this column.
          seen: columns before this one are cached.
          cache: what was kept of them.
        """
        places = make(self.text(begin)).places
        if self._absent is not None:
            places = _moved(places, absent=(self._absent - begin).clamp_min(0))
        old = seen - begin
        documents = None if places.documents is None else _without(old, places.documents)
        places = Places(_without(old, places.positions), documents, whole=places.whole)
        return Layout(places, tokens=_without(seen, self.text()), cache=cache)


def _without(count: int, numbers: Int[Tensor, "rows seq"]) -> Int[Tensor, "rows new"]:
    """All but the first columns, laid out alike whatever their number: a compiled step asks."""
    return numbers[:, count:].clone(memory_format=torch.contiguous_format)


def _moved(places: Places, *, absent: Int[Tensor, "batch 1"]) -> Places:
    """Counts a row's first document from column `absent` on, and has no token before it."""
    columns = torch.arange(len(places), device=absent.device)
    positions, documents = places.positions, places.documents
    if documents is None:
        positions = positions - absent
    else:
        positions = torch.where(documents == documents[:, :1], positions - absent, positions)
    return Places(positions.masked_fill(columns < absent, -1), documents)
