"""What a model answers to the requests of lm-evaluation-harness, in the harness's own words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fidgpt.data import Tokenizer
from fidgpt.model.generation import sampling
from fidgpt.model.language_model import LanguageModel
from fidgpt.train.evaluation.evaluator import evaluating
from fidgpt.train.evaluation.likelihood import Likelihood, check_arguments, likelihoods
from fidgpt.train.rng import derive_seed
from fidgpt.train.samples import document_begin, texts_after


@runtime_checkable
class Request(Protocol):
    """One of the harness's instances, as far as it is read here."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Texts, and for writing how to write."""
        ...


class Writing(NamedTuple):
    """How a task wants a text to be written.

    Attributes:
      until: strings that end it.
      num_tokens: how many tokens it has at most.
      temperature: as in `sampling`; 0 writes the likeliest.
      top_k: as in `sampling`.
      top_p: as in `sampling`.
    """

    until: tuple[str, ...]
    num_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None


class Answers:
    """Likelihoods and texts of a model, several requests at once.

    Every text begins as a document does in training, after the end of the one before; with the
    harness's own adapter for Hugging Face models this is `add_bos_token=True`.

    Args:
      model: what reads and writes.
      tokenizer: its tokens.
      context: the model sees at most this many of them.
      batch_size: requests that are answered at once.
      seed: another one draws other texts, where a task asks for chance.

    Raises:
      ValueError: a size is below 1.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        tokenizer: Tokenizer,
        context: int,
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__()  # for the harness's own class beside this one
        check_arguments(context=context, batch_size=batch_size)
        self.model = model
        self.reader = tokenizer
        self.context = context
        self.batch_size = batch_size
        self.seed = seed

    def loglikelihood(self, requests: Sequence[Request]) -> list[tuple[float, bool]]:
        """Of each (context, continuation): the continuation's nats, and whether it is greedy."""
        pairs = [self._split(*request.args) for request in requests]
        return [(one.log_probability, one.is_greedy) for one in self._likelihoods(pairs)]

    def loglikelihood_rolling(self, requests: Sequence[Request]) -> list[float]:
        """The nats of each whole (text,), in windows that do not overlap but for the last."""
        begins = [document_begin(self.reader, request.args[0]) for request in requests]
        found = self._likelihoods([(begin[:1], begin[1:]) for begin in begins])
        return [one.log_probability for one in found]

    def generate_until(self, requests: Sequence[Request]) -> list[str]:
        """The text after each (context, how to write), up to where it ends.

        A context longer than the model's is cut on the left, to leave room for what is written,
        up to a half of it.
        """
        begins = [document_begin(self.reader, request.args[0]) for request in requests]
        manners = [_writing(request.args[1]) for request in requests]
        texts = [""] * len(requests)
        for manner in dict.fromkeys(manners):
            numbers = [number for number, own in enumerate(manners) if own == manner]
            numbers.sort(key=lambda number: -len(begins[number]))
            for first in range(0, len(numbers), self.batch_size):
                batch = numbers[first : first + self.batch_size]
                written = self._written([begins[n] for n in batch], manner, numbers=batch)
                for number, text in zip(batch, written, strict=True):
                    texts[number] = text
        return texts

    def _likelihoods(self, texts: Sequence[tuple[list[int], list[int]]]) -> list[Likelihood]:
        with evaluating(self.model):
            return likelihoods(self.model, texts, context=self.context, batch_size=self.batch_size)

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of a context and those after it, which are one text to the tokenizer.

        White space at the end of a context is read as the beginning of what follows, as the
        harness does, because most tokenizers join it to a word.
        """
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        before = document_begin(self.reader, kept)
        whole = document_begin(self.reader, kept + continuation)
        if len(whole) <= len(before):  # the tokenizer joined all that follows to the context
            return before, self.reader.encode(continuation)
        return whole[: len(before)], whole[len(before) :]

    def _written(
        self, begins: Sequence[list[int]], manner: Writing, *, numbers: Sequence[int]
    ) -> Iterator[str]:
        room = max(self.context - manner.num_tokens, (self.context + 1) // 2)
        choose = sampling(
            seeds=[derive_seed(self.seed, "tasks", number) for number in numbers],
            temperature=manner.temperature,
            top_k=manner.top_k,
            top_p=manner.top_p,
            vocab_size=self.reader.vocab_size,
        )
        with evaluating(self.model):
            pieces = list(
                texts_after(
                    self.model,
                    self.reader,
                    [begin[-room:] for begin in begins],
                    context=self.context,
                    num_tokens=manner.num_tokens,
                    choose=choose,
                    stop=manner.until,
                )
            )
        return ("".join(row) for row in zip(*pieces, strict=True))


def _writing(asked: Mapping[str, Any]) -> Writing:
    """A task's `generation_kwargs`, in the words of transformers."""
    known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
    if strange := sorted(asked.keys() - known):
        raise ValueError(
            f"the task's generation_kwargs ask for {', '.join(strange)}: fidgpt writes by "
            f"{', '.join(sorted(known))}."
        )
    until = asked.get("until") or ()
    drawn = asked.get("do_sample", False)
    return Writing(
        until=(until,) if isinstance(until, str) else tuple(until),
        num_tokens=int(asked.get("max_gen_toks", 256)),
        temperature=float(asked.get("temperature", 1.0)) if drawn else 0.0,
        top_k=asked.get("top_k") if drawn else None,
        top_p=asked.get("top_p") if drawn else None,
    )
