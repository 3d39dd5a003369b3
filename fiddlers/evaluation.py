"""What is measured while a model learns."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt.data import HeldOut
from fidgpt.fiddlers.texts import OWN, own_corpus, text_like
from fidgpt.graph import ConfigError, swapped
from fidgpt.tags import BatchSize, SeqLen
from fidgpt.train import DomainValidation, Samples, TaskEvaluation, Trainer, Validation


def use_validation(
    cfg: fdl.Config[Trainer], texts: dict[str, str], text_field: str = "text"
) -> None:
    """Files of your own are validated on by their names, beside what is held out of the text.

    How often and on how many batches is as for what is held out; one by its name, `validation`,
    takes its place.

    Args:
      cfg: the graph to change.
      texts: by name, a file of text, JSON lines, Parquet or Arrow, or a folder of them.
      text_field: where the text is in JSON lines and in tables.
    """
    every, like = None, fdl.Config(HeldOut, seq_len=SeqLen.new(), batch_size=BatchSize.new())
    for evaluator in cfg.evaluators.values():
        held_out = _held_out(evaluator)
        if held_out is not None:
            every, like = evaluator.every, held_out
            break
    for name, path in texts.items():
        corpus = text_like(own_corpus(cfg), path, text_field=text_field)
        corpus.validation_fraction = 1.0
        data = _of(corpus, like=like)
        cfg.evaluators[name] = fdl.Config(Validation, data=data, every=every)


def use_domain_validation(cfg: fdl.Config[Trainer]) -> None:
    """Each text of the mixture is validated by its name, after the mixture is made.

    What is validated so far, how often and on how many batches stay as they are, and so do files
    that are there to be validated on alone.
    """
    found = False
    for name, evaluator in cfg.evaluators.items():
        held_out = _held_out(evaluator)
        if held_out is not None and getattr(held_out.corpus, "validation_fraction", None) != 1:
            found = True
            part = swapped(evaluator, DomainValidation)
            part.domains = {
                domain: _of(corpus, like=held_out) for domain, corpus in _corpora(cfg.data).items()
            }
            cfg.evaluators[name] = part
    if not found:
        raise ConfigError("no evaluator is a Validation of a HeldOut, whose text has domains.")


def use_tasks(
    cfg: fdl.Config[Trainer],
    tasks: Sequence[str] = ("lambada_openai",),
    every: int | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    include_path: str | None = None,
) -> None:
    """Tasks of lm-evaluation-harness are run beside validation (the extra `lm-eval`).

    Args:
      cfg: the graph to change.
      tasks: names of tasks, groups or tags.
      every: steps between two evaluations; the last step is always evaluated.
      limit: only so many documents of each task.
      num_fewshot: solved examples before each question; as each task says unless given.
      include_path: a folder with task files of your own.
    """
    cfg.evaluators["tasks"] = fdl.Config(
        TaskEvaluation,
        list(tasks),
        corpus=own_corpus(cfg),
        seq_len=SeqLen.new(),
        include_path=include_path,
        num_fewshot=num_fewshot,
        limit=limit,
        every=every,
    )


def use_samples(
    cfg: fdl.Config[Trainer], every: int = 100, prompts: Sequence[str] | None = None
) -> None:
    """The model writes texts while it learns too, to be read on the terminal and in trackers.

    Args:
      cfg: the graph to change.
      every: steps from one writing to the next.
      prompts: beginnings of the texts; those of the config unless given, or that of a document.
    """
    if cfg.samples is None:
        cfg.samples = fdl.Config(Samples, prompts=[""])
    if prompts is not None:
        cfg.samples.prompts = list(prompts)
    cfg.samples.every = every


def _held_out(evaluator: Any) -> fdl.Buildable | None:
    """What a validation reads, if it is of the kind that another text can be put into."""
    kind = fdl.get_callable(evaluator)
    if kind is Validation:
        stream = evaluator.data
    elif kind is DomainValidation:
        stream = next(iter(evaluator.domains.values()))
    else:
        return None
    return stream if fdl.get_callable(stream) is HeldOut else None


def _of(corpus: fdl.Buildable, *, like: fdl.Buildable) -> fdl.Buildable:
    stream = swapped(like, HeldOut)
    stream.corpus = corpus
    return stream


def _corpora(stream: Any, name: str = "") -> dict[str, fdl.Buildable]:
    """The text of every stream by its name; a mixture's in a mixture by both their names."""
    arguments = fdl.ordered_arguments(stream)
    if "streams" in arguments:
        found: dict[str, fdl.Buildable] = {}
        for inner, one in sorted(stream.streams.items()):
            found |= _corpora(one, f"{name}/{inner}" if name else inner)
        return found
    if "stream" in arguments:
        return _corpora(stream.stream, name)
    if "corpus" in arguments:
        return {name or OWN: stream.corpus}
    kind = fdl.get_callable(stream).__name__
    raise ConfigError(f"the stream {kind} has no corpus, of which a part would be held out.")
