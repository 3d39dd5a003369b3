"""Text that a model writes during a run, for a person to read."""

from collections.abc import Iterator, Sequence

import torch

from fidgpt.data import StreamDecoder, Tokenizer
from fidgpt.model.generate import generate
from fidgpt.model.language_model import LanguageModel
from fidgpt.train.rng import derive_seed


class Samples:
    """A continuation of each prompt, written once training is over.

    Args:
      prompts: beginnings; an empty one is the beginning of a document.
      num_tokens: length of each continuation.
      temperature: as in `generate`.
      top_k: as in `generate`.
    """

    def __init__(
        self,
        *,
        prompts: Sequence[str],
        num_tokens: int = 120,
        temperature: float = 0.6,
        top_k: int | None = 50,
    ) -> None:
        self.prompts = prompts
        self.num_tokens = num_tokens
        self.temperature = temperature
        self.top_k = top_k

    def write(
        self, model: LanguageModel, tokenizer: Tokenizer, *, context: int, seed: int
    ) -> Iterator[str]:
        """Yields one text for each prompt, the prompt included; `model` is in eval mode."""
        for index, prompt in enumerate(self.prompts):
            generator = torch.Generator().manual_seed(derive_seed(seed, "samples", index))
            yield prompt + "".join(
                continuation(
                    model,
                    tokenizer,
                    prompt,
                    context=context,
                    num_tokens=self.num_tokens,
                    temperature=self.temperature,
                    top_k=self.top_k,
                    generator=generator,
                )
            )


def continuation(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    context: int,
    num_tokens: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
) -> Iterator[str]:
    """Yields the text that follows a prompt, piece by piece; the end of the document ends it."""
    decoder = StreamDecoder(tokenizer)
    ids = [tokenizer.end_of_text, *tokenizer.encode(prompt)]
    for token in generate(
        model,
        ids,
        num_tokens=num_tokens,
        context=context,
        temperature=temperature,
        top_k=top_k,
        vocab_size=tokenizer.vocab_size,
        generator=generator,
    ):
        if token == tokenizer.end_of_text:
            break
        yield decoder.push(token)
    yield decoder.finish()
