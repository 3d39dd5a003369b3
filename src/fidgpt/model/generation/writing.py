"""Generation of text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.model.cache import Cache
from fidgpt.model.context import AttentionContext, ContextFactory
from fidgpt.model.generation.decoding import sampling
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel

__all__ = ["Choice", "generate", "next_logits", "write"]


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
        if not prompts or not all(len(prompt) for prompt in prompts):
            raise ValueError(
                "the prompt is empty: give one token at least, such as the end of text."
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
        """Columns that there will be."""
        return self._tokens.shape[1]

    def text(self, begin: int = 0) -> Int[Tensor, "batch seq"]:
        """The tokens so far, from column `begin` on."""
        return self._tokens[:, begin : self.width]

    def append(self, tokens: Int[Tensor, " batch"]) -> None:
        """One more token for each row."""
        self._tokens[:, self.width] = tokens
        self.width += 1

    def context(
        self, layout: ContextFactory, *, begin: int, cached: int, cache: Cache | None
    ) -> AttentionContext:
        """Return the context of the columns from `cached` on, in a text that begins at `begin`.

        Args:
          layout: the model's own, for whole rows.
          begin: the model sees nothing before this column.
          cached: the columns before this one are in the cache.
          cache: keeps keys and values; None for none.
        """
        whole = layout(self.text(begin))
        if self._absent is not None:
            whole = _left_padded(whole, absent=(self._absent - begin).clamp_min(0))
        old = cached - begin
        documents = None if whole.documents is None else _after(old, whole.documents)
        return AttentionContext(
            _after(old, whole.positions),
            documents,
            whole.contiguous,
            tokens=_after(cached, self.text()),
            cache=cache,
        )


def _after(count: int, numbers: Int[Tensor, "rows seq"]) -> Int[Tensor, "rows new"]:
    """Return all but the first columns, in the memory layout that a compiled step expects."""
    return numbers[:, count:].clone(memory_format=torch.contiguous_format)


def _left_padded(ctx: AttentionContext, *, absent: Int[Tensor, "batch 1"]) -> AttentionContext:
    """Count a row's first document from column `absent` on, with padding before it."""
    columns = torch.arange(len(ctx), device=absent.device)
    positions, documents = ctx.positions, ctx.documents
    if documents is None:
        positions = positions - absent
    else:
        positions = torch.where(documents == documents[:, :1], positions - absent, positions)
    return AttentionContext(positions.masked_fill(columns < absent, -1), documents)


@runtime_checkable
class Choice(Protocol):
    """Chooses the next token of each row, from logits and the text so far; see Sampling."""

    def __call__(
        self, logits: Float[Tensor, "batch vocab"], tokens: Int[Tensor, "batch seq"], /
    ) -> Int[Tensor, " batch"]: ...


@runtime_checkable
class CacheFactory(Protocol):
    """Makes room for the text; Cache and StaticCache are two."""

    def __call__(self, *, capacity: int) -> Cache: ...


Stop = Callable[[int], bool]
Step = Callable[[LanguageModel, Tensor, AttentionContext], Tensor]


def next_logits(
    model: LanguageModel, tokens: Int[Tensor, "batch seq"], ctx: AttentionContext
) -> Float[Tensor, "batch vocab"]:
    """Logits of the token after the last; the others are not scored."""
    return model.unembedding(model.features(tokens, ctx)[:, -1])


