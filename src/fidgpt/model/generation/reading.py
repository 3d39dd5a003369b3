"""Rows of tokens, and models that read them with a cache."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.declarations import ReadsOnPurpose
from fidgpt.model.cache import Cache, RewindableCache
from fidgpt.model.context import AttentionContext, ContextFactory, Tokens
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_size

_NUM_TRIED = 64  # tokens, of a text that tries whether custom modules need all of it


class Rows:
    """Left-padded prompts and the tokens generated after them.

    Padding repeats the first token of a row, at negative positions, and is masked.

    Args:
      prompts: token ids of the prompts; each has one token or more.
      num_tokens: maximum number of tokens to generate.
      device: device of the model.

    Raises:
      ValueError: there is no prompt, or one is empty.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], *, num_tokens: int, device: torch.device
    ) -> None:
        if not prompts or not all(len(prompt) for prompt in prompts):
            raise ValueError(
                "the prompt is empty: it needs one token or more, such as the end of text."
            )
        self.width = max(len(prompt) for prompt in prompts)
        filled = [[prompt[0]] * (self.width - len(prompt)) + [*prompt] for prompt in prompts]
        self._tokens = torch.zeros(len(prompts), self.width + num_tokens, dtype=torch.long)
        self._tokens[:, : self.width] = torch.tensor(filled)
        self._tokens = self._tokens.to(device)
        absent = [self.width - len(prompt) for prompt in prompts]
        self._absent = torch.tensor(absent, device=device).unsqueeze(1) if any(absent) else None

    @property
    def capacity(self) -> int:
        """The maximum number of columns, of prompts and generated tokens."""
        return self._tokens.shape[1]

    def text(self, begin: int = 0) -> Tokens:
        """Return the tokens so far from column `begin` on."""
        return self._tokens[:, begin : self.width]

    def append(self, tokens: Int[Tensor, " batch"]) -> None:
        """Append a token to each row."""
        self._tokens[:, self.width] = tokens
        self.width += 1

    def context(
        self, layout: ContextFactory, *, begin: int, cached: int, cache: Cache | None
    ) -> AttentionContext:
        """Return the context of the columns from `cached` on, for a text that begins at `begin`.

        Args:
          layout: layout of the model.
          begin: first column that the model sees.
          cached: first column that is not in the cache.
          cache: the KV cache; None for none.
        """
        whole = layout(self.text(begin))
        if self._absent is not None:
            whole = _left_padded(whole, absent=(self._absent - begin).clamp_min(0))
        old = cached - begin
        return AttentionContext(
            whole.positions[:, old:],
            None if whole.documents is None else whole.documents[:, old:],
            whole.contiguous,
            tokens=self.text(cached),
            cache=cache,
            continues=old > 0,
        )


def _left_padded(ctx: AttentionContext, *, absent: Int[Tensor, "batch 1"]) -> AttentionContext:
    """Shift positions so that the first document of a row begins at column `absent`."""
    columns = torch.arange(len(ctx), device=absent.device)
    positions, documents = ctx.positions, ctx.documents
    if documents is None:
        positions = positions - absent
    else:
        positions = torch.where(documents == documents[:, :1], positions - absent, positions)
    return AttentionContext(positions.masked_fill(columns < absent, -1), documents)


@dataclass(eq=False)
class Reader:
    """A model that reads rows as they grow, each column once while a cache holds those before.

    Args:
      model: in eval mode.
      cache: of the capacity of the rows, or the context if that is smaller; None to compute all
        columns for every token.
      context: maximum number of latest columns that the model sees; with more, all of them are
        recomputed for every token, from position 0.
      cached: number of columns of the rows that the cache holds.

    Attributes:
      num_logits: number of logits of a token, after the first pass.
    """

    model: LanguageModel
    cache: Cache | None
    _: KW_ONLY
    context: int
    cached: int = 0
    num_logits: int = field(default=0, init=False)

    def logits(self, rows: Rows, count: int = 1) -> Float[Tensor, "batch count vocab"]:
        """Read the columns that are not in the cache.

        Args:
          rows: within the context if `count` is above 1.
          count: return the logits of the tokens that follow each of this many last columns.
        """
        begin = max(0, rows.width - self.context)
        if self.num_logits == 0 and _looks_around(self.model, rows.text(), self.context):
            self.cache = None
        if begin or not self._is_caching:
            self.cache, self.cached = None, begin
        ctx = rows.context(self.model.layout, begin=begin, cached=self.cached, cache=self.cache)
        assert ctx.tokens is not None  # rows always have tokens
        self.cached = rows.width
        logits = self.model.unembedding(self.model.features(ctx.tokens, ctx)[:, -count:])
        self.num_logits = logits.shape[2]
        return logits.float()

    def is_current(self, rows: Rows) -> bool:
        """Return whether every column but the last was read, if it needs to be read only once."""
        behind = self._is_caching and self.cached < rows.width - 1
        return self.num_logits > 0 and not behind

    def mark(self, count: int) -> None:
        """Make it possible to `rewind` up to `count` of the columns that are read next."""
        if isinstance(self.cache, RewindableCache):
            self.cache.mark(count)

    def rewind(self, width: int) -> None:
        """Forget the columns from `width` on; more of them if states cannot be taken back."""
        if isinstance(self.cache, RewindableCache) and self.cached > width:
            self.cached = self.cache.rewind(width)

    @property
    def _is_caching(self) -> bool:
        return self.cache is not None and self.cache.is_complete


def _looks_around(model: LanguageModel, text: Tokens, context: int) -> bool:
    """Return whether a module reads other tokens than through the cache, as a convolution does.

    A module may declare it; custom modules are tried on the end of a text whose start is cached.
    """
    parts = [*model.modules()][1:]
    declared = [name for part in parts if isinstance(part, ReadsOnPurpose) for name in part.READS]
    if "past" in declared or "future" in declared:
        return True
    if all(type(part).__module__.startswith(("fidgpt.", "torch.")) for part in parts):
        return False
    count = min(context, _NUM_TRIED)
    rows = Rows(text[:1].repeat(1, count)[:, :count].tolist(), num_tokens=0, device=text.device)
    cache, features = Cache(capacity=count), []
    for begin, end, kept in ((0, count, None), (0, count - 1, cache), (count - 1, count, cache)):
        rows.width = end
        ctx = rows.context(model.layout, begin=0, cached=begin, cache=kept)
        features.append(model.features(rows.text(begin), ctx)[:, -1:])
    rounding = torch.finfo(features[0].dtype).eps ** 0.5 * features[0].abs().max()
    return bool((features[0] - features[2]).abs().max() > rounding)


def require_context(model: LanguageModel, *, context: int, num_columns: int) -> None:
    """Raise ValueError if the context is below 1 or exceeds the model's learned positions.

    Args:
      model: the model.
      context: maximum number of latest columns that it sees.
      num_columns: maximum number of columns that it is to read.
    """
    require_size(context=context)
    count = min(num_columns, context)
    tables = [part for part in model.modules() if isinstance(part, LearnedPositions)]
    least = min((table.weight.shape[0] for table in tables), default=count)
    if count > least:
        raise ValueError(
            f"{context=} with up to {count} tokens exceeds the {least} learned positions of the "
            f"model; use a context of at most {least}, which keeps the latest tokens."
        )
