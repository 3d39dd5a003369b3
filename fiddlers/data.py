"""What a model reads, in which shares and in which form."""

from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    Corpus,
    CorpusTokenizer,
    FillInTheMiddle,
    Mixture,
    Prefetch,
    Stage,
    TextFiles,
    TokenStream,
    best_fit,
    shuffle_and_concatenate,
)
from fidgpt.fiddlers.texts import OWN, own_corpus
from fidgpt.graph import ConfigError, find, swapped
from fidgpt.optim import fraction
from fidgpt.tags import BatchSize, NumSteps
from fidgpt.train import Trainer


def use_mixture(
    cfg: fdl.Config[Trainer],
    texts: dict[str, str],
    weights: dict[str, float | int] | None = None,
    stages: dict[float | int, dict[str, float | int]] | None = None,
    text_field: str = "text",
) -> None:
    """Learns from the config's own text, which is called `own`, and from files of your own.

    Args:
      cfg: the graph to change.
      texts: by name, a file of text, JSON lines, Parquet or Arrow, or a folder of them.
      weights: shares of the tokens by name, `own` among them; equal ones unless said.
      stages: other weights, by the step or, below 1, by the part of the run from which on.
      text_field: where the text is in JSON lines and in tables.
    """
    names = [OWN, *texts]
    for given in [weights or {}, *(stages or {}).values()]:
        if strange := [name for name in given if name not in names]:
            raise ConfigError(f"there is no text {strange[0]!r}: there are {', '.join(names)}.")

    def mixed(data: Any) -> fdl.Config[Mixture]:
        own = data.streams[OWN] if fdl.get_callable(data) is Mixture else data
        streams = {OWN: own}
        for name, path in texts.items():
            streams[name] = swapped(own, TokenStream)
            if "transforms" in fdl.ordered_arguments(own):
                streams[name].transforms = list(own.transforms)  # a list of its own
            streams[name].corpus = _corpus(path, text_field=text_field, like=own_corpus(cfg))
        return fdl.Config(
            Mixture,
            streams,
            batch_size=BatchSize.new(),
            weights=dict(weights or dict.fromkeys(names, 1.0)),
            stages=[_stage(begin, shares) for begin, shares in sorted((stages or {}).items())],
        )

    _change(cfg, mixed)


def use_packing(cfg: fdl.Config[Trainer], cache_dir: str | None = None) -> None:
    """Sequences hold whole documents, and only one that is longer than a sequence is cut."""
    packing = fdl.Partial(best_fit, cache_dir=cache_dir)
    for stream in find(cfg.data, TokenStream):
        stream.packing = packing


def shuffle_documents(cfg: fdl.Config[Trainer]) -> None:
    """Documents have other neighbours, and are cut at other places, in each epoch."""
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
    """Some texts are told with their middle at the end, so that a model learns to fill it in.

    Args:
      cfg: the graph to change.
      rate: probability that a text is told so.
      spm_rate: share of those in which the suffix comes before the prefix.
      prefix: token before the prefix; a tokenizer that is trained or of bytes has it from now on.
      suffix: token before the suffix.
      middle: token before the middle.
    """
    names = [prefix, suffix, middle]
    fim = fdl.Config(FillInTheMiddle, rate=rate, spm_rate=spm_rate)
    fim.prefix, fim.suffix, fim.middle = names
    for stream in find(cfg.data, TokenStream):
        others = [one for one in stream.transforms if fdl.get_callable(one) is not FillInTheMiddle]
        stream.transforms = [*others, fim]
    tokenizer = own_corpus(cfg).tokenizer
    if fdl.get_callable(tokenizer) in (BPETokenizer, ByteTokenizer):
        known = [name for name in tokenizer.special_tokens if name not in names]
        tokenizer.special_tokens = [*known, *names]
    if fdl.get_callable(tokenizer) is ByteTokenizer:
        cfg.vocab_size = max(cfg.vocab_size, 257 + len(tokenizer.special_tokens))


def use_prefetch(cfg: fdl.Config[Trainer], depth: int = 2) -> None:
    """A thread makes the next batches while the model computes."""
    if fdl.get_callable(cfg.data) is Prefetch:
        cfg.data.depth = depth
    else:
        cfg.data = fdl.Config(Prefetch, cfg.data, depth=depth)


def _change(cfg: fdl.Config[Trainer], made_of: Callable[[Any], fdl.Config[Any]]) -> None:
    """Puts another stream in the place of the config's, behind what makes batches ahead."""
    if fdl.get_callable(cfg.data) is Prefetch:
        cfg.data.stream = made_of(cfg.data.stream)
    else:
        cfg.data = made_of(cfg.data)


def _corpus(path: str, *, text_field: str, like: fdl.Buildable) -> fdl.Config[Corpus]:
    """Another text with the same tokens."""
    corpus = fdl.Config(Corpus, source=fdl.Config(TextFiles, path, text_field=text_field))
    corpus.tokenizer = fdl.Config(CorpusTokenizer, like)
    return corpus


def _stage(begin: float, shares: Mapping[str, float | int]) -> fdl.Config[Stage]:
    step: Any = begin
    if 0 < begin < 1:
        step = fdl.Config(fraction, of=NumSteps.new(), ratio=begin)
    elif begin != int(begin):
        raise ConfigError(f"a stage begins at a step, or at a part of the run below 1: {begin}.")
    return fdl.Config(Stage, begin=step if begin < 1 else int(begin), weights=dict(shares))
