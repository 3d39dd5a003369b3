"""Evaluation during training."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt.data import Corpus, HeldOut
from fidgpt.fiddlers.texts import OWN, own_corpus, text_like
from fidgpt.graph import ConfigError, find, swapped
from fidgpt.tags import BatchSize, SeqLen
from fidgpt.train import DomainValidation, Samples, TaskEvaluation, Trainer, Validation

__all__ = ["use_domain_validation", "use_samples", "use_tasks", "use_validation"]


def use_validation(
    cfg: fdl.Config[Trainer], texts: dict[str, str], text_field: str = "text"
) -> None:
    """Validate on additional files.

    Interval and number of batches are taken from the existing validation on held-out text, which
    the name `validation` replaces. Own text that no evaluator reads any more is trained on.

    Args:
      cfg: the graph to change.
      texts: files of text, JSON lines, Parquet or Arrow, or folders of them, by name.
      text_field: field of the text in JSON lines and tables.
    """
    every, like = None, fdl.Config(HeldOut, seq_len=SeqLen.new(), batch_size=BatchSize.new())
    for evaluator in cfg.evaluators.values():
        held_out = _held_out(evaluator)
        if held_out is not None:
            every, like = evaluator.every, held_out
            break
    own = own_corpus(cfg)
    for name, path in texts.items():
        corpus = text_like(own, path, text_field=text_field)
        corpus.validation_fraction = 1.0
        data = _of(corpus, like=like)
        cfg.evaluators[name] = fdl.Config(Validation, data=data, every=every)
    is_read = any(held_out.corpus is own for held_out in find(cfg.evaluators, HeldOut))
    if fdl.get_callable(own) is Corpus and not is_read:
        own.validation_fraction = 0.0


def use_domain_validation(cfg: fdl.Config[Trainer]) -> None:
    """Validate on each text of the mixture separately, whether it is mixed before or after this.

    Existing validations keep their settings.
    """
    if not _split_validations(cfg, Validation, DomainValidation):
        raise ConfigError(
            "no evaluator is a Validation on a HeldOut stream, which could be split by text: put "
            "this before what removes it, or add one to evaluators."
        )


def follow_mixture(cfg: fdl.Config[Trainer]) -> None:
    """Let validations on each text of the mixture follow another mixture."""
    _split_validations(cfg, DomainValidation)


def _split_validations(cfg: fdl.Config[Trainer], *kinds: type) -> bool:
    """Let evaluators of some kinds validate on each text separately; return whether any did."""
    is_split = False
    for name, evaluator in cfg.evaluators.items():
        held_out = _held_out(evaluator) if fdl.get_callable(evaluator) in kinds else None
        if held_out is not None and getattr(held_out.corpus, "validation_fraction", None) != 1:
            is_split = True
            part = swapped(evaluator, DomainValidation)
            part.domains = {
                domain: _of(corpus, like=held_out) for domain, corpus in _corpora(cfg.data).items()
            }
            cfg.evaluators[name] = part
    return is_split


def use_tasks(
    cfg: fdl.Config[Trainer],
    tasks: Sequence[str] = ("lambada_openai",),
    every: int | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    include_path: str | None = None,
    data: str | None = None,
    runs_programs: bool = False,
) -> None:
    """Score the model on tasks during training: CORE, GSM8K, or tasks of lm-evaluation-harness.

    Args:
      cfg: the graph to change.
      tasks: `core`, one of its tasks such as `core/hellaswag`, `arc_easy`, `arc_challenge`,
        `hellaswag`, `mmlu`, `gsm8k`, `humaneval`, or tasks, groups or tags of the harness.
      every: steps between evaluations; the last step is always evaluated.
      limit: maximum number of documents per task.
      num_fewshot: solved examples before each question of the harness; defaults to the task's
        setting.
      include_path: a folder with additional task files of the harness.
      data: a folder or zip file with rows; defaults to the published ones, which are downloaded.
      runs_programs: whether `humaneval` may run programs that the model writes.
    """
    evaluator = fdl.Config(
        TaskEvaluation,
        list(tasks),
        corpus=own_corpus(cfg),
        seq_len=SeqLen.new(),
        include_path=include_path,
        num_fewshot=num_fewshot,
        limit=limit,
        every=every,
    )
    if data is not None:
        evaluator.data = data
    if runs_programs:
        evaluator.runs_programs = True
    cfg.evaluators["tasks"] = evaluator


def use_samples(
    cfg: fdl.Config[Trainer], every: int = 100, prompts: Sequence[str] | None = None
) -> None:
    """Generate sample texts during training, for the terminal and trackers.

    Args:
      cfg: the graph to change.
      every: steps between samples.
      prompts: start of each text; defaults to the config's, or the starts of held-out texts.
    """
    if cfg.samples is None:
        cfg.samples = fdl.Config(Samples)
    if prompts is not None:
        cfg.samples.prompts = list(prompts)
    cfg.samples.every = every


def _held_out(evaluator: Any) -> fdl.Buildable | None:
    """Return the stream of a validation, if its text can be replaced."""
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
    """Return the corpus of every stream by name; nested mixtures join both names."""
    arguments = fdl.ordered_arguments(stream)
    if "streams" in arguments:
        corpora: dict[str, fdl.Buildable] = {}
        for inner, part in sorted(stream.streams.items()):
            corpora |= _corpora(part, f"{name}/{inner}" if name else inner)
        return corpora
    if "stream" in arguments:
        return _corpora(stream.stream, name)
    if "corpus" in arguments:
        return {name or OWN: stream.corpus}
    kind = fdl.get_callable(stream).__name__
    raise ConfigError(f"the stream {kind} has no corpus with held-out text.")
