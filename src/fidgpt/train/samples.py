"""Texts that a model writes: during a run, and by the command `sample`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fidgpt.data import StreamDecoder, Tokenizer
from fidgpt.model.generation import Choice, Sampling, UntilString, write
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.train.device import derive_seed

__all__ = ["Samples", "continuations", "document_begin"]


@dataclass(eq=False, kw_only=True)
class Samples:
    """A continuation of each prompt, written at the end of training, and during it on request.

    Args:
      prompts: beginnings; an empty one is the beginning of a document.
      num_tokens: length of each continuation.
      temperature: as in `Sampling`.
      top_k: as in `Sampling`.
      every: steps between texts during training; None waits for the end.

    Raises:
      ValueError: a count is below 1, or the temperature below 0.
    """

    prompts: Sequence[str]
    num_tokens: int = 120
    temperature: float = 0.6
    top_k: int | None = 50
    every: int | None = None

    def __post_init__(self) -> None:
        require_size("num_tokens", self.num_tokens)
        require_not_negative("temperature", self.temperature)
        require_size("top_k", self.top_k)
        require_size("every", self.every)

    def due(self, step: int, *, num_steps: int) -> bool:
        """Return whether to write after a step, besides the texts at the end of the run."""
        return self.every is not None and step < num_steps and step % self.every == 0

    def write(
        self, model: LanguageModel, tokenizer: Tokenizer, *, context: int, seed: int
    ) -> Iterator[str]:
        """Yield one text for each prompt, the prompt included; `model` is in eval mode."""
        for index, prompt in enumerate(self.prompts):
            choose = Sampling(
                seeds=[derive_seed(seed, "samples", index)],
                temperature=self.temperature,
                top_k=self.top_k,
                vocab_size=tokenizer.vocab_size,
            )
            pieces = continuations(
                model,
                tokenizer,
                [prompt],
                context=context,
                num_tokens=self.num_tokens,
                choose=choose,
            )
            yield prompt + "".join(piece for (piece,) in pieces)


def continuations(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    *,
    context: int,
    num_tokens: int,
    choose: Choice,
    stop: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Yield the texts that follow prompts, piece by piece, one piece of each at a time.

    Args:
      model: in eval mode.
      tokenizer: encodes the prompts.
      prompts: beginnings of documents, as text or as tokens.
      context: the model sees at most this many of the latest tokens.
      num_tokens: the most tokens to write after each prompt.
      choose: chooses the next tokens.
      stop: each of these strings ends a text and is not shown, as the end of the document does.

    Raises:
      ValueError: as in `write`; or a string in `stop` is empty.
    """
    texts = [_Text(tokenizer, stop) for _ in prompts]
    begins = [document_begin(tokenizer, p) if isinstance(p, str) else p for p in prompts]
    steps = write(model, begins, num_tokens=num_tokens, context=context, choose=choose, stops=texts)
    for _ in steps:
        yield [text.take() for text in texts]
    yield [text.finish() for text in texts]


def document_begin(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a document that begins with `text`, after the end of another one."""
    return [tokenizer.end_of_text, *tokenizer.encode(text)]


class _Text:
    """The tokens of one row as text, up to the end of the document or a string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._end_of_text = tokenizer.end_of_text
        self._decoder = StreamDecoder(tokenizer)
        self._until = UntilString(stop)
        self._ready = ""

    def __call__(self, token: int) -> bool:
        """Add a token; return whether it ends the text."""
        if token == self._end_of_text:
            return True
        self._ready += self._until.push(self._decoder.push(token))
        return self._until.found

    def take(self) -> str:
        """Return what has become certain since the last call."""
        piece, self._ready = self._ready, ""
        return piece

    def finish(self) -> str:
        """Return the rest, with what was held back."""
        rest = self._until.push(self._decoder.finish())
        return self.take() + rest + self._until.finish()
