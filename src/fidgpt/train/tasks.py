"""Multiple-choice tasks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.data import Tokenizer
from fidgpt.model.generation import sampling
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.device import derive_seed
from fidgpt.train.evaluation import evaluating
from fidgpt.train.samples import document_begin, texts_after

_CHUNK = 1024  # logits of so many tokens at once


class Likelihood(NamedTuple):
    """Of some tokens after others.

    Attributes:
      log_probability: in nats.
      is_greedy: whether each of them is the likeliest where it stands.
    """

    log_probability: float
    is_greedy: bool


class _Window(NamedTuple):
    """What the model sees at once: tokens, of which the last `scored` are scored."""

    owner: int
    tokens: Sequence[int]
    scored: int


def likelihoods(
    model: LanguageModel,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    context: int,
    batch_size: int,
) -> list[Likelihood]:
    """Of each text's second tokens after its first ones.

    A text longer than the context is cut on the left. Where the second tokens alone are longer,
    they are scored `context` at a time, the first of them after one token, those of the last
    window after as many as fit: each token is scored once, as lm-evaluation-harness does.

    Args:
      model: what reads, in eval mode.
      texts: tokens to be read, one at least, and tokens to be scored, perhaps none.
      context: the model sees at most this many tokens.
      batch_size: texts that are read at once.

    Raises:
      ValueError: nothing comes before the tokens of a text, or a size is below 1.
    """
    check_arguments(context=context, batch_size=batch_size)
    windows: list[_Window] = []
    for owner, (before, scored) in enumerate(texts):
        if not before:
            raise ValueError(
                f"nothing comes before the tokens of text {owner}: give the end of text at least."
            )
        windows += _windows(owner, list(before), list(scored), context)
    windows.sort(key=lambda window: -len(window.tokens))  # alike in length: little is padding
    found = [Likelihood(0.0, is_greedy=True)] * len(texts)
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        for window, (nats, is_greedy) in zip(batch, _scores(model, batch), strict=True):
            so_far = found[window.owner]
            found[window.owner] = Likelihood(
                so_far.log_probability + nats, is_greedy=so_far.is_greedy and is_greedy
            )
    return found


def check_arguments(*, context: int, batch_size: int) -> None:
    """Raises ValueError unless there is something to see, and a text at a time."""
    if context < 1 or batch_size < 1:
        raise ValueError(f"{context=} tokens and {batch_size=} texts have to be 1 or more.")


def _windows(owner: int, before: list[int], scored: list[int], context: int) -> Iterator[_Window]:
    while scored:
        here, scored = scored[:context], scored[context:]
        before = (before + here)[-context - 1 :]
        yield _Window(owner, before, len(here))


@torch.inference_mode()
def _scores(model: LanguageModel, windows: Sequence[_Window]) -> list[tuple[float, bool]]:
    """The log-probability of what is scored in each window, and whether it is the likeliest."""
    width = max(len(window.tokens) for window in windows)
    # Padding stands on the right, where nothing before it can see it.
    rows = torch.tensor([[*w.tokens, *[0] * (width - len(w.tokens))] for w in windows])
    rows = rows.to(model.device)
    features = model.features(rows[:, :-1])
    places = [slice(len(w.tokens) - 1 - w.scored, len(w.tokens) - 1) for w in windows]
    kept = torch.cat([row[place] for row, place in zip(features, places, strict=True)])
    targets = torch.cat([row[1:][place] for row, place in zip(rows, places, strict=True)])
    counts = [window.scored for window in windows]
    nats, is_likeliest = _token_scores(model, kept, targets)
    return [
        (float(some.double().sum()), bool(greedy.all()))
        for some, greedy in zip(nats.split(counts), is_likeliest.split(counts), strict=True)
    ]


def _token_scores(
    model: LanguageModel,
    features: Float[Tensor, "tokens hidden"],
    targets: Int[Tensor, " tokens"],
) -> tuple[Tensor, Tensor]:
    nats, is_likeliest = [], []
    for x, y in zip(features.split(_CHUNK), targets.split(_CHUNK), strict=True):
        logits = model.unembedding(x).float()
        nats.append(-F.cross_entropy(logits, y, reduction="none"))
        is_likeliest.append(logits.argmax(-1) == y)
    return torch.cat(nats).cpu(), torch.cat(is_likeliest).cpu()


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
