"""Continuous batching: texts that begin and end at different times are written together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fidgpt.model.cache import Cache, CachedRow
from fidgpt.model.generation.decoding import Logits
from fidgpt.model.generation.reading import Reader, Rows, require_context
from fidgpt.model.generation.writing import Choice
from fidgpt.model.masks import causal
from fidgpt.model.transformer import LanguageModel

__all__ = ["ContinuousBatch", "WrittenText"]


_NUM_KEPT = 8  # texts that stay in the cache after they were removed


@dataclass(eq=False)
class WrittenText:
    """A text that is being written.

    Attributes:
      tokens: the tokens of the prompt, then the tokens written so far.
      choose: chooses its next token, as a `Sampling` with one seed does.
    """

    tokens: list[int]
    choose: Choice


class ContinuousBatch:
    """Writes texts that come and go, the next token of all of them in one pass.

    A prompt is read alone, and its cache joins the cache of the others. The latest texts stay
    there: of a prompt that begins as one of them, such as the next turn of a conversation, only the
    rest is read.

    Args:
      model: in eval mode.
      context: maximum number of tokens of a text.

    Attributes:
      num_read: number of tokens of prompts that were read so far.
      texts: those that are being written.

    Raises:
      ValueError: the context is below 1 or exceeds the model's learned positions.
    """

    def __init__(self, model: LanguageModel, *, context: int) -> None:
        require_context(model, context=context, num_columns=context)
        self._model = model
        self._context = context
        # A prefix sees the tokens behind it, and is read again with them.
        masks = [getattr(part, "mask", causal) for part in model.modules()]
        self._num_kept = _NUM_KEPT if all(mask is causal for mask in masks) else 0
        self._kept: list[tuple[list[int], CachedRow]] = []
        # What the cache holds of each text, while it is not one of the rows.
        self._cached: dict[WrittenText, CachedRow | None] = {}
        self._rows: Rows | None = None
        self._cache = Cache(capacity=context)
        self._reader = Reader(model, None, context=context)
        self.num_read = 0
        self.texts: list[WrittenText] = []

    @torch.inference_mode()
    def add(self, text: WrittenText) -> int:
        """Read a prompt, and return the token that follows it, as `step` does for those after it.

        Raises:
          ValueError: it is empty, or the context has no room for another token; or logits are NaN
            or infinite.
        """
        if not 0 < len(text.tokens) < self._context:
            raise ValueError(
                f"the prompt has {len(text.tokens)} tokens; it must have from 1 to "
                f"{self._context - 1}, as the model's context has {self._context}."
            )
        self._dissolve()
        cached = self._longest_known(text.tokens)
        length = 0 if cached is None else cached.length
        rows, cache = self._joined([text.tokens], [] if cached is None else [cached])
        reader = Reader(self._model, cache, context=self._context, cached=length)
        logits = reader.logits(rows)[:, 0]
        self.num_read += len(text.tokens) - length
        self._cached[text] = cache.row(0)
        self.texts.append(text)
        text.tokens.append(token := _next(text, logits))
        return token

    def remove(self, text: WrittenText) -> None:
        """Stop to write a text."""
        self._dissolve()
        self.texts.remove(text)
        cached = self._cached.pop(text)
        if cached is not None:
            self._kept = [(text.tokens[: cached.length], cached), *self._kept][: self._num_kept]

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Return the next token of each of `texts`, and append it to its tokens.

        Raises:
          ValueError: logits are NaN or infinite.
        """
        if self._rows is None:
            known = [row for text in self.texts if (row := self._cached[text]) is not None]
            known = known if len(known) == len(self.texts) else []
            self._rows, self._cache = self._joined([text.tokens for text in self.texts], known)
            width = max((row.length for row in known), default=0)
            self._reader = Reader(self._model, self._cache, context=self._context, cached=width)
        logits = self._reader.logits(self._rows)[:, 0]
        tokens = [_next(*pair) for pair in zip(self.texts, logits.split(1), strict=True)]
        self._rows.append(torch.tensor(tokens, device=logits.device))
        for text, token in zip(self.texts, tokens, strict=True):
            text.tokens.append(token)
        return tokens

    def _joined(
        self, texts: Sequence[Sequence[int]], known: Sequence[CachedRow]
    ) -> tuple[Rows, Cache]:
        """Return rows of some texts, and a cache that holds the known tokens of all of them."""
        longest = max(map(len, texts))
        rows = Rows(texts, num_tokens=self._context - longest, device=self._model.device)
        cache = Cache(capacity=self._context)
        if known:
            ctx = rows.context(self._model.layout, begin=0, cached=0, cache=None)
            width = max(row.length for row in known)
            numbers = [x for x in (ctx.positions, ctx.documents) if x is not None]
            cache.fill(known, positions=[x[:, :width] for x in numbers])
        return rows, cache

    def _dissolve(self) -> None:
        """Take apart the rows, before other rows take their place."""
        if self._rows is not None:
            for index, text in enumerate(self.texts):
                begin = self._rows.width - len(text.tokens)
                self._cached[text] = self._cache.row(index, begin=begin)
        self._rows = None

    def _longest_known(self, prompt: Sequence[int]) -> CachedRow | None:
        """Return what was read of the longest beginning of a prompt; None if nothing was.

        The last token is read in any case.
        """
        best: CachedRow | None = None
        for tokens, cached in self._kept:
            pairs = zip(tokens, prompt, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            length = min(len(tokens), len(prompt) - 1) if same is None else same
            if length > (0 if best is None else best.length):
                best = cached.first(length) or best
        return best


def _next(text: WrittenText, logits: Logits) -> int:
    return int(text.choose(logits, torch.tensor([text.tokens], device=logits.device)))
