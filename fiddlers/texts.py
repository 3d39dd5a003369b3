"""The text that a config trains on, and its tokenizer."""

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    ChatTokenizer,
    Corpus,
    CorpusTokenizer,
    Mixture,
    TextFiles,
)

OWN = "own"  # the name of that text in a mixture


def own_corpus(cfg: fdl.Config[Any]) -> fdl.Buildable:
    """Return the corpus of the config's own text, inside of all mixtures."""
    stream = cfg.data
    while fdl.get_callable(stream) is Mixture:
        stream = stream.streams[OWN if OWN in stream.streams else min(stream.streams)]
    return stream.corpus


def set_source(cfg: fdl.Config[Any], source: fdl.Buildable) -> None:
    """Let the config's own text be another one, with whose held-out part samples then begin."""
    own_corpus(cfg).source = source
    if cfg.samples is not None:
        cfg.samples.prompts = None


def text_like(corpus: fdl.Buildable, path: str, *, text_field: str) -> fdl.Config[Corpus]:
    """Return a corpus of files with the tokenizer of another corpus."""
    own = fdl.Config(Corpus, source=fdl.Config(TextFiles, path, text_field=text_field))
    own.tokenizer = fdl.Config(CorpusTokenizer, corpus)
    return own


def add_special_tokens(cfg: fdl.Config[Any], names: Sequence[str]) -> None:
    """Add special tokens to the tokenizer of the config's own text, if it is trained, or bytes."""
    tokenizer = own_corpus(cfg).tokenizer
    if fdl.get_callable(tokenizer) is ChatTokenizer:
        tokenizer = tokenizer.tokenizer
    if fdl.get_callable(tokenizer) in (BPETokenizer, ByteTokenizer):
        kept = [name for name in tokenizer.special_tokens if name not in names]
        tokenizer.special_tokens = [*kept, *names]
    if fdl.get_callable(tokenizer) is ByteTokenizer:
        cfg.vocab_size = max(cfg.vocab_size, 257 + len(tokenizer.special_tokens))
