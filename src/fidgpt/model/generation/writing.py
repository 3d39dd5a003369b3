"""Generation of text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from fidgpt.model.cache import Cache, RewindableCache
from fidgpt.model.context import Tokens
from fidgpt.model.generation.decoding import Logits, Sampling
from fidgpt.model.generation.reading import Reader, Rows, require_context
from fidgpt.model.generation.speculation import Draft, Drafting
from fidgpt.model.transformer import LanguageModel

__all__ = ["Choice", "generate", "write"]


@runtime_checkable
class Choice(Protocol):
    """Chooses the next token of each row from logits and the text so far, as `Sampling` does."""

    def __call__(self, logits: Logits, tokens: Tokens, /) -> Int[Tensor, " batch"]: ...


Stop = Callable[[int], bool]


def write(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    context: int,
    choose: Choice,
    stops: Sequence[Stop] = (),
    draft: Draft | None = None,
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
      draft: a smaller model that proposes tokens, for speculative decoding; `choose` is then a
        `Sampling`.

    Raises:
      ValueError: a prompt is empty, the context is below 1 or exceeds the model's learned
        positions, or a draft is combined with another choice; during generation, if logits are
        NaN or infinite, the numbers of stops and prompts differ, or the draft has another
        vocabulary.
    """
    rows = Rows(prompts, num_tokens=num_tokens, device=model.device)
    num_columns = rows.capacity - 1  # the last token is not read
    require_context(model, context=context, num_columns=num_columns)
    drafting = None
    if draft is not None:
        if not isinstance(choose, Sampling):
            raise ValueError("a draft needs probabilities: pass choose=Sampling(...).")
        drafting = Drafting(draft, rows, choose=choose)
    stops = stops or [lambda token: False] * len(prompts)
    cache = Cache if drafting is None else RewindableCache
    reader = Reader(model, cache(capacity=min(rows.capacity, context)), context=context)
    return _written(reader, rows, num_tokens, choose, stops, drafting)


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    context: int,
    seed: int = 0,
    draft: Draft | None = None,
    **options: Any,
) -> Iterator[int]:
    """Yield `num_tokens` tokens that continue a prompt, each as soon as it is sampled.

    Args:
      model: in eval mode.
      prompt: token ids, one or more.
      num_tokens: number of tokens to generate.
      context: maximum number of latest tokens that the model sees.
      seed: seed of the random numbers.
      draft: a smaller model that proposes tokens, for speculative decoding.
      **options: arguments of `Sampling`, such as `temperature`.

    Raises:
      ValueError: the prompt is empty or an argument is out of range; during generation, if logits
        are NaN or infinite.
    """
    choose = Sampling(seeds=[seed], **options)
    drawn = write(
        model, [prompt], num_tokens=num_tokens, context=context, choose=choose, draft=draft
    )
    return (token for (token,) in drawn if token is not None)


def _written(
    reader: Reader,
    rows: Rows,
    num_tokens: int,
    choose: Choice,
    stops: Sequence[Stop],
    drafting: Drafting | None,
) -> Iterator[list[int | None]]:
    running, end = [True] * len(stops), rows.width + num_tokens
    while rows.width < end and any(running):
        begin = rows.width
        with torch.inference_mode():
            if drafting is None or not drafting.advance(reader, running=running):
                rows.append(choose(reader.logits(rows)[:, 0], rows.text()))
            columns = rows.text(begin).t().tolist()
        for column in columns:
            tokens = [token if runs else None for token, runs in zip(column, running, strict=True)]
            running = [
                token is not None and not stop(token)
                for token, stop in zip(tokens, stops, strict=True)
            ]
            yield tokens
            if not any(running):
                return
