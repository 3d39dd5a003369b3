"""Text that a model writes, for a person to read: during a run, and by the command `sample`."""

from collections.abc import Iterator, Sequence

from fidgpt.data import StreamDecoder, Tokenizer
from fidgpt.model.generation import Choice, UntilString, sampling, write
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.train.device import derive_seed


class Samples:
    """A continuation of each prompt, written once training is over, and before if wanted.

    Args:
      prompts: beginnings; an empty one is the beginning of a document.
      num_tokens: length of each continuation.
      temperature: as in `sampling`.
      top_k: as in `sampling`.
      every: steps from one writing to the next while the model learns; None waits for the end.

    Raises:
      ValueError: a count is below 1, or the temperature below 0.
    """

    def __init__(
        self,
        *,
        prompts: Sequence[str],
        num_tokens: int = 120,
        temperature: float = 0.6,
        top_k: int | None = 50,
        every: int | None = None,
    ) -> None:
        require_size("num_tokens", num_tokens)
        require_not_negative("temperature", temperature)
        require_size("top_k", top_k)
        if every is not None and every < 1:
            raise ValueError(f"{every=} must be 1 or more steps, or None for the end alone.")
        self.prompts = prompts
        self.num_tokens = num_tokens
        self.temperature = temperature
        self.top_k = top_k
        self.every = every

    def due(self, step: int, *, num_steps: int) -> bool:
        """Whether to write after a step, beside the texts that end a run."""
        return self.every is not None and step < num_steps and step % self.every == 0

    def write(
        self, model: LanguageModel, tokenizer: Tokenizer, *, context: int, seed: int
    ) -> Iterator[str]:
        """Yields one text for each prompt, the prompt included; `model` is in eval mode."""
        for index, prompt in enumerate(self.prompts):
            choose = sampling(
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
    prompts: Sequence[str],
    *,
    context: int,
    num_tokens: int,
    choose: Choice,
    stop: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Yields the texts that follow prompts, piece by piece, a piece of each at a time.

    Args:
      model: what writes, in eval mode.
      tokenizer: reads the prompts.
      prompts: beginnings of documents.
      context: the model sees at most this many of the latest tokens.
      num_tokens: how many tokens to write at most after each prompt.
      choose: takes the next tokens.
      stop: any of these strings ends a text and is not shown, as the end of the document does.

    Raises:
      ValueError: as in `write`; or a string in `stop` is empty.
    """
    begins = [document_begin(tokenizer, prompt) for prompt in prompts]
    yield from texts_after(
        model,
        tokenizer,
        begins,
        context=context,
        num_tokens=num_tokens,
        choose=choose,
        stop=stop,
    )


def texts_after(
    model: LanguageModel,
    tokenizer: Tokenizer,
    begins: Sequence[Sequence[int]],
    *,
    context: int,
    num_tokens: int,
    choose: Choice,
    stop: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Yields the texts that follow tokens, piece by piece; else as `continuations`."""
    texts = [_Text(tokenizer, stop) for _ in begins]
    steps = write(
        model,
        begins,
        num_tokens=num_tokens,
        context=context,
        choose=choose,
        stops=texts,
    )
    for _ in steps:
        yield [text.take() for text in texts]
    yield [text.finish() for text in texts]


def document_begin(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a document that begins with `text`, after the end of the one before."""
    return [tokenizer.end_of_text, *tokenizer.encode(text)]


class _Text:
    """One row's tokens as text, up to the end of the document or a string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._end_of_text = tokenizer.end_of_text
        self._decoder = StreamDecoder(tokenizer)
        self._until = UntilString(stop)
        self._ready = ""

    def __call__(self, token: int) -> bool:
        """Adds a token; whether it ends the text."""
        if token == self._end_of_text:
            return True
        self._ready += self._until.push(self._decoder.push(token))
        return self._until.found

    def take(self) -> str:
        """What has become certain since the last time."""
        piece, self._ready = self._ready, ""
        return piece

    def finish(self) -> str:
        """The rest, with what was held back."""
        rest = self._until.push(self._decoder.finish())
        return self.take() + rest + self._until.finish()