def write(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    context: int,
    choose: Choice,
    stops: Sequence[Stop] = (),
    cache: CacheFactory = Cache,
    step: Step = next_logits,
) -> Iterator[list[int | None]]:
    """Yields the next token of every row, as soon as all are drawn; None where a row has ended.

    Each token is computed once, as long as a text fits the context. Once it is longer, the model
    reads the latest `context` tokens again for every token, the first of them at position 0. So it
    does from the beginning if a layer keeps nothing in the cache (`AttentionContext.update_cache`),
    as an attention of your own may: alone with a new token, it would not know the others.

    Args:
      model: what writes, in eval mode.
      prompts: at least one token each; they may differ in length.
      num_tokens: how many to write at most.
      context: the model sees at most this many of the latest tokens of a row.
      choose: takes the next tokens.
      stops: for each row, whether it ends with a token that it is shown, the latest; () for never.
      cache: what keeps the text; StaticCache where `step` is compiled.
      step: computes the logits after a single token; `next_logits` or its compiled form.

    Raises:
      ValueError: a prompt is empty, the context is below 1 or the text may outgrow learned
        positions before it, or there is not one stop for each row; as it writes, if the model's
        logits are no numbers.
    """
    rows = Rows(prompts, num_tokens=num_tokens, device=model.device)
    if context < 1:
        raise ValueError(f"{context=} shows the model nothing: use 1 or more.")
    if stops and len(stops) != len(prompts):
        raise ValueError(f"{len(stops)} stops for {len(prompts)} rows: give each row its own.")
    _require_positions(model, min(rows.capacity - 1, context), context=context)
    logits = _logits(model, rows, context=context, cache=cache, step=step)
    return _chosen(rows, logits, choose, stops or [_never] * len(prompts), num_tokens)


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    context: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Yields `num_tokens` tokens that follow a prompt, each as soon as it is drawn.

    Args:
      model: what writes, in eval mode.
      prompt: at least one token.
      num_tokens: how many to draw.
      context: the model sees at most this many of the latest tokens.
      temperature: logits are divided by it; 0 takes the likeliest token always.
      top_k: draws among so many of the likeliest tokens; None among all.
      top_p: among the fewest that have this probability together; None among all.
      min_p: among those at least this share as likely as the likeliest; None among all.
      repetition_penalty: above 1, what the text holds already becomes less likely.
      vocab_size: tokens from this one on have no meaning and are never drawn.
      seed: another one draws another text.

    Raises:
      ValueError: the prompt is empty or a number is out of its range; as it draws, if the
        model's logits are no numbers.
    """
    choose = sampling(
        seeds=[seed],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        vocab_size=vocab_size,
    )
    drawn = write(model, [prompt], num_tokens=num_tokens, context=context, choose=choose)
    return (token for (token,) in drawn if token is not None)


def _require_positions(model: LanguageModel, count: int, *, context: int) -> None:
    """Raises ValueError where a table of positions would end before the text does."""
    tables = [part for part in model.modules() if isinstance(part, LearnedPositions)]
    least = min((table.weight.shape[0] for table in tables), default=count)
    if count > least:
        raise ValueError(
            f"{context=}, and the text may get {count} tokens long, but the model has learned "
            f"{least} positions: use a context of {least} at most, and it sees the latest tokens."
        )


def _never(token: int) -> bool:
    return False


def _logits(
    model: LanguageModel, rows: Rows, *, context: int, cache: CacheFactory, step: Step
) -> Iterator[Float[Tensor, "batch vocab"]]:
    """Of the next token, whenever the rows have grown by one."""
    kept, cached = cache(capacity=min(rows.capacity, context)), 0
    while True:
        begin = max(0, rows.width - context)
        with torch.inference_mode():
            if begin or kept is None or not kept.is_complete:
                kept, cached = None, begin
            ctx = rows.context(model.layout, begin=begin, cached=cached, cache=kept)
            compute = step if len(ctx) == 1 else next_logits
            assert ctx.tokens is not None  # of rows there are always
            logits = compute(model, ctx.tokens, ctx)
        cached = rows.width
        yield logits


def _chosen(
    rows: Rows,
    logits: Iterator[Float[Tensor, "batch vocab"]],
    choose: Choice,
    stops: Sequence[Stop],
    num_tokens: int,
) -> Iterator[list[int | None]]:
    running = [True] * len(stops)
    for _ in range(num_tokens):
        with torch.inference_mode():
            chosen = choose(next(logits).float(), rows.text())
            rows.append(chosen)
        tokens = [
            token if runs else None for token, runs in zip(chosen.tolist(), running, strict=True)
        ]
        running = [
            token is not None and not stop(token) for token, stop in zip(tokens, stops, strict=True)
        ]
        yield tokens
        if not any(running):
            return
