"""Evaluators, validation by the loss on held-out text, and texts that a model writes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from fidgpt.data import Batch, DataError, EvaluationStream, StreamDecoder, Tokenizer
from fidgpt.model.generation import Choice, Draft, Sampling, UntilString, write
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.train.device import derive_seed
from fidgpt.train.loss import CrossEntropy

__all__ = [
    "DomainValidation",
    "Evaluator",
    "Samples",
    "StreamedText",
    "Validation",
    "continuations",
    "document_begin",
    "prompt_tokens",
]


@runtime_checkable
class Evaluator(Protocol):
    """Measures a model from time to time during a run."""

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare the data, so that errors are found before training starts."""

    def due(self, step: int, *, num_steps: int) -> bool:
        """Return whether to measure after a step."""
        ...

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Return metrics by name, the same on every process; called on all of them."""
        ...


@dataclass(eq=False, kw_only=True)
class Periodic:
    """An evaluator that runs every so many steps, and after the last.

    Args:
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: `every` is below 1.
    """

    every: int | None = None

    def __post_init__(self) -> None:
        require_size(every=self.every)

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps or (self.every is not None and step % self.every == 0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


_PROMPT_TOKENS = 16  # of held-out text
_MOST_NATS = 700.0  # e to more than 709 overflows
_MEANS = ("loss", "perplexity", "bits_per_byte")


def require_measured(metric: str, evaluators: Mapping[str, object], *, is_averaged: bool) -> None:
    """Raise ValueError for a metric of an evaluator that is known to measure others, or not there.

    Args:
      metric: with the name of its evaluator, such as `validation/loss`.
      evaluators: of a run, by name.
      is_averaged: whether a run evaluates averaged weights too.
    """
    name, _, measured = metric.partition("/")
    evaluator = evaluators.get(name)
    known: Sequence[str] | None = getattr(evaluator, "measured", None)
    if is_averaged:
        measured = measured.removeprefix("averaged/")
    problem = ""
    if known is not None and measured not in known:
        problem = f"{name} measures {', '.join(known)}"
    if evaluator is None and measured in _MEANS:
        problem = f"the run has no evaluator {name}"
    if problem:
        raise ValueError(f"checkpoints.best.metric={metric!r} is not measured: {problem}.")


@dataclass(eq=False)
class Validation(Periodic):
    """Loss per token, and bits per byte, which does not depend on the tokenizer.

    Bits per byte are of the predicted tokens that have bytes: their summed loss in bits over their
    UTF-8 bytes. A token without bytes, such as the end of a text, counts in the loss per token. If
    no token counts, there is no metric.

    Args:
      data: batches of [rows, seq_len + 1] ids, split over the processes.
      every: steps between two evaluations; the last step is always evaluated.
    """

    data: EvaluationStream
    measured: ClassVar[Sequence[str]] = _MEANS

    def prepare(self, *, show_progress: bool = True) -> None:
        self.data.prepare(show_progress=show_progress)

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Return `loss` in nats per token, `perplexity` and `bits_per_byte`, if tokens count."""
        sums = _sums(model, loss, self.data, parallel)
        return _means(*parallel.tokens.all_reduce([sums.to(parallel.device)]))


@dataclass(eq=False)
class DomainValidation(Periodic):
    """Measures several texts like `Validation`, each by its name, and all of them together.

    Together means over all measured tokens, so that a text counts by how much of it is held out. In
    the means called `macro` every text counts alike, except one without any measured token.

    Args:
      domains: streams by name, as in `Validation`.
      every: steps between two evaluations; the last step is always evaluated.

    Raises:
      ValueError: `every` is below 1.
    """

    domains: Mapping[str, EvaluationStream]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.domains = dict(sorted(self.domains.items()))  # saved configs may sort them
        of_domains = [f"{domain}/{mean}" for domain in self.domains for mean in _MEANS]
        self.measured = [*_MEANS, *of_domains, "macro_loss", "macro_bits_per_byte"]

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare every stream; DataError names the domain whose text is too short."""
        for name, stream in self.domains.items():
            try:
                stream.prepare(show_progress=show_progress)
            except DataError as error:
                raise DataError(f"The domain {name!r} cannot be measured. {error}") from error

    def __call__(
        self, model: LanguageModel, loss: CrossEntropy, parallel: DataParallel
    ) -> dict[str, float]:
        """Return `DOMAIN/loss`, `DOMAIN/perplexity` and `DOMAIN/bits_per_byte`.

        The same without a domain is over all tokens; `macro_loss` and `macro_bits_per_byte` are
        means over domains.
        """
        sums = [_sums(model, loss, stream, parallel) for stream in self.domains.values()]
        (each,) = parallel.tokens.all_reduce([torch.stack(sums).to(parallel.device)])
        measured = dict(zip(self.domains, map(_means, each), strict=True))
        row = _means(each.sum(0))
        for name in ("loss", "bits_per_byte"):
            if values := [means[name] for means in measured.values() if name in means]:
                row[f"macro_{name}"] = sum(values) / len(values)
        return {f"{n}/{key}": x for n, means in measured.items() for key, x in means.items()} | row


@torch.no_grad()
def _sums(
    model: LanguageModel, loss: CrossEntropy, data: EvaluationStream, parallel: DataParallel
) -> Float64[Tensor, "4"]:
    """Return nats, tokens, the nats of tokens with bytes, and these of this process's rows."""
    token_bytes = data.token_bytes
    totals = torch.zeros(4, dtype=torch.float64)
    with evaluating(model):
        for index in range(data.num_batches):
            batch = data.batch(index, rank=parallel.data_rank, world_size=parallel.data_size)
            is_absent = not len(batch.tokens)  # a small split may leave a process without rows,
            if is_absent:  # but others may need its shard of the model
                batch = Batch(batch.tokens.new_zeros(1, batch.tokens.shape[1]))
            inputs = batch.inputs.to(parallel.device)
            ctx = model.context_of(inputs)
            features = model.features(ctx.own(inputs), ctx).flatten(0, 1)
            targets = ctx.own(batch.targets).flatten()
            losses = loss.token_losses(features, model.unembedding, targets.to(parallel.device))
            if is_absent:
                continue
            losses = losses.cpu().double()
            if batch.counted_targets is not None:
                counted = ctx.own(batch.counted_targets).flatten()
                losses, targets = losses[counted], targets[counted]
            num_bytes = token_bytes[targets]
            of_text = losses[num_bytes > 0].sum()
            count = torch.tensor(len(targets))
            totals += torch.stack([losses.sum(), count, of_text, num_bytes.sum()])
    return totals


