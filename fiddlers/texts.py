"""Where in a graph the text is that a config trains on, and others with the same tokens."""

from typing import Any

import fiddle as fdl

from fidgpt.data import (
    Corpus,
    CorpusTokenizer,
    GrowingBatch,
    GrowingSequence,
    Mixture,
    Prefetch,
    TextFiles,
)

OWN = "own"  # the name of that text in a mixture
AROUND = (Prefetch, GrowingSequence, GrowingBatch)  # what a stream is put into, the outermost first


def own_corpus(cfg: fdl.Config[Any]) -> fdl.Buildable:
    """The text that the config itself names, whatever was put around it or beside it."""
    stream = cfg.data
    while fdl.get_callable(stream) in (Mixture, *AROUND):
        if fdl.get_callable(stream) is Mixture:
            stream = stream.streams[OWN if OWN in stream.streams else min(stream.streams)]
        else:
            stream = stream.stream
    return stream.corpus


def text_like(corpus: fdl.Buildable, path: str, *, text_field: str) -> fdl.Config[Corpus]:
    """Files with the tokens of another corpus."""
    own = fdl.Config(Corpus, source=fdl.Config(TextFiles, path, text_field=text_field))
    own.tokenizer = fdl.Config(CorpusTokenizer, corpus)
    return own
