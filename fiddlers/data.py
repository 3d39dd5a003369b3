"""Training data: mixtures, packing, transforms, batch size and sequence length schedules."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from fidgpt.data import (
    FillInTheMiddle,
    GrowingBatch,
    GrowingSequence,
    Mixture,
    Prefetch,
    Stage,
    TokenStream,
    annealed,
    best_fit,
    shuffle_and_concatenate,
)
from fidgpt.fiddlers.evaluation import follow_mixture
from fidgpt.fiddlers.texts import OWN, add_special_tokens, own_corpus, text_like
from fidgpt.graph import ConfigError, find, swapped
from fidgpt.graph.formulas import make_formula
from fidgpt.optim import NoDecay, Phases, fraction, steps_for_tokens
from fidgpt.tags import BatchSize, NumSteps, SeqLen
from fidgpt.train import Trainer

__all__ = [
    "grow_batch",
    "grow_seq_len",
    "shuffle_documents",
    "use_fim",
    "use_mixture",
    "use_packing",
    "use_prefetch",
]


def use_mixture(
    cfg: fdl.Config[Trainer],
    texts: dict[str, str],
    weights: dict[str, float | int] | None = None,
    stages: dict[float | int, dict[str, float | int]] | None = None,
    last_weights: dict[str, float | int] | None = None,
    text_field: str = "text",
) -> None:
    """Train on a mixture of the config's own text, named `own`, and other files.

    Args:
      cfg: the graph to change.
      texts: files of text, JSON lines, Parquet or Arrow, or folders of them, by name.
      weights: relative number of tokens by name, including `own`; defaults to equal weights.
      stages: later weights, by the step or, below 1, the fraction of the run at which they start.
      last_weights: weights at the last step, interpolated linearly from the first.
      text_field: field of the text in JSON lines and tables.
    """
    names = [OWN, *texts]
    if stages and last_weights:
        raise ConfigError("stages and last_weights cannot be combined; remove one of them.")
    all_weights = [weights or dict.fromkeys(names, 1.0), last_weights or {}]
    all_weights += (stages or {}).values()
    for given in all_weights:
        if strange := [name for name in given if name not in names]:
            raise ConfigError(f"there is no text {strange[0]!r}; the texts are {', '.join(names)}.")
    if unread := [name for name in texts if not any(name in given for given in all_weights)]:
        raise ConfigError(f"{unread[0]!r} has no weight, and would not be read.")

    own = cfg.data.streams[OWN] if fdl.get_callable(cfg.data) is Mixture else cfg.data
    streams = {OWN: own}
    for name, path in texts.items():
        streams[name] = swapped(own, TokenStream)
        if "transforms" in fdl.ordered_arguments(own):
            streams[name].transforms = list(own.transforms)  # a separate list
        streams[name].corpus = text_like(own_corpus(cfg), path, text_field=text_field)
    first = dict(all_weights[0])
    later: Any = [_stage(begin, shares) for begin, shares in sorted((stages or {}).items())]
    if last_weights:
        later = fdl.Config(annealed, begin=first, end=dict(last_weights), num_steps=NumSteps.new())
        later.schedule = _rise(1.0)
        later.every = fdl.Config(fraction, of=NumSteps.new(), ratio=0.01)
    cfg.data = fdl.Config(
        Mixture, streams, batch_size=BatchSize.new(), weights=dict(first), stages=later
    )
    follow_mixture(cfg)


def use_packing(cfg: fdl.Config[Trainer]) -> None:
    """Pack whole documents into sequences, splitting only those longer than a sequence."""
    packing = fdl.Partial(best_fit)
    for stream in find(cfg.data, TokenStream):
        stream.packing = packing


def shuffle_documents(cfg: fdl.Config[Trainer]) -> None:
    """Shuffle documents before concatenation, differently in each epoch."""
    packing = fdl.Partial(shuffle_and_concatenate)
    for stream in find(cfg.data, TokenStream):
        stream.packing = packing


def use_fim(
    cfg: fdl.Config[Trainer],
    rate: float = 0.5,
    spm_rate: float = 0.5,
    prefix: str = "<|fim_prefix|>",
    suffix: str = "<|fim_suffix|>",
    middle: str = "<|fim_middle|>",
) -> None:
    """Train on fill-in-the-middle: move the middle of some documents to their end.

    Args:
      cfg: the graph to change.
      rate: probability that a document is transformed.
      spm_rate: fraction of these with the suffix before the prefix.
      prefix: token before the prefix; added to a trained tokenizer and to bytes.
      suffix: token before the suffix.
      middle: token before the middle.
    """
    names = [prefix, suffix, middle]
    fim = fdl.Config(FillInTheMiddle, rate=rate, spm_rate=spm_rate)
    fim.prefix, fim.suffix, fim.middle = names
    for stream in find(cfg.data, TokenStream):
        kept = [part for part in stream.transforms if fdl.get_callable(part) is not FillInTheMiddle]
        stream.transforms = [*kept, fim]
    add_special_tokens(cfg, names)


def use_prefetch(cfg: fdl.Config[Trainer], depth: int = 2) -> None:
    """Prefetch batches in a background thread."""
    cfg.prefetch = fdl.Partial(Prefetch, depth=depth)


def grow_batch(cfg: fdl.Config[Trainer], over: float | int = 0.25, multiple_of: int = 1) -> None:
    """Grow batches linearly to their full size, without skipping any sequence.

    Args:
      cfg: the graph to change.
      over: steps until the full size, or, if a float up to 1, a fraction of the run.
      multiple_of: smallest size; all sizes are multiples of it.
    """
    cfg.batch_growth = fdl.Partial(
        GrowingBatch, batch_size=BatchSize.new(), multiple_of=multiple_of, schedule=_rise(over)
    )
    count_growth(cfg)


def grow_seq_len(
    cfg: fdl.Config[Trainer], over: float | int = 0.25, min_seq_len: int | None = None
) -> None:
    """Start with shorter sequences, doubling them up to the full length.

    Args:
      cfg: the graph to change.
      over: steps until the full length, or, if a float up to 1, a fraction of the run.
      min_seq_len: shortest length in tokens; defaults to an eighth of the full length.
    """
    growth = fdl.Partial(GrowingSequence, seq_len=SeqLen.new(), schedule=_rise(over))
    growth.min_seq_len = min_seq_len or fdl.Config(fraction, of=SeqLen.new(), ratio=0.125)
    cfg.seq_len_growth = growth


def count_growth(cfg: fdl.Config[Trainer]) -> None:
    """Let a number of steps that follows from a number of tokens count the growth of batches."""
    steps, growth = cfg.num_steps, cfg.batch_growth
    is_counted = isinstance(steps, fdl.Config) and fdl.get_callable(steps) is steps_for_tokens
    if is_counted and isinstance(growth, fdl.Buildable):
        steps.growth = make_formula(cfg, "{batch_growth.schedule.warmup}")
        steps.multiple_of = make_formula(cfg, "{batch_growth.multiple_of}")


def _rise(over: float | int) -> fdl.Config[Phases]:
    """Return a schedule that rises linearly to 1, then is constant."""
    return fdl.Config(Phases, num_steps=NumSteps.new(), shape=fdl.Config(NoDecay), warmup=over)


def _stage(begin: float, shares: Mapping[str, float | int]) -> fdl.Config[Stage]:
    step: Any = begin
    if 0 < begin < 1:
        step = fdl.Config(fraction, of=NumSteps.new(), ratio=begin)
    elif begin != int(begin):
        raise ConfigError(f"a stage must begin at a step or, below 1, at a fraction: {begin}.")
    return fdl.Config(Stage, begin=step if begin < 1 else int(begin), weights=dict(shares))