def _means(totals: Float64[Tensor, "4"]) -> dict[str, float]:
    nats, tokens, nats_of_text, num_bytes = totals.tolist()
    means: dict[str, float] = {}
    if tokens:
        loss = nats / tokens
        means = {"loss": loss, "perplexity": math.exp(min(loss, _MOST_NATS))}
    if num_bytes:
        means["bits_per_byte"] = nats_of_text / math.log(2) / num_bytes
    return means


@dataclass(eq=False, kw_only=True)
class Samples:
    """A continuation of each prompt, written at the end of training, and during it on request.

    Args:
      prompts: beginnings; an empty one is the beginning of a document. None for two pieces of the
        text that is held out for the first evaluator that has any, or one empty prompt.
      num_tokens: length of each continuation.
      temperature: as in `Sampling`.
      top_k: as in `Sampling`.
      every: steps between texts during training; None waits for the end.

    Raises:
      ValueError: a count is below 1, or the temperature below 0.
    """

    prompts: Sequence[str] | None = None
    num_tokens: int = 120
    temperature: float = 0.6
    top_k: int | None = 50
    every: int | None = None

    def __post_init__(self) -> None:
        require_size(num_tokens=self.num_tokens)
        require_not_negative(temperature=self.temperature)
        require_size(top_k=self.top_k, every=self.every)

    def due(self, step: int, *, num_steps: int) -> bool:
        """Return whether to write after a step, besides the texts at the end of the run."""
        return self.every is not None and step < num_steps and step % self.every == 0

    def beginnings(
        self, evaluators: Mapping[str, Evaluator], tokenizer: Tokenizer
    ) -> Sequence[str]:
        """Return the prompts; if there are none, words of held-out text of prepared evaluators."""
        if self.prompts is not None:
            return self.prompts
        streams = (e.data for e in evaluators.values() if isinstance(e, Validation))
        if (stream := next(streams, None)) is None:
            return [""]
        rows = stream.batch(0).tokens
        rows = rows[:: max(1, len(rows) // 2)][:2, :_PROMPT_TOKENS]
        special = {*tokenizer.special_ids().values()}
        return [tokenizer.decode([i for i in row if i not in special]) for row in rows.tolist()]

    def write(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        prompts: Sequence[str] | None = None,
        context: int,
        seed: int,
    ) -> Iterator[str]:
        """Yield a text for each prompt, its own by default; `model` is in eval mode."""
        for index, prompt in enumerate(prompts or self.prompts or [""]):
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
    ends: Iterable[int] = (),
    draft: Draft | None = None,
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
      ends: tokens that end a text besides the end of text.
      draft: a smaller model that proposes tokens.

    Raises:
      ValueError: as in `write`; or a string in `stop` is empty.
    """
    texts = [StreamedText(tokenizer, stop, ends=ends, begins_text=not prompt) for prompt in prompts]
    begins = [prompt_tokens(tokenizer, p) if isinstance(p, str) else p for p in prompts]
    steps = write(
        model,
        begins,
        num_tokens=num_tokens,
        context=context,
        choose=choose,
        stops=texts,
        draft=draft,
    )
    for _ in steps:
        yield [text.take() for text in texts]
    yield [text.finish() for text in texts]


def document_begin(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a document that begins with `text`, behind the token that begins one.

    Where the tokenizer puts nothing in front of texts, that is the end of another document.
    """
    begin = tokenizer.begin_of_text
    return [tokenizer.end_of_text if begin is None else begin, *tokenizer.encode(text)]


def prompt_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a prompt, with nothing in front where the tokenizer puts nothing.

    An empty prompt is the beginning of a document.
    """
    begins = (tokenizer.begin_of_text is not None and tokenizer.puts_begin) or not text
    return document_begin(tokenizer, text) if begins else tokenizer.encode(text)


class StreamedText:
    """The tokens of one row as text, up to the end of the document or a string.

    Args:
      tokenizer: of the tokens.
      stop: strings that end the text and are not shown.
      ends: tokens that end it besides the end of text.
      begins_text: whether nothing is in front of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        *,
        ends: Iterable[int] = (),
        begins_text: bool = False,
    ) -> None:
        self._ends = {tokenizer.end_of_text, *ends}
        self._decoder = StreamDecoder(tokenizer, begins_text=begins_text)
        self._until = UntilString(stop)
        self._ready = ""

    def __call__(self, token: int) -> bool:
        """Add a token; return whether it ends the text."""
        if token in self._ends:
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
