"""Generation of text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from fidgpt.model.cache import Cache
from fidgpt.model.context import AttentionContext, ContextFactory, Tokens
from fidgpt.model.generation.decoding import Logits, Sampling
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_size

__all__ = ["Choice", "generate", "next_logits", "write"]


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
        documents = None if whole.documents is None else _after(old, whole.documents)
        return AttentionContext(
            _after(old, whole.positions),
            documents,
            whole.contiguous,
            tokens=_after(cached, self.text()),
            cache=cache,
        )


def _after(count: int, numbers: Tensor) -> Tensor:
    """Return all but the first columns, in the memory layout that a compiled step expects."""
    return numbers[:, count:].clone(memory_format=torch.contiguous_format)


def _left_padded(ctx: AttentionContext, *, absent: Int[Tensor, "batch 1"]) -> AttentionContext:
    """Shift positions so that the first document of a row begins at column `absent`."""
    columns = torch.arange(len(ctx), device=absent.device)
    positions, documents = ctx.positions, ctx.documents
    if documents is None:
        positions = positions - absent
    else:
        positions = torch.where(documents == documents[:, :1], positions - absent, positions)
    return AttentionContext(positions.masked_fill(columns < absent, -1), documents)


@runtime_checkable
class Choice(Protocol):
    """Chooses the next token of each row from logits and the text so far, as `Sampling` does."""

    def __call__(self, logits: Logits, tokens: Tokens, /) -> Int[Tensor, " batch"]: ...


@runtime_checkable
class CacheFactory(Protocol):
    """Creates a cache, as `Cache` and `StaticCache` do."""

    def __call__(self, *, capacity: int) -> Cache: ...


Stop = Callable[[int], bool]
Step = Callable[[LanguageModel, Tensor, AttentionContext], Tensor]


def next_logits(model: LanguageModel, tokens: Tokens, ctx: AttentionContext) -> Logits:
    """Return the logits of the next token."""
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
    """Yield the next token of all rows, with None for rows that have ended.

    While the text fits into the context, each token is computed once. After that, the latest
    `context` tokens are recomputed for every new token, from position 0. The whole text is also
    recomputed if a layer does not use the cache (`AttentionContext.update_cache`), such as a custom
    mixer.

    Args:
      model: in eval mode.
      prompts: token ids of the prompts, of any lengths; each has one token or more.
      num_tokens: maximum number of tokens to generate.
      context: maximum number of latest tokens that the model sees.
      choose: chooses the next tokens.
      stops: one function per row that returns whether a token ends it; () to never stop.
      cache: creates the cache; `StaticCache` if `step` is compiled.
      step: computes the next logits from a single token: `next_logits` or its compiled form.

    Raises:
      ValueError: a prompt is empty, the context is below 1 or exceeds the model's learned
        positions, or the number of stops differs from that of prompts; during generation, if logits
        are NaN or infinite.
    """
    rows = Rows(prompts, num_tokens=num_tokens, device=model.device)
    require_size("context", context)
    if stops and len(stops) != len(prompts):
        raise ValueError(f"{len(stops)} stops for {len(prompts)} rows; pass one per row.")
    count = min(rows.capacity - 1, context)
    tables = [part for part in model.modules() if isinstance(part, LearnedPositions)]
    least = min((table.weight.shape[0] for table in tables), default=count)
    if count > least:
        raise ValueError(
            f"{context=} with up to {count} tokens exceeds the {least} learned positions of the "
            f"model; use a context of at most {least}, which keeps the latest tokens."
        )
    stops = stops or [lambda token: False] * len(prompts)
    kept = cache(capacity=min(rows.capacity, context))
    return _written(model, rows, num_tokens, context, choose, stops, kept, step)


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    context: int,
    seed: int = 0,
    **options: Any,
) -> Iterator[int]:
    """Yield `num_tokens` tokens that continue a prompt, each as soon as it is sampled.

    Args:
      model: in eval mode.
      prompt: token ids, one or more.
      num_tokens: number of tokens to generate.
      context: maximum number of latest tokens that the model sees.
      seed: seed of the random numbers.
      **options: arguments of `Sampling`, such as `temperature`.

    Raises:
      ValueError: the prompt is empty or an argument is out of range; during generation, if logits
        are NaN or infinite.
    """
    choose = Sampling(seeds=[seed], **options)
    drawn = write(model, [prompt], num_tokens=num_tokens, context=context, choose=choose)
    return (token for (token,) in drawn if token is not None)


def _written(
    model: LanguageModel,
    rows: Rows,
    num_tokens: int,
    context: int,
    choose: Choice,
    stops: Sequence[Stop],
    cache: Cache | None,
    step: Step,
) -> Iterator[list[int | None]]:
    cached, running = 0, [True] * len(stops)
    for _ in range(num_tokens):
        begin = max(0, rows.width - context)
        with torch.inference_mode():
            if begin or cache is None or not cache.is_complete:
                cache, cached = None, begin
            ctx = rows.context(model.layout, begin=begin, cached=cached, cache=cache)
            compute = step if len(ctx) == 1 else next_logits
            assert ctx.tokens is not None  # rows always have tokens
            chosen = choose(compute(model, ctx.tokens, ctx).float(), rows.text())
            cached = rows.width
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
