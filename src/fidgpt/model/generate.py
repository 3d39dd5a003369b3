"""Writing: drawing one token after another from a model."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from fidgpt.model.language_model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    context: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    vocab_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Yields `num_tokens` tokens that follow a prompt, each as soon as it is drawn.

    Args:
      model: what writes.
      prompt: at least one token.
      num_tokens: how many to draw.
      context: the model sees at most this many of the latest tokens.
      temperature: logits are divided by it; 0 takes the likeliest token always.
      top_k: draws among so many of the likeliest tokens; None among all.
      vocab_size: tokens from this one on have no meaning and are never drawn.
      generator: source of the draws, on the CPU; the global one unless given.

    Raises:
      ValueError: the prompt is empty, the temperature is negative, or context or top_k is below 1;
        as it draws, if the model's logits are no numbers.
    """
    if not prompt:
        raise ValueError("the prompt is empty: give one token at least, such as the end of text.")
    if not temperature >= 0 or context < 1 or (top_k is not None and top_k < 1):
        raise ValueError(
            f"{temperature=}, {context=}, {top_k=}: the first may not be below 0, nor the others "
            "below 1."
        )
    draw = functools.partial(
        _draw, vocab_size=vocab_size, temperature=temperature, top_k=top_k, generator=generator
    )
    return itertools.islice(_endless(model, list(prompt), context, draw), num_tokens)


def _endless(
    model: LanguageModel, tokens: list[int], context: int, draw: Callable[[torch.Tensor], int]
) -> Iterator[int]:
    while True:
        window = torch.tensor([tokens[-context:]], device=model.device)
        with torch.no_grad():
            logits = model.unembedding(model.features(window)[:, -1])[0]
        tokens.append(draw(logits.float().cpu()))
        yield tokens[-1]


def _draw(
    logits: torch.Tensor,
    *,
    vocab_size: int | None,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
) -> int:
    logits = logits[:vocab_size]
    if logits.isnan().any():
        raise ValueError("the model's logits are no numbers: its weights are spoilt.")
    if temperature == 0:
        return int(logits.argmax())
    # Logits of a bfloat16 model are often equal: a threshold would let in more than top_k.
    likeliest, tokens = logits.topk(min(top_k or len(logits), len(logits)))
    # In double, below the largest: no temperature is so small that this is no number.
    scaled = (likeliest - likeliest[0]).double() / temperature
    probabilities = torch.softmax(scaled, dim=-1)
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])
